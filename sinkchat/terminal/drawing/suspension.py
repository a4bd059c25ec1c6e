"""Ctrl-Z while the model answers: the terminal goes back to the shell as it was, and `fg` goes on."""

import signal
from types import FrameType, TracebackType
from typing import Any

from sinkchat.terminal.drawing.frames import Stage
from sinkchat.terminal.line.typeahead import TypeAhead


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
        self._typeahead.suspend()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # the process stands still here until SIGCONT
        signal.signal(signal.SIGTSTP, handler)
        self._typeahead.resume()
        self._stage.begin_line()
