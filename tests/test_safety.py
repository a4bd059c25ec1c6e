"""No string from outside steers the terminal, wherever it comes in: the whole program, and hostile text everywhere.

Two computations. What reached the stream, less the sequences that the program itself writes, has no forbidden
character left. And without colour it is, to the letter, what comes out when the same text is written out beforehand:
so nothing of it can hide among our own sequences, and the written-out form stands where the text does.
"""

import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output
from scripted import ScriptedConversation, ScriptedExchange
from terminals import at_the_prompt
from test_terminal_sanitize import UNSAFE
from worlds import Terminal, environment

from sinkchat.chat.events import Event
from sinkchat.chat.options import ModelCard, Weight
from sinkchat.cli import main
from sinkchat.errors import CacheFull, ModelNotFound
from sinkchat.terminal.drawing.choice import PanelChoice
from sinkchat.terminal.drawing.frames import Frames
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.person import Look, PersonView
from sinkchat.terminal.line.completion import paths
from sinkchat.terminal.line.folding import Folds, TextFile
from sinkchat.terminal.line.keyboard import Keyboard
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.sanitize import visible
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.slash.clipboard import TerminalClipboard
from sinkchat.terminal.slash.desk import Desk

OURS = re.compile(
    r"\x1b\[(?:(?:[0-9]|3[0-7]|9[0-7])(?:;(?:[0-9]|3[0-7]|9[0-7]))*)?m"  # styles: of the sixteen colours at most
    r"|\x1b\[\?(?:2026|25|7|2004)[hl]"  # synchronised update, cursor, wrapping, bracketed paste
    r"|\x1b\[[JK]|\r\x1b\[2K"  # erase below, to the right, the line
    r"|\x1b\[[0-9]*[ACE]|\x1b[78D]"  # up, right, next line, save, restore, down
    r"|\x1b\]52;c;[A-Za-z0-9+/=]*\x1b\\"  # /copy, on a terminal without a clipboard program
)
"""every sequence that the program writes"""

ATTACKS = (
    "\x1b[2J", "\x1b[31;48;5;99m", "\x1b]52;c;aGk=\x07", "\x1b]8;;https://x.y\x1b\\", "\x1b]0;title\x07", "\x1bc",
    "\x1bP1$r0m\x1b\\", "\x9b2J", "\x9d52;c;aGk=\x9c", "\x00", "\r", "\x08", "\x7f", "\x85", "\x0c", "\x0b", "\x0e",
    "\u202e", "\u202d", "\u2066", "\u2069", "\U000e0041", "\U000e007f", "\ud800", "\udcff", "\x1b", "\x9b", "\x90",
)  # fmt: skip
HARMLESS = (
    "a", "word ", "é", "😀", "漢", "\n", "\t", "**", "*", "`", "```", "# ", "- ", "> ", "|", "[x](", ")", "\\",
    "[/INST]", "[bold]", "&#27;", "&#x202e;", "\\x1b", "<b>", "2J", "m",
)  # fmt: skip
HOSTILE = st.lists(
    st.sampled_from(ATTACKS) | st.sampled_from(HARMLESS) | st.characters(codec=None, exclude_categories=()),
    min_size=1,
    max_size=12,
).map("".join)
everyday = settings(deadline=None, max_examples=40)
SIZES = st.sampled_from([(80, 24), (140, 40), (50, 10), (20, 6), (66, 16)])


@st.composite
def pieces(draw: st.DrawFn) -> list[str]:
    """A hostile text, cut anywhere: also within a sequence."""
    text = draw(HOSTILE)
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=6))})
    return [text[start:stop] for start, stop in pairwise(cuts)]


def leaked(written: str) -> set[str]:
    """Forbidden characters that are not part of our own sequences."""
    return {character for character in OURS.sub("", written) if ord(character) in UNSAFE}


class Lines:
    """Types one line after the other, then Ctrl-D."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = iter(lines)
        self.drafts: list[str] = []

    def read(self, draft: str = "") -> str:
        self.drafts.append(draft)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


class Hostile(ScriptedConversation):
    """A conversation in which whatever is a text is `text`: metadata, notices, what was said, what is held."""

    def __init__(self, text: str, answer: list[str]) -> None:
        self._text = ""
        super().__init__(lambda _: list(answer), capacity=40, notices=(text,))
        self._text = text
        self.card = ModelCard(text, text, text, text, 4096)
        self.sources = {"temperature": text, "seed": "flag"}
        list(self.read(text, text))
        self.turns[-1].user = self.turns[-1].answer = self.system = text
        self.fails = [CacheFull(text, hint=text)]

    def said(self, turn: int) -> ScriptedExchange:
        super().said(turn)
        return ScriptedExchange(self._text, self._text)

    def weigh(self, text: str) -> Weight:
        """The same for every text: blanks, by which words are counted, are not all blanks when written out."""
        return Weight(9, (1,))

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        yield from super().read("a b c d e f", "g h i")

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        yield from super().send(visible("".join(text)))

    def pinned_text(self) -> str:
        return self._text

    def window_text(self) -> str:
        return self._text


def conversed(
    conversation: ScriptedConversation,
    lines: list[str],
    *,
    color: bool,
    size: tuple[int, int] = (80, 24),
    look: Look | None = None,
) -> tuple[str, list[str]]:
    """What the prompt loop wrote, and the drafts that it put on the line."""
    clear()
    stream = Terminal()
    ticks = iter(range(1_000_000))

    def clock() -> float:
        return next(ticks) * 0.04

    screen = Screen(stream, color=color, cursor=True, clock=clock)
    desk = Desk(
        lambda: conversation,
        clipboard=TerminalClipboard(stream),
        panel=PanelChoice("full"),
        columns=lambda: size[0],
        color=color,
    )
    view = PersonView(
        screen,
        gauge=Gauge(clock=clock),
        choice=desk.panel,
        look=look or Look(),
        size=lambda: os.terminal_size(size),
        clock=clock,
    )
    person = Lines(lines)
    Repl(desk, screen=screen, view=view, clock=clock).run(person)
    return stream.getvalue(), person.drafts


COMMANDS = ["/memory", "/turns", "/see", "/see edge", "/recall 1", "/pin 1", "/pin", "/system", "/set", "/render"]
COMMANDS += [
    "/save chat.jsonl",
    "/export chat.md",
    "/stats",
    "/copy",
    "/copy code",
    "/edit 1",
    "/unpin 1",
    "/retry",
    "/undo",
    "/edit",
]
WITH_TEXT = ["/file", "/load", "/save", "/export", "/set", "/set stop", "/panel", "/see", "/system", "/pin", "/unpin"]
WITH_TEXT += ["/recall", "/copy", "/undo", "/help", "/x"]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands write files here."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("safety"))
    yield
    os.chdir(before)


LOOKS = (Look(), Look(is_accessible=True, has_stats=True), Look(is_ascii=True, has_markdown=False))


@everyday
@given(HOSTILE, pieces(), SIZES, st.sampled_from(LOOKS))
def test_nothing_hostile_reaches_the_screen_of_a_conversation(
    text: str, answer: list[str], size: tuple[int, int], look: Look
) -> None:
    for color in (True, False):
        shown, _ = conversed(Hostile(text, answer), script(text), color=color, size=size, look=look)
        assert not leaked(shown)


@everyday
@given(HOSTILE, pieces(), SIZES, st.sampled_from(LOOKS))
def test_hostile_text_is_shown_as_the_same_text_written_out(
    text: str, answer: list[str], size: tuple[int, int], look: Look
) -> None:
    shown, drafts = conversed(Hostile(text, answer), script(text), color=False, size=size, look=look)
    out, written_out = visible(text), [visible(piece) for piece in answer]
    again, drafts_again = conversed(Hostile(out, written_out), script(out), color=False, size=size, look=look)
    assert shown == again
    assert [visible(draft) for draft in drafts] == drafts_again


def test_without_the_filter_the_check_finds_every_attack() -> None:
    """The control: the stage takes text that is visible already, and here it is not."""
    for attack in ATTACKS:
        stream = Terminal()
        with Frames(
            stream, lambda *_: ["footer"], size=lambda: os.terminal_size((80, 24)), clock=lambda: 0.0
        ) as stage:
            stage.write(f"a{attack}b")
        assert leaked(stream.getvalue()), attack


def script(text: str) -> list[str]:
    """Lines that have the conversation's texts shown in every way there is."""
    return [text, text, *COMMANDS, *(f"{command} {text}" for command in WITH_TEXT), "/load chat.jsonl", *COMMANDS]


def clear() -> None:
    """Removes what commands wrote: they write over nothing."""
    for entry in os.scandir("."):
        if entry.is_file(follow_symlinks=False):
            os.unlink(entry)


def ran(arguments: list[str], text: str, **world: object) -> tuple[str, str]:
    """What `sinkchat ARGUMENTS` wrote to stdout and stderr, which are terminals, with a hostile conversation."""
    stdout, stderr = Terminal(), Terminal()
    conversation = Hostile(text, [text])
    conversation.fails.clear()

    def start(request: object, progress: Callable[[str], None]) -> ScriptedConversation:
        progress(text)
        if (fault := world.get("fault")) is not None:
            raise fault  # type: ignore[misc]
        return conversation

    main(
        arguments,
        environment=environment(
            io.BytesIO(world.get("stdin", b"")),  # type: ignore[arg-type]
            stdout=stdout,
            stderr=stderr,
            variables=world.get("variables", {}),  # type: ignore[arg-type]
            config_folder=world.get("config", Path("/nonexistent")),  # type: ignore[arg-type]
        ),
        start=start,
    )
    return stdout.getvalue(), stderr.getvalue()


@everyday
@given(HOSTILE, st.sampled_from(["text", "lines", "jsonl"]), st.sampled_from(["text", "jsonl"]), st.booleans())
def test_nothing_hostile_passes_a_pipe(text: str, form: str, output: str, color: bool) -> None:
    stdin = json.dumps({"role": "user", "content": text}) if form == "jsonl" else text
    arguments = ["run", "--input", form, "--format", output, "-v", f"--system={text}"]
    arguments += ["--color", "always" if color else "never", "--", "m", text]
    stdout, stderr = ran(arguments, text, stdin=encoded(stdin))
    assert not leaked(stdout)
    assert not leaked(stderr)
    if output == "text" and text.strip():
        assert visible(text).strip("\n") in OURS.sub("", stdout)


def encoded(text: str) -> bytes:
    """The text as it may lie in a file: with bytes that are no UTF-8, for the surrogates that can stand for some."""
    return "".join(
        "?" if 0xD800 <= ord(sign) < 0xDC80 or 0xDD00 <= ord(sign) < 0xE000 else sign for sign in text
    ).encode(errors="surrogateescape")


BROKEN = st.sampled_from(
    ['{{"role": "{0}", "content": "x"}}', "{0}", '{{"{0}": 1}}', '{{"role": "user", "content": {0}}}']
)


@everyday
@given(HOSTILE, BROKEN)
def test_nothing_hostile_is_in_what_is_said_of_broken_input(text: str, line: str) -> None:
    for out in ran(["run", "m", "--input", "jsonl"], text, stdin=encoded(line.format(text))):
        assert not leaked(out)


FAULTS: list[Callable[[str], Exception]] = [
    lambda text: ModelNotFound(text, hint=text),
    ValueError,
    OSError,
    lambda text: OSError(2, text, text),
    KeyError,
]


@everyday
@given(HOSTILE, st.sampled_from(FAULTS), st.sampled_from(["", "1"]))
def test_nothing_hostile_is_in_an_error(text: str, fault: Callable[[str], Exception], debug: str) -> None:
    for out in ran(["run", "m", "hi"], text, fault=fault(text), variables={"SINKCHAT_DEBUG": debug}):
        assert not leaked(out)


OPTIONS = ["--cache-size", "--sinks", "--evict", "--policy", "--temperature", "--seed", "--stop", "--system-file"]
OPTIONS += ["--chat-template", "--quant", "--device", "--input", "--color", "--nonsense"]


@everyday
@given(HOSTILE, st.sampled_from(OPTIONS))
def test_nothing_hostile_is_in_what_is_said_of_an_option(text: str, option: str) -> None:
    for arguments in (["run", "m", "hi", option, text], ["run", text], [text], ["run", f"--{text}"]):
        for out in ran(arguments, text):
            assert not leaked(out)
    variable = f"SINKCHAT_{option[2:].replace('-', '_').upper()}"
    for out in ran(["run", "m", "hi"], text, variables={variable: text, "TERM": text, "SINKCHAT_COLOR": "always"}):
        assert not leaked(out)


CONFIGS = st.sampled_from(
    ['"{0}" = 1', 'system = "{0}"\ncache-size = "{0}"', "{0}", '["{0}"]\na = 1', "stop = [1, '{0}']"]
)


@everyday
@given(HOSTILE, CONFIGS)
def test_nothing_hostile_is_in_what_is_said_of_a_config_file(text: str, config: str) -> None:
    escaped = "".join(f"\\U{ord(sign):08x}" if not 0xD800 <= ord(sign) < 0xE000 else "x" for sign in text)
    for content in (config.format(text), config.format(escaped)):
        folder = Path(tempfile.mkdtemp(dir=".", prefix="\x1b[2J"))
        (folder / "config.toml").write_text(content, encoding="utf-8", errors="replace")
        for arguments in (["run", "m", "hi"], ["run", "m", "hi", "-v"]):
            for out in ran(arguments, text, config=folder):
                assert not leaked(out)


@everyday
@given(HOSTILE, HOSTILE)
def test_nothing_hostile_is_in_a_file_or_its_name(name: str, content: str) -> None:
    """A name cannot be typed so, but it is near one that can, or its folder is listed."""
    clear()
    named = encoded(name.replace("/", "-").replace("\x00", "\x01"))[:200]
    Path(os.fsdecode(b"notes" + named)).write_text(content, encoding="utf-8", errors="replace")
    Path("notes.txt").write_text(content, encoding="utf-8", errors="replace")
    Path("chat.jsonl").write_text(json.dumps({"role": "user", "content": content}), encoding="utf-8")
    lines = [
        f"/file notes{visible(name)}",
        "/file notes",
        "/load notes",
        "/load notes.txt",
        "/file notes.txt",
        "/load chat.jsonl",
    ]
    shown, drafts = conversed(ScriptedConversation(), lines, color=False)
    assert not leaked(shown)
    assert not leaked("".join(drafts))
    assert not leaked("".join(paths("./", "")))
    attached = Folds().attached(TextFile(name, content, 0))
    assert not leaked(attached)


DRAWN = re.compile(
    OURS.pattern
    + r"|\x1b\[\?(?:12|1)[hl]|\x1b\[[0-9]*[BD]|[\r\x08]"  # a blinking cursor, cursor keys, down, left, back
)
"""what prompt_toolkit writes besides"""


def drawn_of(typed: str, pasted: str) -> tuple[str, str]:
    """The line that is read, and what is drawn for it, toolbar and all."""
    drawn = io.StringIO()
    output = Vt100_Output(drawn, lambda: Size(rows=24, columns=80), term="xterm-256color", enable_bell=False)
    with create_pipe_input() as keys:
        keyboard = Keyboard(keys_from=keys, drawn_on=output, toolbar=lambda columns: pasted)
        keys.send_text(f"{typed}\x1b[200~{pasted}\x1b[201~\r")
        return keyboard.read("draft "), drawn.getvalue()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if not 0xD800 <= ord(attack[0]) < 0xE000])
def test_nothing_hostile_is_drawn_on_the_line(attack: str) -> None:
    typed = attack if ord(attack[0]) >= 0x80 else "a"  # the others are keys
    line, drawn = drawn_of(typed, f"x{attack}y")
    assert line == f"draft {visible(typed)}{visible(f'x{attack}y'.replace(chr(13), chr(10)))}"
    assert not {sign for sign in DRAWN.sub("", drawn) if ord(sign) in UNSAFE}


def test_what_a_terminal_gets_of_hostile_keys(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        before = len(program.raw)
        program.type("a\u202eb\u2066\U000e0041\x9b2J\x1b[200~\u202e\x1b[2J\x07\x1b[201~c")
        assert program.shows("a\\u202eb\\u2066\\U000e0041\\x9b2J\\u202e\\x1b[2J\\x07c")
        program.type("\r")
        assert program.shows("you said: a\\u202eb")
        written = program.raw[before:].decode()
    assert not {sign for sign in DRAWN.sub("", written) if ord(sign) in UNSAFE}
