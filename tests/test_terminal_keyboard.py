"""Keys, without a terminal and on one: what they do to the line, what stands below it, who may speak above it."""

import os
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import DummyOutput

from sinkchat.chat.options import Weight
from sinkchat.errors import ModelNotFound
from sinkchat.terminal.line.folding import PASTE_CHARACTERS, TextFile
from sinkchat.terminal.line.keyboard import Keyboard, open_keyboard
from sinkchat.terminal.slash import commands

TESTS = Path(__file__).parent
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
LEFT, BACKSPACE, DELETE, HOME, UP = "\x1b[D", "\x7f", "\x1b[3~", "\x01", "\x1b[A"


@contextmanager
def at_keys(**options: Any) -> Iterator[tuple[Keyboard, Callable[[str], None]]]:
    """A keyboard, and what presses its keys."""
    with create_pipe_input() as terminal:
        yield Keyboard(keys_from=terminal, drawn_on=DummyOutput(), **options), terminal.send_text


def typed(keys: str, *, draft: str = "", **options: Any) -> str:
    with at_keys(**options) as (keyboard, press):
        press(keys)
        return keyboard.read(draft)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("one\ntwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ('"""one\rtwo\r"""\r', "one\ntwo"),
        ('"""one"""\r', "one"),
        ('say """ three\r', 'say """ three'),
        ('""""\r"""\r', '"'),
        ("wrong\x03right\r", "right"),
        (f"{PASTE}a\r\nb\rc{PASTED}\r", "a\nb\nc"),
        ("q\r", "q"),
        ("/etc/passwd is a file\r", "/etc/passwd is a file"),
    ],
)
def test_what_is_typed(keys: str, text: str) -> None:
    assert typed(keys) == text


def test_a_draft_stands_on_the_line() -> None:
    assert typed(" and more\r", draft="this") == "this and more"


def test_a_large_draft_comes_back_whole() -> None:
    draft = "x" * (PASTE_CHARACTERS + 1)
    assert typed("!\r", draft=draft) == f"{draft}!"


def test_two_large_pastes_are_sent_whole() -> None:
    first, second = "a" * 10_000, "b" * 10_000
    assert typed(f"1 {PASTE}{first}{PASTED} 2 {PASTE}{second}{PASTED}\r") == f"1 {first} 2 {second}"


def test_ctrl_c_on_an_empty_line_is_handed_on_and_ctrl_d_ends() -> None:
    with pytest.raises(KeyboardInterrupt):
        typed("\x03")
    with pytest.raises(KeyboardInterrupt):
        typed("draft\x03", leaves=lambda: True)
    with pytest.raises(EOFError):
        typed("\x04")


def test_the_history_is_private_and_has_no_placeholder(tmp_path: Path) -> None:
    history = tmp_path / "deep" / "history"
    history.parent.mkdir(mode=0o755)
    history.touch(mode=0o644)
    typed("hello\r", history=history)
    typed(f"see {PASTE}{'x' * 10_000}{PASTED}\r", history=history)
    assert [line for line in history.read_text().splitlines() if line.startswith("+")] == ["+hello"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_kept_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    notes: list[str] = []
    open_keyboard(
        history=tmp_path / "file" / "history", note=notes.append, leaves=lambda: False, color=False, terminal=None
    )
    assert notes == [f"typed lines are not kept in {tmp_path}/file/history: file exists"]


def lines(count: int, word: str = "line") -> str:
    return "".join(f"{word} {number}\n" for number in range(count))


def test_a_long_paste_is_deleted_as_a_whole() -> None:
    paste = f"{PASTE}{lines(20)}{PASTED}"
    assert typed(f"a {paste}{BACKSPACE}b\r") == "a b"
    assert typed(f"a {paste}\x17b\r") == "a b"
    assert typed(f"a{paste}{HOME}\x1b[C{DELETE}b\r") == "ab"
    assert typed(f"a{paste}b{BACKSPACE}\r") == f"a{lines(20)}"


def test_a_paste_that_was_typed_into_is_what_it_looks_like() -> None:
    assert typed(f"{PASTE}{lines(20)}{PASTED}{LEFT}!\r") == "[pasted 20 lines, 150 characters!]"


def test_a_paste_cannot_steer_the_terminal() -> None:
    assert typed(f"{PASTE}a\x1b[2J\u202eb{PASTED}\r") == "a\\x1b[2J\\u202eb"


def test_three_quotes_inside_a_long_paste_belong_to_it() -> None:
    paste = '"""\n' + lines(20) + '"""'
    assert typed(f"{PASTE}{paste}{PASTED}\r") == paste


def test_a_message_that_comes_back_stands_as_it_was_typed() -> None:
    with at_keys() as (keyboard, press):
        press(f"see {PASTE}{lines(20)}{PASTED}\r")
        message = keyboard.read()
        press(f"{BACKSPACE}nothing\r")
        assert keyboard.read(message) == "see nothing"


def test_a_file_stands_in_the_draft() -> None:
    with at_keys(weigh=lambda text: Weight(7, (4,))) as (keyboard, press):
        placeholder = keyboard.attached(TextFile("a.txt", "the text", 0))
        assert placeholder == "[file a.txt: 1 line, 7 tokens: pushes out turn 4]"
        press(" what is it?\r")
        assert keyboard.read(placeholder) == "the text what is it?"


def test_pastes_come_back_through_the_history_and_short_ones_in_the_next_run(tmp_path: Path) -> None:
    history, long, short = tmp_path / "history", "x" * 5_000, lines(20)
    with at_keys(history=history) as (keyboard, press):
        press(f"1 {PASTE}{short}{PASTED}\r2 {PASTE}{long}{PASTED}\r")
        assert [keyboard.read(), keyboard.read()] == [f"1 {short}", f"2 {long}"]
        press(f"{UP}\r")
        assert keyboard.read() == f"2 {long}"
        press(f"{UP}{UP}!\r")
        assert keyboard.read() == f"1 {short}!"
    assert typed(f"{UP}\r", history=history) == f"1 {short}!"
    assert "xxx" not in history.read_text()
    assert "pasted" not in history.read_text()


def test_vi_keys_edit_the_line() -> None:
    assert typed("hello word\x1bil\x1b0x\r", vi=True) == "ello world"


def test_keys_typed_ahead_come_first_and_in_order() -> None:
    with create_pipe_input() as terminal:
        keys = [KeyPress("o"), KeyPress("n"), KeyPress("e"), KeyPress(Keys.ControlM, "\r"), KeyPress("t")]
        store_typeahead(terminal, keys)
        keyboard = Keyboard(keys_from=terminal, drawn_on=DummyOutput())
        assert keyboard.keys_from is terminal
        terminal.send_text("wo\r")
        assert [keyboard.read(), keyboard.read()] == ["one", "two"]


def test_f2_changes_the_panel_and_the_line_stays() -> None:
    pressed: list[str] = []
    assert typed("a\x1bOQb\r", on_panel_key=lambda: pressed.append("F2")) == "ab"
    assert pressed == ["F2"]


def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes" / "of today.txt").touch()
    (tmp_path / "my notes" / "evil\x1b[2J").touch()
    (tmp_path / ".hidden").touch()
    with at_keys(words=commands.completions, path_commands={"file"}) as (keyboard, press):
        for keys, line in (
            ("/file ~/m\t\x1b[C", "/file ~/my notes/"),
            ("/file ~/my notes/o\t", "/file ~/my notes/of today.txt"),
            (f"/file {tmp_path}/my notes/e\t", f"/file {tmp_path}/my notes/e"),
            ("/file ~/.h\t", "/file ~/.hidden"),
            ("/save ~/m\t", "/save ~/m"),
            ("look at ~/m\t", "look at ~/m"),
            ("/mem\t", "/memory"),
        ):
            press(keys)
            threading.Timer(0.05, press, ["\r"]).start()
            assert keyboard.read() == line


@pytest.mark.parametrize("keys", ["\x18\x05", "\x07"])
def test_the_editor_gets_the_line_whole(keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "an editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" \'{tmp_path}/seen\'; sed -i s/about/on/ "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", f"'{editor}'")
    with at_keys() as (keyboard, press):
        press(f"about {PASTE}{lines(20)}{PASTED}{keys}")
        threading.Timer(0.5, press, [f"{BACKSPACE}it\r"]).start()
        assert keyboard.read() == "on it"  # the paste was a placeholder again
    assert (tmp_path / "seen").read_text() == f"about {lines(20)}"


def test_an_editor_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "no-such-editor")
    notes: list[str] = []
    with at_keys(note=notes.append) as (keyboard, press):
        press("text\x07")
        threading.Timer(0.3, press, ["\r"]).start()
        assert keyboard.read() == "text"
    hint = "export VISUAL=nano, or whichever you like"
    assert notes == [f"the editor no-such-editor cannot be started: no such file or directory; {hint}"]


def test_an_error_ends_the_open_prompt_and_nothing_typed_is_lost() -> None:
    with at_keys() as (keyboard, press):
        press(f"a long {PASTE}{lines(20)}{PASTED}")
        threading.Timer(0.2, keyboard.abort, [ModelNotFound("no such model")]).start()
        with pytest.raises(ModelNotFound):
            keyboard.read()
        assert keyboard.unsent == f"a long {lines(20)}"


def test_an_error_before_the_prompt_ends_it_at_once() -> None:
    with at_keys() as (keyboard, _):
        keyboard.abort(ModelNotFound("no such model"))
        with pytest.raises(ModelNotFound):
            keyboard.read()


def test_what_is_announced_is_said_once_wherever_the_prompt_is() -> None:
    said: list[str] = []
    with at_keys() as (keyboard, press):
        keyboard.announce(lambda: said.append("before"))
        assert said == ["before"]
        threading.Timer(0.1, keyboard.announce, [lambda: said.append("meanwhile")]).start()
        threading.Timer(0.3, press, ["hi\r"]).start()
        assert keyboard.read() == "hi"
        keyboard.announce(lambda: said.append("after"))
    assert said == ["before", "meanwhile", "after"]


def test_the_toolbar_is_drawn_again_only_while_it_changes() -> None:
    drawn: list[float] = []
    changes = iter([True] * 4)
    rest: list[float] = []  # from when on it has not changed, until the line is done

    def toolbar(columns: int) -> str:
        drawn.append(time.monotonic())
        return f"{columns} columns"

    def is_changing() -> bool:
        if next(changes, False):
            return True
        if not rest:
            rest.append(time.monotonic())
            threading.Timer(0.5, keyboard.refresh).start()
            threading.Timer(0.9, enter).start()
        return False

    def enter() -> None:
        rest.append(time.monotonic())
        press("\r")

    with at_keys(toolbar=toolbar, is_changing=is_changing) as (keyboard, press):
        keyboard.read()
    changing, idle, refreshed = (
        [at for at in drawn if start <= at < stop]
        for start, stop in ((0, rest[0] + 0.15), (rest[0] + 0.15, rest[0] + 0.5), (rest[0] + 0.5, rest[1]))
    )
    assert 3 <= len(changing) <= 9
    assert idle == []
    assert len(refreshed) == 1


class OnTerminal:
    """A program of a few lines that reads one message, on a terminal of 24 rows and 80 columns."""

    def __init__(self, options: str, folder: Path, **variables: str) -> None:
        before = "import threading, time; from sinkchat.terminal.line.keyboard import Keyboard\n"
        program = f"{before}keyboard = Keyboard({options}\nprint('read', repr(keyboard.read()[:60]))"
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TESTS.parent), "TERM": "xterm-256color", **variables},
            dimensions=(24, 80),
            timeout=20,
        )
        self.child.delaybeforesend = None

    def shows(self, *rows: str, seconds: float = 20) -> bool:
        """Waits until the screen holds these rows, and no others that are not blank."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if [row.rstrip() for row in self.screen.display if row.strip()] == list(rows):
                return True
            with suppress(pexpect.TIMEOUT, pexpect.EOF):
                data = self.child.read_nonblocking(65_536, timeout=0.05)
                self.raw += data
                self._stream.feed(data)
        return False


def test_the_toolbar_stands_below_the_line_and_goes_with_it(tmp_path: Path) -> None:
    program = OnTerminal("toolbar=lambda columns: f'{columns} \\x1b[31m' + 'x' * 100)", tmp_path)
    bar = f"80 \\x1b[31m{'x' * 69}"
    assert program.shows(">", bar), program.screen.display
    program.child.send("hi")
    assert program.shows("> hi", bar)
    program.child.send("\x0c")  # Ctrl-L
    assert program.shows("> hi", bar)
    program.child.send("\r")
    assert program.shows("> hi", "read 'hi'")
    assert b"\x1b[6n" not in program.raw  # the terminal is asked nothing


@pytest.mark.parametrize(("color", "dress"), [(True, {b"0", b"0;2"}), (False, {b"0"})])
def test_the_toolbar_is_dim_and_without_colour_plain(color: bool, dress: set[bytes], tmp_path: Path) -> None:
    program = OnTerminal(f"color={color}, toolbar=lambda columns: 'below')", tmp_path)
    assert program.shows(">", "below")
    assert set(re.findall(rb"\x1b\[([0-9;]*)m", program.raw)) == dress


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_an_announcement_stands_above_what_is_being_typed(terminal: str, tmp_path: Path) -> None:
    later = "threading.Timer(1, keyboard.announce, [lambda: print('loaded')]).start()"
    program = OnTerminal(f")\n{later}", tmp_path, TERM=terminal)
    assert program.shows(">")
    time.sleep(0.2)  # on a dumb terminal the prompt is written before echo is off, unless one is `Quiet`
    program.child.send("hal")
    assert program.shows("> hal")
    assert program.shows("loaded", "> hal") if terminal != "dumb" else program.shows("> hal", "loaded", "> hal")
    program.child.send("lo\r")
    above = ["loaded"] if terminal != "dumb" else ["> hal", "loaded"]
    assert program.shows(*above, "> hallo", "read 'hallo'")


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_a_failed_load_ends_the_prompt_and_leaves_the_terminal_as_it_was(terminal: str, tmp_path: Path) -> None:
    later = "threading.Timer(1, keyboard.abort, [SystemExit(3)]).start()"
    program = OnTerminal(f")\n{later}", tmp_path, TERM=terminal)
    before = termios.tcgetattr(program.child.child_fd)
    assert program.shows(">")
    program.child.send("hal")
    assert program.shows("> hal")
    program.child.expect(pexpect.EOF)
    assert termios.tcgetattr(program.child.child_fd) == before
    program.child.close()
    assert program.child.exitstatus == 3


def test_the_editor_gets_the_terminal_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "editor").write_text("#!/bin/sh\nstty -g > modes\nprintf ' edited' >> $1\n")
    (tmp_path / "editor").chmod(0o700)
    program = OnTerminal(")", tmp_path, VISUAL=str(tmp_path / "editor"))
    assert program.shows(">")
    program.child.send("text\x07")
    assert program.shows("> text edited")
    program.child.send("!\r")
    assert program.shows("> text edited!", "read 'text edited!'")
    program.child.expect(pexpect.EOF)
    modes = subprocess.check_output(["stty", "-g"], stdin=program.child.child_fd, text=True)
    assert (tmp_path / "modes").read_text() == modes


def test_a_long_paste_appears_at_once_however_long_it_is(tmp_path: Path) -> None:
    program = OnTerminal("history=None)", tmp_path)
    assert program.shows(">")
    text = "word " * 2_000_000
    writer = threading.Thread(target=program.child.send, args=[f"{PASTE}{text}{PASTED}"])
    began = time.monotonic()
    writer.start()
    assert program.shows("> [pasted 1 line, 10,000,000 characters]")
    assert time.monotonic() - began < 10  # 0.8 s measured; 42 s with the parser of prompt_toolkit
    writer.join()
    program.child.send("\r")
    assert program.shows("> [pasted 1 line, 10,000,000 characters]", f"read '{text[:60]}'")


def test_ctrl_z_suspends(tmp_path: Path) -> None:
    program = pexpect.spawn("bash", ["--norc", "-i"], cwd=tmp_path, dimensions=(24, 80), timeout=20, echo=False, env={
        **os.environ, "PYTHONPATH": str(TESTS.parent), "TERM": "xterm-256color", "PS1": "$ ",
    })  # fmt: skip
    code = "from sinkchat.terminal.line.keyboard import Keyboard; print(Keyboard().read() * 2)"
    program.sendline(f'{sys.executable} -c "{code}"')
    program.expect(">")
    program.send("ab\x1a")
    program.expect("Stopped")
    program.sendline("fg")
    program.expect("ab")
    program.send("c\r")
    program.expect("abcabc")
    program.close(force=True)
