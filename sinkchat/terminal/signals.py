"""What Ctrl-C, SIGTERM and SIGHUP do.

Ctrl-C sets a flag that the session reads once a token: an exception in the middle of a forward leaves
layers of unequal length behind. Only where nothing is being computed, while the program waits for stdin,
does it raise; and when it comes again within two seconds the program leaves, whatever is going on. SIGTERM and
SIGHUP wait for the token that is being computed, so that memory can be saved as it is.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeVar

from sinkchat.errors import ExitStatus

_Event = TypeVar("_Event")

AGAIN_SECONDS = 2.0
_MOMENT_SECONDS = 0.05
"""longer than it takes to hand a line on, shorter than it takes to type one"""


class WaitInterrupted(KeyboardInterrupt):
    """Ctrl-C while waiting for input: nothing was being computed."""


class Interrupts:
    """Within this context Ctrl-C calls `stop`, ends a wait, or the second time raises KeyboardInterrupt."""

    def __init__(self, stop: Callable[[], None], *, clock: Callable[[], float]) -> None:
        self._stop = stop
        self._clock = clock
        self._is_waiting = False
        self._is_computing = False
        self._leaving: Callable[[], object] | None = None
        self._pressed_at: float | None = None

    def steps(self, events: Iterable[_Event]) -> Iterator[_Event]:
        """The events. What tells the program to leave while the next is computed is heard when it is there."""
        iterator = iter(events)
        while True:
            self._is_computing = True
            try:
                event = next(iterator)
            except StopIteration:
                return
            finally:
                self._is_computing = False
                if self._leaving is not None:
                    self._leaving()
            yield event

    @property
    def pressed(self) -> bool:
        return self._pressed_at is not None

    @property
    def pressed_lately(self) -> bool:
        """Whether a Ctrl-C now would be the second one."""
        return self._pressed_at is not None and self._clock() - self._pressed_at < AGAIN_SECONDS

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Surrounds the wait for a person's next line, which hears Ctrl-C itself.

        What was pressed a while before is over; what comes in the last moment belongs to what the line begins.
        """
        if not self.pressed_lately:
            self._forget()
        before = self._pressed_at
        yield
        now = self._pressed_at
        if now is not None and (now == before or self._clock() - now > _MOMENT_SECONDS):
            self._forget()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Surrounds a wait that Ctrl-C may end by an exception, also one that was asked for before."""
        self._is_waiting = True
        is_computing, self._is_computing = self._is_computing, False
        try:
            if self._leaving is not None:
                self._leaving()
            if self.pressed:
                raise WaitInterrupted
            yield
        finally:
            self._is_waiting, self._is_computing = False, is_computing

    def __enter__(self) -> "Interrupts":
        self._before: Any = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # a shell's background job is not to hear of Ctrl-C
            signal.signal(signal.SIGINT, self._handle)
        self._leave = {number: signal.getsignal(number) for number in _leaving_numbers()}
        for number, handler in self._leave.items():
            if callable(handler):
                signal.signal(number, self._hold_back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        for number, handler in self._leave.items():
            if callable(handler):
                signal.signal(number, handler)

    def _forget(self) -> None:
        self._pressed_at = None

    def _hold_back(self, number: int, frame: FrameType | None) -> None:
        """The second time, or where nothing is computed, the program leaves at once."""
        leave: Any = self._leave[number]
        if not self._is_computing or self._leaving is not None:
            leave(number, frame)
        self._leaving = lambda: leave(number, None)
        self._stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.pressed_lately
        self._pressed_at = self._clock()
        if again:
            raise KeyboardInterrupt
        if self._is_waiting:
            raise WaitInterrupted
        self._stop()


_LEAVING = {"SIGTERM": ExitStatus.TERMINATED, "SIGHUP": ExitStatus.HANGUP}


def _leaving_numbers() -> list[int]:
    return [getattr(signal, name) for name in _LEAVING if hasattr(signal, name)]


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP unwind the program, so that every `finally` runs: 143, 129.

    A signal that the parent told us to ignore (nohup) stays ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_LEAVING[signal.Signals(number).name])

    before = {number: signal.getsignal(number) for number in _leaving_numbers()}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
