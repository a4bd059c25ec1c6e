"""The model is loaded in a thread of its own, so that one may type meanwhile.

The thread hears no signal: Ctrl-C belongs to the main thread, which waits in slices and can leave at any
time. A loader that is left behind may be anywhere, also inside a C library that does not survive the
shutdown of the interpreter. So whoever leaves calls `abandon`, which ends a download at its next progress
report, and the last thing of the process is `leave_at_once` where `load_is_running()` still says so.

Importing torch while someone types: of the keys typed, half are on the screen after 3 ms, nine of ten after
12 ms, and none later than 0.17 s, when a library is being linked with the interpreter locked. A shorter
switch interval changes none of the three.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NoReturn, TypeAlias, cast

from sinkchat.terminal.conversation import Conversation

Load: TypeAlias = Callable[[Callable[[str], None]], Conversation]
"""Loads the model; calls its argument with a short sentence whenever there is something new to say."""

_SLICE_SECONDS = 0.05
_ABANDON_SECONDS = 0.3
"""a little more than the time between two reports of a download"""


class LoadAbandoned(BaseException):
    """Raised inside the loader by its next progress report: nobody waits for the model any more."""


class _Loader(threading.Thread):
    """Its type tells it from all other threads."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="loader", daemon=True)
        self._work = work
        self.has_ended = threading.Event()
        """not `join`, not `is_alive`: once Ctrl-C interrupts a join, Python takes the thread for ended (3.11)"""

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.has_ended.set()


class Loading:
    """A conversation that is being loaded, from now on."""

    def __init__(self, load: Load) -> None:
        self.status = ""
        """what the loader last said of its progress"""
        self._load = load
        self._outcome: Conversation | BaseException | None = None
        self._is_abandoned = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._thread = _Loader(self._run)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether `result` returns, or raises, without waiting for the model."""
        return self._outcome is not None

    @property
    def conversation(self) -> Conversation | None:
        """The conversation, if it is loaded by now."""
        return None if isinstance(self._outcome, BaseException) else self._outcome

    @property
    def error(self) -> BaseException | None:
        """What went wrong, if it did by now."""
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def result(self, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Conversation:
        """The conversation, once it is loaded and the callbacks have run; raises what the loader raised.

        `waiting` surrounds the wait, so that Ctrl-C can end it.
        """
        if threading.current_thread() is not self._thread:
            with waiting():
                # A signal may be delivered to another thread, and does not wake a wait without an end.
                while not self._thread.has_ended.wait(_SLICE_SECONDS):
                    pass
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return cast(Conversation, self._outcome)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls back from the loader's thread; at once where all is done already."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def abandon(self) -> bool:
        """Asks the loader to give up; no callback will come. Whether it did so within a moment."""
        self._is_abandoned = True
        return self._thread.has_ended.wait(_ABANDON_SECONDS)

    def _run(self) -> None:
        outcome: Conversation | BaseException
        try:
            outcome = self._load(self._report)
        except BaseException as error:
            outcome = error
        with self._lock:
            self._outcome = outcome
        if not self._is_abandoned:
            for callback in self._callbacks:
                callback()

    def _report(self, status: str) -> None:
        if self._is_abandoned:
            raise LoadAbandoned
        self.status = status


def load_is_running() -> bool:
    """Whether a loader is still at work in this process, so that it has to be left with `leave_at_once`."""
    return any(isinstance(thread, _Loader) and not thread.has_ended.is_set() for thread in threading.enumerate())


def leave_at_once(status: int) -> NoReturn:
    """Ends the process without shutting the interpreter down, which a thread in a C library may not survive.

    For the entry of the console alone, after all else: no `finally` and no exit handler runs any more.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, it is closed, or there is none
            stream.flush()
    os._exit(status)
