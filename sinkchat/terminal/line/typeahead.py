"""What is typed while the model answers: kept for the next prompt, and never echoed into the answer.

prompt_toolkit does not run meanwhile, but its input does the reading: it knows the keys, and what is cut in
two, a letter, a key or a paste, is made whole even when its second half comes after the prompt has opened.
Pastes are bracketed, so that their line feeds send nothing; a terminal that cannot bracket them types them,
here as at the prompt. Signals keep their keys: Ctrl-C stops the answer and Ctrl-Z suspends.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, TextIO

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from sinkchat.terminal.line.quiet import Quiet
from sinkchat.terminal.sanitize import one_line

_PASTES_BRACKETED, _PASTES_TYPED = "\x1b[?2004h", "\x1b[?2004l"
_READS = 64  # of 1,024 bytes each: a paste may not hold up the answer


class TypeAhead(Protocol):
    """Keys that are typed within its context."""

    @property
    def pending_text(self) -> str:
        """What has been typed so far, on one line."""
        ...

    def poll(self) -> None:
        """Reads what has been typed, without waiting."""
        ...

    def hold(self) -> None:
        """Takes the keyboard: no echo, no waiting for Enter."""
        ...

    def release(self) -> None:
        """Gives the keyboard back as it was, until the next `hold`."""
        ...

    def suspend(self) -> None:
        """Leaves the terminal to others, as it was before the program came."""
        ...

    def resume(self) -> None:
        """Takes the keyboard again after `suspend`."""
        ...

    def __enter__(self) -> "TypeAhead": ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None: ...


class NoTypeAhead:
    """Nobody types: there is no terminal, or none that can be asked without waiting."""

    pending_text = ""

    def poll(self) -> None:
        """Nothing is typed."""

    def hold(self) -> None:
        """There is no keyboard."""

    def release(self) -> None:
        """There is no keyboard."""

    def suspend(self) -> None:
        """There is no keyboard."""

    def resume(self) -> None:
        """There is no keyboard."""

    def __enter__(self) -> "NoTypeAhead":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """There is nothing to undo."""


class KeptKeys:
    """Typed keys, kept for the next prompt on `keys_from`; F2 is taken out and told at once.

    `terminal` is where the terminal is told how to send pastes. `outer` is what keeps it quiet between prompts too.
    """

    def __init__(
        self, keys_from: Input, terminal: TextIO, *, on_f2: Callable[[], None], outer: Quiet | None = None
    ) -> None:
        self._input = keys_from
        self._terminal = terminal
        self._on_f2 = on_f2
        self._kept: list[KeyPress] = []
        self._quiet = Quiet(keys_from)
        self._outer = outer

    @property
    def pending_text(self) -> str:
        text = ""
        for press in self._kept:
            match press.key:
                case Keys.Backspace:
                    text = text[:-1]
                case Keys.ControlU:
                    text = ""
                case Keys.Enter | Keys.ControlJ:
                    text += "\n"
                case Keys.BracketedPaste:
                    text += press.data.replace("\r", "\n")
                case str(key) if len(key) == 1:
                    text += key
        return one_line(text)

    def poll(self) -> None:
        for _ in range(_READS):
            if self._input.closed or not select.select([self._input.fileno()], [], [], 0)[0]:
                return
            for press in self._input.read_keys():
                if press.key == Keys.F2:
                    self._on_f2()
                elif press.key == Keys.ControlC:  # typed while a prompt was closing, which takes signals for keys
                    signal.raise_signal(signal.SIGINT)
                else:
                    self._kept.append(press)

    def hold(self) -> None:
        self._quiet.lower()
        self._tell(_PASTES_BRACKETED)

    def release(self) -> None:
        with suppress(OSError):  # the terminal has gone, and what brought us here says more
            self.poll()
            self._tell(_PASTES_TYPED)
        self._quiet.lift()

    def suspend(self) -> None:
        self.release()
        if self._outer is not None:
            self._outer.lift()

    def resume(self) -> None:
        if self._outer is not None:
            self._outer.lower()
        self.hold()

    def __enter__(self) -> "KeptKeys":
        self.hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()
        store_typeahead(self._input, self._kept)
        self._kept = []

    def _tell(self, sequence: str) -> None:
        self._terminal.write(sequence)
        self._terminal.flush()


def typeahead_on(
    keys_from: Input, terminal: TextIO, *, on_f2: Callable[[], None], outer: Quiet | None = None
) -> TypeAhead:
    """Keeps what is typed on `keys_from`, where that is a terminal of a kind that can be asked."""
    if sys.platform == "win32" or not os.isatty(keys_from.fileno()):
        return NoTypeAhead()
    return KeptKeys(keys_from, terminal, on_f2=on_f2, outer=outer)
