"""A conversation goes into a file and comes back: exported, read and exported again it is the same to the letter."""

import io
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_changes import everything
from test_session import CARD, TOKENIZER, ended, session_of
from worlds import environment

from sinkchat.chat.events import Evicted, PromptProgress, PromptRead, TextDelta
from sinkchat.chat.export import FORMS
from sinkchat.chat.kept import Kept
from sinkchat.chat.options import MemoryOptions, ModelCard
from sinkchat.chat.past import read_past
from sinkchat.chat.session import ChatSession
from sinkchat.chat.store import Store
from sinkchat.terminal.sanitize import visible
from sinkchat.terminal.sessions import export_session
from sinkchat.terminal.slash import commands
from sinkchat.terminal.slash.desk import Desk, Output

CAPACITY = 512


@dataclass(frozen=True)
class Said:
    user: str
    answer: str


@dataclass
class Talk:
    """What was said, and what is left of it."""

    exchanges: list[tuple[str, str]]
    system: str | None = None
    remembered: Iterable[int] | None = None
    pinned_turns: tuple[int, ...] = ()
    first: int = 1
    card: ModelCard = field(default_factory=lambda: CARD)

    @property
    def latest(self) -> int:
        return len(self.exchanges)

    @property
    def held(self) -> list[SimpleNamespace]:
        numbers = range(1, self.latest + 1) if self.remembered is None else self.remembered
        return [SimpleNamespace(number=number) for number in numbers]

    def said(self, turn: int) -> Said:
        return Said(*self.exchanges[turn - 1])


def obey(session: ChatSession, line: str) -> list[Output]:
    command = commands.parse(line)
    assert command is not None
    return list(commands.run(command, Desk(lambda: session)))


def exported(talk: object, form: str) -> bytes:
    """The bytes of the file, in which a lone surrogate is the escape that JSON has for it."""
    return "".join(FORMS[form](talk)).encode("utf-8", "backslashreplace")


NUMBERS = itertools.count()


def again(session: ChatSession, folder: Path, data: bytes, form: str) -> bytes:
    """What is exported once the file was loaded."""
    number = next(NUMBERS)
    source, copy = folder / f"{number}{form}", folder / f"{number}-again{form}"
    source.write_bytes(data)
    obey(session, f"/load {source}")
    obey(session, f"/export {copy}")
    return copy.read_bytes()


@pytest.fixture(scope="module")
def session() -> ChatSession:
    return session_of(capacity=CAPACITY, system="of another conversation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


ANY = st.text(st.characters(), max_size=12) | st.text('\n\t\r "\\🙂\x00\x1b\u2028\u202e{}[]<|>', max_size=12)
SEEN = ANY.map(visible)
TALKS = st.tuples(st.lists(st.tuples(SEEN, SEEN), min_size=1, max_size=4), st.none() | SEEN)
RAW_TALKS = st.tuples(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=4), st.none() | ANY)
MANY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("form", [".json", ".jsonl"])
@MANY
@given(TALKS)
@example(([("", "")], ""))
@example(([("one\n\n", "  "), ('"\\', "```\n1\n```\n"), ("why", "")], None))
@example(([("\\x1b[2J", "\u2028\u2029")], "<|im_end|>"))
def test_what_is_exported_and_loaded_and_exported_again_is_the_same(session, folder, form, talk) -> None:
    data = exported(Talk(*talk), form)
    assert again(session, folder, data, form) == data


@MANY
@given(RAW_TALKS)
@example(([("\ud800", "\x1b[2J\r\n")], "\x00"))
def test_characters_that_steer_are_visible_from_the_first_reading_on(session, folder, talk) -> None:
    exchanges, system = talk
    seen = Talk(
        [(visible(user), visible(answer)) for user, answer in exchanges], None if system is None else visible(system)
    )
    assert again(session, folder, exported(Talk(*talk), ".jsonl"), ".jsonl") == exported(seen, ".jsonl")


def kept_session(store: Store, name: str, *, resumed: bool = False, system: str | None = None) -> ChatSession:
    """A session that is written down, or goes on with what was."""
    kept = Kept.resumed(store, name) if resumed else Kept.begun(store, name)
    session = session_of(capacity=CAPACITY, system=system)
    memory = MemoryOptions(cache_size=CAPACITY)
    kept.take_up(session, memory=memory, source="tiny", system=None, progress=lambda text: None)
    return session


def session_exported(folder: Path, name: str, form: str) -> bytes:
    where = environment(io.BytesIO(), state_folder=folder)
    export_session(where, name, form)
    return where.stdout.getvalue().encode("utf-8", "backslashreplace")


def a_long_one(folder: Path, *, turns: int = 60, system: str | None = "Be brief.") -> Path:
    path = folder / "long.jsonl"
    talk = Talk([(f"{number} asks\n🙂", f"{number} answers\n" * 2) for number in range(1, turns + 1)], system)
    path.write_bytes(exported(talk, ".jsonl"))
    return path


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_long_conversation_is_read_whole_and_recorded_whole(tmp_path: Path, system: str | None) -> None:
    path, store = a_long_one(tmp_path, system=system), Store(tmp_path / "sessions")
    session = kept_session(store, "work", system="another")
    ended(session, "what was said before")
    outputs = obey(session, f"/load {path}")
    assert str(outputs[-1]).startswith("60 turns read: ")
    assert session.state.evicted > 2 * CAPACITY
    progress = [output for output in outputs if isinstance(output, PromptProgress)]
    assert [each.read for each in progress] == sorted({each.read for each in progress})
    assert progress[-1].read == session.state.seen
    assert [output for output in outputs if isinstance(output, Evicted)]
    assert not [output for output in outputs if isinstance(output, PromptRead)]

    for form in FORMS:  # while it is open, from the session and from its journal
        file = tmp_path / f"export{form}"
        obey(session, f"/export {file}")
        assert session_exported(tmp_path, "work", form[1:]) == file.read_bytes(), form
    assert (tmp_path / "export.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("keeps_memory", [True, False])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_what_was_loaded_is_resumed(tmp_path: Path, system: str | None, keeps_memory: bool) -> None:
    path, store = a_long_one(tmp_path, system=system), Store(tmp_path / "sessions")
    session = kept_session(store, "work", system="another")
    ended(session, "what was said before")
    obey(session, f"/load {path}")
    before = everything(session)
    assert session.close() == ""
    answer = ended(session, "and now?").text

    if not keeps_memory:
        (tmp_path / "sessions" / "work" / "memory.safetensors").unlink()
    resumed = kept_session(store, "work", resumed=True)
    assert (resumed.system, resumed.latest) == (system, 60)
    if keeps_memory:
        assert everything(resumed) == before
        assert ended(resumed, "and now?").text == answer
    else:
        assert resumed.window_text() == session_window_of(before)
        ended(resumed, "and now?")
    resumed.close()
    lines = session_exported(tmp_path, "work", "jsonl").splitlines(keepends=True)
    assert b"".join(lines[:-2]) == path.read_bytes()


def session_window_of(before: list[object]) -> str:
    """The text of the window, as it stood among all that the next token depends on."""
    state, ids = before[0], before[1]
    text: str = TOKENIZER.decode(ids[state.pinned :], skip_special_tokens=False)
    return text


def test_a_turn_cut_right_after_a_load_is_resumed_under_the_system_prompt_of_the_file(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "sessions"), tmp_path / "chat.jsonl"
    path.write_bytes(exported(Talk([], "Be brief."), ".jsonl"))
    session = kept_session(store, "work", system="another")
    ended(session, "what was said before")
    obey(session, f"/load {path}")
    answer = session.send("cut")
    while not isinstance(next(answer), TextDelta):
        pass
    past = read_past(store.read("work"))  # as it would be found after a power loss
    assert (past.system, past.whole, [said.user for said in past.transcript]) == ("Be brief.", 0, ["cut"])
    session.stop()
    list(answer)
    session.close()


def page(talk: Talk) -> list[str]:
    """Headings and rules of the Markdown."""
    return [line for line in exported(talk, ".md").decode().split("\n") if line.startswith(("## ", "*Memory"))]


HEADINGS = ["## Turn 1", "## Turn 2", "## Turn 3", "## Turn 4", "## Turn 5"]


@pytest.mark.parametrize(
    ("held", "pinned", "at", "rest"),
    [
        ([1, 2, 3, 4, 5], (), None, ""),
        ([4, 5], (), 4, ""),
        ([5], (), 5, ""),
        ([], (), 6, ""),
        ([4, 5], (1,), 4, ", but for turn 1 (pinned)"),
        ([4], (1, 2, 5), 4, ", but for turn 1 (pinned) and turn 2 (pinned)"),
        ([2, 3, 4, 5], (1,), None, ""),
        ([1, 4, 5], (), 4, ", but for turn 1"),
        ([], (5,), 5, ""),
        ([], (4,), 6, ", but for turn 4 (pinned)"),
    ],
)
def test_markdown_says_from_where_on_all_is_remembered_and_what_else_is(
    held: list[int], pinned: tuple[int, ...], at: int | None, rest: str
) -> None:
    expected = [f"{heading} (pinned)" if int(heading[-1]) in pinned else heading for heading in HEADINGS]
    if at is not None:
        expected.insert(at - 1, f"*Memory begins here: the turns above are forgotten{rest}.*")
    assert page(Talk([("a", "b")] * 5, remembered=held, pinned_turns=pinned)) == expected


def test_the_rule_is_where_the_session_forgot(tmp_path: Path) -> None:
    session = session_of(capacity=160)
    for number in range(1, 4):
        ended(session, f"message {number}")
    list(session.pin(2).events)
    while session.held[0].number < 6:
        ended(session, f"message {session.latest + 1}")
    first = session.held[0].number
    lines = page(session)  # type: ignore[arg-type]
    assert lines[first - 1] == "*Memory begins here: the turns above are forgotten, but for turn 2 (pinned).*"
    assert lines[first - 2 : first + 1 : 2] == [f"## Turn {first - 1}", f"## Turn {first}"]
    list(session.unpin(2).events)
    assert page(session)[first - 1] == "*Memory begins here: the turns above are forgotten, but for turn 2.*"  # type: ignore[arg-type]


def test_a_page_of_which_the_beginning_is_not_kept() -> None:
    talk = Talk([("a", "b")] * 5, remembered=[4, 5], first=4)
    assert page(talk) == HEADINGS[3:]
    assert json.loads(exported(talk, ".json"))["turns"] == 2
