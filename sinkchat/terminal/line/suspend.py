"""Ctrl-Z, at the prompt and while the model answers: the shell gets the terminal as it was, and `fg` goes on."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from prompt_toolkit.input import Input

from sinkchat.terminal.drawing.frames import Stage
from sinkchat.terminal.line.typeahead import TypeAhead


def modes_of(keys_from: Input) -> list[Any] | None:
    """How the terminal handles keys now; None where it is no terminal, or not one of POSIX."""
    try:
        import termios
    except ImportError:
        return None
    try:
        return termios.tcgetattr(keys_from.fileno())
    except (OSError, NotImplementedError, termios.error):
        return None


def stopped_with(modes: list[Any] | None, keys_from: Input) -> None:
    """Stops the job with those modes in force. prompt_toolkit by itself would leave IXON off."""
    if modes is None or not hasattr(signal, "SIGTSTP"):
        return
    import termios

    termios.tcsetattr(keys_from.fileno(), termios.TCSANOW, modes)
    os.kill(0, signal.SIGTSTP)


class Suspension:
    """Within this context Ctrl-Z clears the stage and lets go of the keyboard before the process stops.

    A job whose shell told it to ignore Ctrl-Z goes on ignoring it.
    """

    def __init__(self, stage: Stage, typeahead: TypeAhead) -> None:
        self._stage = stage
        self._typeahead = typeahead
        self._is_wanted = False

    def poll(self) -> None:
        """Stops, if Ctrl-Z came in the middle of a write."""
        if self._is_wanted:
            self._stop()

    def __enter__(self) -> "Suspension":
        self._before: Any = None
        if hasattr(signal, "SIGTSTP"):
            self._before = signal.getsignal(signal.SIGTSTP)
            if self._before is not signal.SIG_IGN:
                signal.signal(signal.SIGTSTP, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if hasattr(signal, "SIGTSTP"):
            signal.signal(signal.SIGTSTP, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._is_wanted = True
        if not self._stage.is_drawing:
            self._stop()

    def _stop(self) -> None:
        self._is_wanted = False
        self._stage.pause()
        self._typeahead.release()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # the process stands still here until SIGCONT
        signal.signal(signal.SIGTSTP, handler)
        self._typeahead.hold()
        self._stage.begin_line()
