"""Typing while the model answers, on a terminal of this process's own."""

import os
import pty
import signal
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from prompt_toolkit.input import create_input, create_pipe_input
from prompt_toolkit.output import DummyOutput

from sinkchat.terminal.line.keyboard import Keyboard
from sinkchat.terminal.line.quiet import Quiet
from sinkchat.terminal.line.typeahead import KeptKeys, NoTypeAhead, typeahead_on


@dataclass
class Desk:
    """A person at a terminal: what they type, and what the terminal shows of it by itself."""

    person: int
    device: int
    keyboard: Keyboard
    told: StringIO = field(default_factory=StringIO)
    f2_presses: int = 0

    def type(self, keys: str | bytes) -> None:
        os.write(self.person, keys if isinstance(keys, bytes) else keys.encode())
        time.sleep(0.02)  # the driver passes it on

    def press_f2(self) -> None:
        self.f2_presses += 1

    def typeahead(self) -> KeptKeys:
        return KeptKeys(self.keyboard.keys_from, self.told, on_f2=self.press_f2)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.device)

    def prompt(self, keys: str | bytes = "") -> str:
        """The line that is sent at the prompt when `keys` are typed there."""
        attributes = self.settings()
        attributes[0] &= ~termios.ICRNL
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self.device, termios.TCSANOW, attributes)
        self.type(keys)
        return self.keyboard.read()


@pytest.fixture
def desk() -> Iterator[Desk]:
    person, device = pty.openpty()
    with open(device, encoding="utf-8", closefd=False) as stdin:
        yield Desk(person, device, Keyboard(keys_from=create_input(stdin), drawn_on=DummyOutput()))
    os.close(person)
    os.close(device)


def test_what_is_typed_stands_at_the_next_prompt(desk: Desk) -> None:
    with desk.typeahead() as typeahead:
        desk.type("next ")
        typeahead.poll()
        desk.type("question")
        typeahead.poll()
        assert typeahead.pending_text == "next question"
        desk.type("?")
    assert desk.prompt("\r") == "next question?"


def test_enter_sends_it_when_the_prompt_opens_and_the_rest_waits(desk: Desk) -> None:
    with desk.typeahead() as typeahead:
        desk.type("one\rtwo\r")
        typeahead.poll()
    assert [desk.prompt(), desk.prompt()] == ["one", "two"]


def test_what_is_sent_before_the_program_reads_keys_is_sent(desk: Desk) -> None:
    """The terminal has made a line feed of its Enter, which at the prompt begins a new line."""
    desk.type("one\rtwo\rthr")
    with Quiet(desk.keyboard.keys_from):
        assert [desk.keyboard.read(), desk.keyboard.read()] == ["one", "two"]
        desk.type("ee\nfour\r")
        assert desk.keyboard.read() == "three\nfour"


def test_leaving_before_the_program_reads_keys_leaves(desk: Desk) -> None:
    desk.type("one\r\x04")
    with Quiet(desk.keyboard.keys_from):
        assert desk.keyboard.read() == "one"
        with pytest.raises(EOFError):
            desk.keyboard.read()


@pytest.mark.parametrize("is_quiet", [True, False])
def test_what_is_sent_while_something_is_printed_is_sent(desk: Desk, is_quiet: bool) -> None:
    """The control: prompt_toolkit's own way makes a new line of it."""

    def announce() -> None:
        desk.keyboard.announce(lambda: desk.type("one\r"))
        time.sleep(0.1)
        desk.type("two\r")

    if not is_quiet:
        del desk.keyboard.keys_from.cooked_mode
    with Quiet(desk.keyboard.keys_from):
        announcer = threading.Timer(0.3, announce)
        announcer.start()
        assert desk.keyboard.read() == ("one" if is_quiet else "one\ntwo")
        announcer.join()


@pytest.mark.parametrize("cut", range(1, len("é🙂\x1b[D日\x1b[200~a\nb\x1b[201~!".encode())))
def test_keys_cut_between_two_polls_are_whole(desk: Desk, cut: int) -> None:
    keys = "é🙂\x1b[D日\x1b[200~a\nb\x1b[201~!".encode()
    with desk.typeahead() as typeahead:
        desk.type(keys[:cut])
        typeahead.poll()
        desk.type(keys[cut:])
        typeahead.poll()
    assert desk.prompt("\r") == "é日a\nb!🙂"


@pytest.mark.parametrize("cut", [1, 3, 9, 15, 17, 20])
def test_keys_cut_by_the_end_of_the_answer_are_whole(desk: Desk, cut: int) -> None:
    keys = "日\x1b[200~a\nb\x1b[201~é!".encode()
    with desk.typeahead():
        desk.type(keys[:cut])
    assert desk.prompt(keys[cut:] + b"\r") == "日a\nbé!"


def test_a_paste_of_many_lines_sends_nothing(desk: Desk) -> None:
    with desk.typeahead() as typeahead:
        desk.type("see \x1b[200~one\rtwo\rthree\x1b[201~ so")
        typeahead.poll()
        assert typeahead.pending_text == "see one two three so"
    assert desk.prompt("\r") == "see one\ntwo\nthree so"


@pytest.mark.parametrize("f2", ["\x1bOQ", "\x1b[12~"])
def test_f2_is_told_and_not_kept(desk: Desk, f2: str) -> None:
    with desk.typeahead() as typeahead:
        desk.type(f"a{f2[:2]}")
        typeahead.poll()
        desk.type(f"{f2[2:]}b{f2}")
        typeahead.poll()
        assert (desk.f2_presses, typeahead.pending_text) == (2, "ab")


def test_the_preview_follows_simple_editing_and_shows_no_escape(desk: Desk) -> None:
    with desk.typeahead() as typeahead:
        desk.type("gone\x15one\x7f\x7fther\x1b[D\rand\n\x1b[200~\x1b[31mred\x1b[201~")
        typeahead.poll()
        assert typeahead.pending_text == "other and \\x1b[31mred"


def test_nothing_is_echoed_and_the_settings_come_back_exactly(desk: Desk) -> None:
    before = desk.settings()
    with desk.typeahead() as typeahead:
        assert not desk.settings()[3] & (termios.ECHO | termios.ICANON)
        assert desk.settings()[3] & termios.ISIG
        desk.type("secret\r")
        typeahead.poll()
        typeahead.release()
        assert desk.settings() == before
        typeahead.hold()
        desk.type("more")
    assert desk.settings() == before
    os.set_blocking(desk.person, False)
    with pytest.raises(BlockingIOError):
        os.read(desk.person, 100)
    assert desk.told.getvalue() == "\x1b[?2004h\x1b[?2004l" * 2


def test_the_settings_come_back_after_an_exception(desk: Desk) -> None:
    before = desk.settings()
    with pytest.raises(ZeroDivisionError), desk.typeahead():
        raise ZeroDivisionError
    assert desk.settings() == before


def test_without_a_terminal_nobody_types() -> None:
    with create_pipe_input() as keys_from:
        chosen = typeahead_on(keys_from, StringIO(), on_f2=lambda: None)
    assert isinstance(chosen, NoTypeAhead)
    with chosen:
        chosen.poll()
        assert chosen.pending_text == ""


def test_on_a_terminal_keys_are_kept(desk: Desk) -> None:
    assert isinstance(typeahead_on(desk.keyboard.keys_from, desk.told, on_f2=desk.press_f2), KeptKeys)


def test_a_ctrl_c_that_came_as_a_key_is_a_signal_all_the_same(desk: Desk) -> None:
    """While a prompt closes the terminal still takes Ctrl-C for a key."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with desk.typeahead() as typeahead:
            modes = desk.settings()
            modes[3] &= ~termios.ISIG
            termios.tcsetattr(desk.device, termios.TCSANOW, modes)
            desk.type("a\x03b")
            typeahead.poll()
            assert (heard, typeahead.pending_text) == ([signal.SIGINT], "ab")
    finally:
        signal.signal(signal.SIGINT, before)
