"""What is typed while the model answers: kept for the next prompt, and never echoed into the answer.

prompt_toolkit does not run meanwhile, but its input does the reading: it knows the keys, and what is cut in
two, a letter, a key or a paste, is made whole even when its second half comes after the prompt has opened.
Pastes are bracketed, so that their line feeds send nothing; a terminal that cannot bracket them types them,
here as at the prompt. Signals keep their keys: Ctrl-C stops the answer and Ctrl-Z suspends.
"""

import os
import select
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TextIO

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

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

    def __enter__(self) -> "NoTypeAhead":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """There is nothing to undo."""


class KeptKeys:
    """Typed keys, kept for the next prompt on `keys_from`; F2 is taken out and told at once.

    `terminal` is where the terminal is told how to send pastes.
    """

    def __init__(self, keys_from: Input, terminal: TextIO, *, on_f2: Callable[[], None]) -> None:
        self._input = keys_from
        self._terminal = terminal
        self._on_f2 = on_f2
        self._kept: list[KeyPress] = []
        self._before: list[Any] | None = None

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
                else:
                    self._kept.append(press)

    def hold(self) -> None:
        import termios

        keyboard = self._input.fileno()
        self._before = termios.tcgetattr(keyboard)
        attributes = termios.tcgetattr(keyboard)
        attributes[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)  # Enter is CR, as at the prompt
        attributes[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        attributes[3] |= termios.NOFLSH  # Ctrl-C is not to discard what was typed before it
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(keyboard, termios.TCSANOW, attributes)
        self._tell(_PASTES_BRACKETED)

    def release(self) -> None:
        import termios

        if self._before is None:
            return
        before, self._before = self._before, None
        try:
            self.poll()
            self._tell(_PASTES_TYPED)
            termios.tcsetattr(self._input.fileno(), termios.TCSANOW, before)
        except (OSError, termios.error):
            """The terminal has gone, and what brought us here says more."""

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


def typeahead_on(keys_from: Input, terminal: TextIO, *, on_f2: Callable[[], None]) -> TypeAhead:
    """Keeps what is typed on `keys_from`, where that is a terminal of a kind that can be asked."""
    if sys.platform == "win32" or not os.isatty(keys_from.fileno()):
        return NoTypeAhead()
    return KeptKeys(keys_from, terminal, on_f2=on_f2)
