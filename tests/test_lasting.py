"""Conversations outlast what happens to the process and to the disk. The whole program, with a tiny real model."""

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from forked import Nursery, Pipe, Talk
from lasting_program import CAPACITY, LETTERS, MAX_TOKENS
from small_disks import small_disk
from terminals import CTRL_C, CTRL_D

from sinkchat.chat.past import Past, read_past
from sinkchat.chat.store import Store

QUIET = ("--panel", "off", "--raw")
SUMS = re.compile(r"pinned ([\d,]+) \+ window ([\d,]+)/([\d,]+) \+ forgotten ([\d,]+) = seen ([\d,]+)")
READ_AGAIN = "note: what is remembered is read again: "


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def past_of(home: Path, name: str = "x") -> Past:
    """A conversation as its files tell it. Raises where one of them is damaged."""
    return read_past(Store(home / "sinkchat" / "sessions").read(name))


def said_in(past: Past) -> list[tuple[str, str]]:
    transcript = past.transcript
    turns = [transcript.said(number) for number in range(transcript.first, transcript.count + 1)]
    return [(said.user, said.answer) for said in turns]


def is_begun(talk: Talk) -> bool:
    return talk.waits(lambda: any(" · cache " in row for row in talk.rows)) and talk.is_asked()


def say(talk: Talk, line: str) -> list[str]:
    """Sends a line; the rows between it and the next prompt."""
    asked = f"> {line}"
    before = talk.all_rows.count(asked)
    talk.type(f"{line}\r")
    assert talk.waits(lambda: talk.all_rows.count(asked) > before), talk.rows
    assert talk.is_asked(), talk.rows
    rows = [row for row in talk.all_rows if row]
    return rows[len(rows) - rows[::-1].index(asked) : len(rows) - 1 - rows[::-1].index(">")]


def sums(row: str) -> dict[str, int]:
    """What /memory says, which must add up."""
    found = SUMS.match(row)
    assert found, row
    names = ("pinned", "window", "room", "forgotten", "seen")
    state = dict(zip(names, (int(number.replace(",", "")) for number in found.groups()), strict=True))
    assert state["pinned"] + state["window"] + state["forgotten"] == state["seen"]
    assert state["pinned"] + state["room"] == CAPACITY
    assert state["window"] <= state["room"]
    return state


def is_sane(answer: str) -> bool:
    """Whether this is how the model speaks."""
    return 0 < len(answer) <= MAX_TOKENS and set(answer) <= set(LETTERS)


@dataclass
class Chat:
    """A conversation by what was seen of it: what certainly happened, and what may have."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    pins: set[int] = field(default_factory=set)
    cleared: tuple[list[tuple[str, str]], set[int]] | None = None

    def copy(self) -> "Chat":
        return Chat(list(self.turns), set(self.pins), self.cleared)


class Chatter:
    """Somebody who says and does all kinds of things, and at some moment is cut off."""

    def __init__(self, draws: random.Random, nursery: Nursery, home: Path) -> None:
        self.draws = draws
        self.nursery = nursery
        self.home = home
        self.chat = Chat()
        self.messages = 0
        self.kills: list[str] = []

    def live_and_die(self) -> None:
        """One process, from its beginning to a kill, and what is found afterwards."""
        draws = self.draws
        with Talk(self.nursery, self.home, "--session", "x", *QUIET) as talk:
            if draws.random() < 0.1:
                time.sleep(draws.random() * 0.5)
                talk.kill()
                after, deed = self.chat, "begin"
            else:
                self._begins(talk)
                for _ in range(draws.randrange(3)):
                    self.chat = self._do(talk, self._deed(), is_cut=False)
                deed = self._deed(may_leave=True)
                after = self._do(talk, deed, is_cut=True)
        self.kills.append(deed)
        self._look(after, deed)

    def _begins(self, talk: Talk) -> None:
        """The conversation goes on: all is there, memory adds up, the next turn has the next number."""
        chat = self.chat
        assert is_begun(talk), talk.rows
        state = sums(say(talk, "/memory")[0])
        rows = say(talk, "/turns")
        if not chat.turns:
            assert rows == ["no turn yet"]
        else:
            assert int(rows[-1].split()[0]) == len(chat.turns)
            assert rows[-1].endswith(chat.turns[-1][0])
            assert state["seen"] > 0
        assert {int(row.split()[0]) for row in rows if " pinned " in row} == chat.pins
        self.chat = self._do(talk, "send", is_cut=False)
        assert is_sane(self.chat.turns[-1][1]), self.chat.turns[-1]
        assert say(talk, "/turns")[-1].split()[0] == str(len(self.chat.turns))

    def _deed(self, *, may_leave: bool = False) -> str:
        deeds = {"send": 12, "cut": 3, "undo": 3, "pin": 2, "unpin": 1, "clear": 1, "note": 1}
        if may_leave:
            deeds |= {"leave": 4}
        return self.draws.choices(list(deeds), list(deeds.values()))[0]

    def _do(self, talk: Talk, deed: str, *, is_cut: bool) -> Chat:
        """What the conversation is once that is done; where it is cut, the process is killed before one sees it."""
        chat = self.chat.copy()
        number = len(chat.turns)
        match deed:
            case "send" | "cut":
                self.messages += 1
                slowly = "slowly " if deed == "cut" else ""
                line = f"{slowly}message {self.messages}"
                chat.turns.append((line, ""))
                chat.cleared = None
            case "note":
                self.messages += 1
                line = f"/pin fact {self.messages}"
            case "undo":
                line = "/undo"
                if chat.turns:
                    chat.turns.pop()
                    chat.pins.discard(number)
                elif chat.cleared is not None:
                    chat.turns, chat.pins = chat.cleared
                    chat.cleared = None
            case "pin":
                line = f"/pin {number}"
            case "unpin":
                line = f"/unpin {max(chat.pins, default=1)}"
            case "clear":
                line = "/clear"
                if chat.turns:
                    chat.cleared = (list(chat.turns), set(chat.pins))
                chat.turns, chat.pins = [], set()
            case _:
                line = ""
        if is_cut:
            talk.type(CTRL_D if deed == "leave" else f"{line}\r")
            longest = {"cut": 0.9, "leave": 0.3}.get(deed, 0.15)
            time.sleep(self.draws.random() * longest)
            talk.kill()
            return chat
        if deed == "cut":
            talk.type(f"{line}\r")
            time.sleep(0.3 + self.draws.random() * 0.4)
            talk.type(CTRL_C)
            rows = self._until_asked(talk, line)
        else:
            rows = say(talk, line)
        return self._seen(chat, deed, rows)

    def _until_asked(self, talk: Talk, line: str) -> list[str]:
        assert talk.waits(lambda: f"> {line}" in talk.all_rows)
        assert talk.waits(
            lambda: bool(talk.rows) and re.fullmatch(r">( slowly message \d+)?", talk.rows[-1]) is not None
        )
        talk.watch(0.05)
        if not talk.is_asked(0.2):
            talk.type("\x15")
            assert talk.is_asked(), talk.rows
        rows = [row for row in talk.all_rows if row]
        at = len(rows) - 1 - rows[::-1].index(f"> {line}")
        return rows[at + 1 : -1]

    def _seen(self, chat: Chat, deed: str, rows: list[str]) -> Chat:
        """The conversation after a deed, by the rows that it left on the screen."""
        before = self.chat
        if any(row.startswith("error:") for row in rows):
            if deed != "note":
                return before
            chat.turns.append((f"fact {self.messages}", "Noted."))  # it was read, and there is no room to pin it
            chat.cleared = None
            return chat
        if deed in ("send", "cut"):
            answer = next((row for row in rows if set(row) <= set(LETTERS)), "")
            if not answer:
                assert deed == "cut", rows
                return before
            chat.turns[-1] = (chat.turns[-1][0], answer)
        elif deed == "note":
            number = len(before.turns) + 1
            assert f"turn {number} is pinned: " in "\n".join(rows)
            chat.turns.append((f"fact {self.messages}", "Noted."))
            chat.pins.add(number)
            chat.cleared = None
        elif deed == "pin":
            chat.pins.add(len(before.turns))
        elif deed == "unpin":
            chat.pins.discard(max(before.pins))
        return chat

    def _look(self, after: Chat, deed: str) -> None:
        """Nothing that was seen to be complete is lost, and nothing came of what was cut but what may."""
        before = self.chat
        if not (self.home / "sinkchat/sessions/x/00001.jsonl").exists():
            assert before.turns == []
            return
        past = past_of(self.home)
        found = said_in(past)
        assert past.notes == ()
        if found == before.turns and (deed in ("send", "cut") or len(after.turns) == len(before.turns)):
            self.chat = before.copy()
        elif deed in ("send", "cut"):
            assert found[:-1] == before.turns, (deed, found, before.turns)
            user, answer = found[-1]
            assert after.turns[-1][0].startswith(user), (user, after.turns[-1])
            assert answer == "" or is_sane(answer)
            self.chat = after
            self.chat.turns = found
            if user == "":
                self.chat = before.copy()
        elif deed == "note":
            assert found[: len(before.turns)] == before.turns
            assert len(found) <= len(before.turns) + 1
            self.chat = before.copy()
            self.chat.turns = [turn for turn in found if turn[0]]
        else:
            assert found in (before.turns, after.turns), (deed, found, before.turns, after.turns)
            self.chat = after if found == after.turns else before.copy()
        self.chat.cleared = None
        pins = set() if past.outline is None else {entry.number for entry, _ in past.outline.pins}
        may = {frozenset(before.pins), frozenset(after.pins)}
        if deed == "pin":
            may.add(frozenset(before.pins | {len(before.turns)}))
        if deed == "unpin" and before.pins:
            may.add(frozenset(before.pins - {max(before.pins)}))
        if deed == "note":
            may.add(frozenset(before.pins | {len(before.turns) + 1}))
        if found:
            assert frozenset(pins) & set(range(1, len(found) + 1)) in may, (deed, pins, may)
            self.chat.pins = pins & set(range(1, len(found) + 1))
        else:
            self.chat.pins = set()


def kill(nursery: Nursery, folder: Path, *, times: int, seed: int) -> Chatter:
    chatter, life = None, 0
    kills: list[str] = []
    while len(kills) < times:
        if chatter is None or len(chatter.kills) == 25:
            life += 1
            chatter = Chatter(random.Random(seed + life), nursery, folder / str(life))
            (folder / str(life)).mkdir()
        chatter.live_and_die()
        kills.append(chatter.kills[-1])
    chatter.kills = kills
    return chatter


def test_what_was_seen_to_be_complete_outlasts_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    chatter = kill(nursery, tmp_path, times=15, seed=int(time.time()))
    assert len(set(chatter.kills)) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_what_was_seen_to_be_complete_outlasts_three_hundred_kills(nursery: Nursery, tmp_path: Path) -> None:
    chatter = kill(nursery, tmp_path, times=300, seed=1)
    deeds: dict[str, Any] = {deed: chatter.kills.count(deed) for deed in set(chatter.kills)}
    assert {"begin", "send", "cut", "undo", "pin", "leave", "clear"} <= deeds.keys(), deeds


@contextmanager
def talk_of(nursery: Nursery, home: Path, *arguments: str, **variables: str) -> Iterator[Talk]:
    """A conversation `x` once it is loaded and asks for a message."""
    home.mkdir(exist_ok=True)
    with Talk(nursery, home, *(arguments or ("--session", "x")), *QUIET, **variables) as talk:
        assert is_begun(talk), talk.rows
        yield talk


def notes(talk: Talk) -> list[str]:
    return [row for row in talk.all_rows if row.startswith("note: ") and "the answer was cut at" not in row]


def unbroken(nursery: Nursery, home: Path, before: list[str], after: list[str]) -> list[list[str]]:
    """What is answered to `after` where nobody ever left."""
    with talk_of(nursery, home) as talk:
        for line in before:
            say(talk, line)
        return [say(talk, line) for line in after]


SAID = [f"message {number} of a long conversation" for number in range(1, 11)]
THEN = ["and then", "what else", "/memory", "/turns"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["TERM", "HUP"])
def test_a_signal_in_mid_answer_saves_what_was_said_and_memory_goes_on_to_the_bit(
    nursery: Nursery, tmp_path: Path, number: int, status: int
) -> None:
    with talk_of(nursery, tmp_path) as talk:
        for line in SAID:
            say(talk, line)
        before = len(talk.written)
        talk.type("slowly now\r")
        assert talk.waits(lambda: re.search(r"slowly now\n+[a-z]{3,}", talk.written[before:]) is not None)
        os.kill(talk.process, number)
        assert talk.status() == status
        assert "Traceback" not in talk.written
    user, answer = said_in(past_of(tmp_path))[-1]
    assert user == "slowly now"
    assert is_sane(answer)
    assert 3 <= len(answer) < MAX_TOKENS
    with talk_of(nursery, tmp_path) as talk:
        rest = say(talk, "/continue")[0]
        told = notes(talk)
        others = [say(talk, line) for line in THEN]
    assert told == []
    whole = unbroken(nursery, tmp_path / "unbroken", SAID, ["slowly now"])[0][0]
    assert (answer + rest)[:MAX_TOKENS] == whole
    assert len(others) == len(THEN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["TERM", "HUP"])
def test_a_signal_in_a_pipe_saves_what_was_said(nursery: Nursery, tmp_path: Path, number: int) -> None:
    texts = {name: tmp_path / name for name in ("stdin", "stdout", "stderr")}
    texts["stdin"].write_text("\n".join([*SAID, "slowly now", ""]))
    texts["stdout"].touch()
    arguments = ("run", "--input", "lines", "--session", "x")
    process = nursery.begin(*arguments, home=tmp_path, **{name: str(path) for name, path in texts.items()})
    until = time.monotonic() + 20
    while texts["stdout"].read_text().count("\n\n") < len(SAID) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process, number)
    assert nursery.status() == 128 + number
    assert "Traceback" not in texts["stderr"].read_text()
    assert [user for user, _ in said_in(past_of(tmp_path))] == [*SAID, "slowly now"]
    with talk_of(nursery, tmp_path) as talk:
        assert notes(talk) == []


def test_ctrl_d_says_how_to_go_on_and_what_goes_on_is_the_same_to_the_bit(nursery: Nursery, tmp_path: Path) -> None:
    whole = unbroken(nursery, tmp_path / "unbroken", SAID, THEN)
    with talk_of(nursery, tmp_path, "--no-history") as talk:
        for line in SAID:
            say(talk, line)
        talk.type(CTRL_D)
        assert talk.status() == 0
        found = re.fullmatch(
            r"sinkchat resume (\d{4}-\d\d-\d\d-\d{4}-\w{4}) goes on with this conversation", talk.rows[-1]
        )
        assert found, talk.rows
    with talk_of(nursery, tmp_path, "-c") as talk:
        assert notes(talk) == []
        again = [say(talk, line) for line in THEN]
        talk.type(CTRL_D)
        assert talk.status() == 0
        assert talk.rows[-1] == f"sinkchat resume {found[1]} goes on with this conversation"
    assert again == whole
    assert [summary.id for summary in Store(tmp_path / "sinkchat/sessions").saved()] == [found[1]]


def test_read_again_a_long_conversation_is_not_the_same_to_the_bit(nursery: Nursery, tmp_path: Path) -> None:
    """The control: what leaves no snapshot behind answers otherwise, as keys knew what has been forgotten."""
    whole = unbroken(nursery, tmp_path / "unbroken", SAID, THEN)
    with talk_of(nursery, tmp_path) as talk:
        for line in SAID:
            say(talk, line)
        talk.kill()
    with talk_of(nursery, tmp_path) as talk:
        assert notes(talk) == [f"{READ_AGAIN}there is no saved memory"]
        again = [say(talk, line) for line in THEN]
    assert again[:2] != whole[:2]
    assert sums(again[2][0])["window"] > 0


@pytest.mark.parametrize(
    ("break_it", "arguments", "told"),
    [
        (lambda path: path.unlink(), (), f"{READ_AGAIN}there is no saved memory"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), (), f"{READ_AGAIN}the saved memory cannot be read: "),
        (lambda path: None, ("--cache-size", "200"), f"{READ_AGAIN}the saved memory is of another cache size"),
        (lambda path: None, ("--cache-size", "300"), f"{READ_AGAIN}the saved memory is of another cache size"),
        (
            lambda path: None,
            ("other",),
            "note: the latest turns are read again from their words, since their tokens cannot be used",
        ),
    ],
    ids=["missing", "cut", "smaller cache", "larger cache", "another model"],
)
def test_memory_that_cannot_be_used_is_read_again_and_that_is_told(
    nursery: Nursery, tmp_path: Path, break_it: Callable[[Path], None], arguments: tuple[str, ...], told: str
) -> None:
    with talk_of(nursery, tmp_path) as talk:
        for line in SAID:
            say(talk, line)
        talk.type(CTRL_D)
        assert talk.status() == 0
    break_it(tmp_path / "sinkchat/sessions/x/memory.safetensors")
    with talk_of(nursery, tmp_path, *arguments, "--session", "x") as talk:
        assert [note[: len(told)] for note in notes(talk)] == [told]
        assert is_sane(say(talk, THEN[0])[0])
        found = SUMS.match(say(talk, "/memory")[0])
        turns = say(talk, "/turns")
        talk.type(CTRL_D)
        assert talk.status() == 0
    assert found is not None
    pinned, window, room, forgotten, seen = (int(number) for number in found.groups())
    assert pinned + window + forgotten == seen
    assert pinned + room == (int(arguments[1]) if len(arguments) == 2 else CAPACITY)
    assert int(turns[-1].split()[0]) == len(SAID) + 1
    with talk_of(nursery, tmp_path) as talk:  # now it is of the moment, the model and the size that it was left with
        assert notes(talk) == []


def test_in_a_pipe_too_what_is_read_again_is_told(nursery: Nursery, tmp_path: Path) -> None:
    arguments = ("run", "--input", "lines", "--session", "x", "--max-tokens", "8")
    Pipe(nursery, tmp_path, *arguments, stdin="hello\n")
    (tmp_path / "sinkchat/sessions/x/memory.safetensors").unlink()
    told = [Pipe(nursery, tmp_path, *arguments, stdin="hello\n").stderr.splitlines()[0] for _ in range(2)]
    cut = "note: the answer was cut at 8 tokens; max-tokens sets the limit"
    assert told == [f"{READ_AGAIN}there is no saved memory", cut]


def test_a_snapshot_of_another_moment_is_told(nursery: Nursery, tmp_path: Path) -> None:
    for kills in (False, True):
        with talk_of(nursery, tmp_path) as talk:
            say(talk, "hello")
            if not kills:
                talk.type(CTRL_D)
                talk.status()
    with talk_of(nursery, tmp_path) as talk:
        assert notes(talk) == [f"{READ_AGAIN}the saved memory is of another moment"]
        assert is_sane(say(talk, "and then")[0])


@pytest.mark.parametrize("arguments", [(), ("--session", "x")], ids=["unnamed", "named"])
@pytest.mark.parametrize("ground", ["read-only", "full"])
def test_on_bad_ground_one_note_says_what_happened_and_the_conversation_goes_on(
    nursery: Nursery, tmp_path: Path, ground: str, arguments: tuple[str, ...]
) -> None:
    with small_disk(tmp_path / "disk", nbytes=256 * 1024) as disk:
        if ground == "full":
            (disk / "filler").write_bytes(b"x" * 256 * 1024)
        else:
            disk.make_read_only()
        with talk_of(nursery, disk, "--no-history", *arguments) as talk:
            answers = [say(talk, line) for line in SAID[:3]]
            talk.type(CTRL_D)
            assert talk.status() == 0
            told = notes(talk)
    why = "read-only file system" if ground == "read-only" else "no space left on device"
    assert len(told) == 1, told
    assert told[0].startswith("note: this conversation is not being saved: "), told
    assert told[0].endswith(f"cannot be written: {why}"), told
    assert all(is_sane(rows[0]) for rows in answers)


def test_without_a_home_one_note_says_so_and_the_conversation_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    """The user database gives a home where the variable does not; where that is no folder, nothing can be kept."""
    (tmp_path / "file").touch()
    with talk_of(nursery, tmp_path, XDG_STATE_HOME="", HOME=str(tmp_path / "file")) as talk:
        assert is_sane(say(talk, "hello")[0])
        assert is_sane(say(talk, "and then")[0])
        told = [note for note in notes(talk) if "saved" in note]
        talk.type(CTRL_D)
        assert talk.status() == 0
    assert len(told) == 1, told
    assert told[0].startswith("note: this conversation is not being saved: "), told


def test_a_disk_that_fills_in_mid_chat_loses_nothing_once_there_is_room(nursery: Nursery, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", nbytes=256 * 1024) as disk:
        with talk_of(nursery, disk, "--no-history", "--session", "x") as talk:
            answers = [say(talk, line) for line in SAID[:3]]
            with suppress(OSError):
                (disk / "filler").write_bytes(b"x" * 256 * 1024)
            answers += [say(talk, line) for line in SAID[3:8]]
            full = notes(talk)
            (disk / "filler").unlink()
            answers += [say(talk, line) for line in SAID[8:]]
            freed = notes(talk)[len(full) :]
            talk.type(CTRL_D)
            assert talk.status() == 0
        past = past_of(disk)
        with talk_of(nursery, disk, "--no-history") as talk:
            assert notes(talk) == []
            assert is_sane(say(talk, THEN[0])[0])
    assert [note.endswith("cannot be written: no space left on device") for note in full] == [True], full
    assert freed == ["note: this conversation is saved again"]
    assert said_in(past) == [(line, rows[0]) for line, rows in zip(SAID, answers, strict=True)]


def test_a_disk_that_is_full_at_the_end_is_told_once_more_and_whole_turns_stay(
    nursery: Nursery, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", nbytes=64 * 1024) as disk:
        with talk_of(nursery, disk, "--no-history", "--session", "x") as talk:
            answers = [say(talk, line) for line in SAID[:3]]
            with suppress(OSError):
                (disk / "filler").write_bytes(b"x" * 64 * 1024)
            say(talk, SAID[3])
            talk.type(CTRL_D)
            assert talk.status() == 0
            assert "Traceback" not in talk.written
        assert said_in(past_of(disk))[:3] == [(line, rows[0]) for line, rows in zip(SAID[:3], answers, strict=True)]
        (disk / "filler").unlink()
        with talk_of(nursery, disk, "--no-history") as talk:
            assert is_sane(say(talk, "and then")[0])


def test_a_second_process_is_told_and_damages_nothing(nursery: Nursery, tmp_path: Path) -> None:
    with talk_of(nursery, tmp_path) as talk, Nursery() as others:
        say(talk, "hello")
        texts = {name: tmp_path / name for name in ("stdin", "stdout", "stderr")}
        texts["stdin"].write_text("hello too\n")
        others.begin("run", "--session", "x", home=tmp_path, **{name: str(path) for name, path in texts.items()})
        assert others.status() == 2
        assert texts["stdout"].read_text() == ""
        assert texts["stderr"].read_text().splitlines()[0] == (
            f"error: conversation x is open in another sinkchat (process {talk.process})"
        )
        say(talk, "and then")
    assert [user for user, _ in said_in(past_of(tmp_path))] == ["hello", "and then"]


def test_a_clock_that_jumped_back_breaks_nothing(nursery: Nursery, tmp_path: Path) -> None:
    with talk_of(nursery, tmp_path) as talk:
        say(talk, "hello")
        talk.type(CTRL_D)
        talk.status()
    later = time.time() + 400 * 24 * 3600
    for path in (tmp_path / "sinkchat/sessions/x").iterdir():
        os.utime(path, (later, later))
    for _ in range(2):
        with talk_of(nursery, tmp_path, "-c") as talk:
            assert notes(talk) == []
            say(talk, "and then")
            talk.type(CTRL_D)
            talk.status()
    assert [user for user, _ in said_in(past_of(tmp_path))] == ["hello", "and then", "and then"]


TURN_TOKENS = 229
"""a message of 200 letters, an answer of 8, and what the template puts around them"""


@dataclass(frozen=True)
class Burden:
    """What a process takes."""

    tokens: int
    resident: int
    descriptors: int
    on_disk: int

    @classmethod
    def of(cls, process: int, folder: Path, *, turns: int) -> "Burden":
        status = Path(f"/proc/{process}/status").read_text()
        resident = int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
        descriptors = len(list(Path(f"/proc/{process}/fd").iterdir()))
        on_disk = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
        return cls(turns * TURN_TOKENS, resident * 1024, descriptors, on_disk)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_million_tokens_in_a_pipe_take_no_more_of_anything_than_ten_thousand(
    nursery: Nursery, tmp_path: Path
) -> None:
    part_bytes, count = 128 * 1024, 1_000_000 // TURN_TOKENS + 1
    texts = {name: tmp_path / name for name in ("stdin", "stdout", "stderr")}
    draws = random.Random(1)
    lines = ["".join(draws.choices(LETTERS, k=200)) for _ in range(40)]  # a tokenizer keeps the latest 10,000 words
    texts["stdin"].write_text("".join(f"{draws.choice(lines)}\n" for _ in range(count)))
    texts["stdout"].touch()
    arguments = ("run", "--input", "lines", "--session", "x", "--max-tokens", "8", "--quiet")
    places = {name: str(path) for name, path in texts.items()}
    process = nursery.begin(*arguments, home=tmp_path, PART_BYTES=str(part_bytes), **places)
    folder = tmp_path / "sinkchat/sessions/x"
    burdens: list[Burden] = []
    while (turns := texts["stdout"].read_text().count("\n\n")) < count - 20:
        if turns * TURN_TOKENS >= 10_000 * (1 if not burdens else 10 * len(burdens)):
            with suppress(FileNotFoundError):  # a part was dropped meanwhile
                burdens.append(Burden.of(process, folder, turns=turns))
        time.sleep(0.05)
    burdens.append(Burden.of(process, folder, turns=turns))
    assert nursery.status() == 0
    print(*burdens, sep="\n")
    first, *later = burdens
    assert later[-1].tokens > 990_000
    assert {burden.descriptors for burden in later} == {first.descriptors}
    assert max(burden.on_disk for burden in later) < 7 * part_bytes
    assert max(burden.resident for burden in later) < first.resident + 4 * 2**20
    past = past_of(tmp_path)
    assert past.transcript.count == count
    with talk_of(nursery, tmp_path) as talk:
        assert notes(talk) == []
        assert sums(say(talk, "/memory")[0])["seen"] > 1_000_000
        assert is_sane(say(talk, "and then")[0])


def test_a_conversation_whose_device_was_lost_ends_with_one_line_and_goes_on_elsewhere(
    nursery: Nursery, tmp_path: Path
) -> None:
    with talk_of(nursery, tmp_path) as talk:
        for line in SAID[:3]:
            say(talk, line)
        talk.type("lose the device\r")
        assert talk.status() == 4
        (error,) = [row for row in talk.all_rows if "CUDA" in row]
        assert error == "error: the device failed: CUDA error: unspecified launch failure"
    past = past_of(tmp_path)
    assert [user for user, _ in said_in(past)] == [*SAID[:3], "lose the device"]
    assert said_in(past)[-1][1]
    with talk_of(nursery, tmp_path) as talk:
        assert is_sane(say(talk, "and then")[0])
