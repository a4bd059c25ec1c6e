"""Keys, without a terminal: what Enter, Ctrl-C, pastes and the history do to the line."""

from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from sinkchat.terminal.keyboard import PASTE_CHARACTERS, Keyboard, open_keyboard

PASTE, PASTED = "\x1b[200~", "\x1b[201~"


def typed(keys: str, *, draft: str = "", history: Path | None = None, leaves: bool = False) -> str:
    with create_pipe_input() as terminal:
        keyboard = Keyboard(history=history, leaves=lambda: leaves, keys_from=terminal, drawn_on=DummyOutput())
        terminal.send_text(keys)
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
        typed("draft\x03", leaves=True)
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
