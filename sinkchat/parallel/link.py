"""What rank 0 says to the others, and how each hears that another is gone.

Orders are small and go by a socket; tensors go between the devices, by torch. A socket can wait for days while a
person thinks, and it ends the moment its other end dies, however that came about. Where a process is gone, the
devices of the others may wait for it for ever: so whoever hears of it first leaves orderly, then at once.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from types import FrameType, TracebackType
from typing import Any, TypeAlias

from sinkchat.errors import DeviceLost, ExitStatus, SinkchatError, UsageError
from sinkchat.parallel.ranks import Ranks

Order: TypeAlias = tuple[Any, ...]
"""a verb, and what it takes"""

MEETING_SECONDS = 300.0
"""how long others may take to import torch"""
GRACE_SECONDS = 5.0
"""how long a process that has heard of the end may take to leave by itself"""
_MOMENT_SECONDS = 2.0
_ALIKE_SECONDS = 60.0
"""how long rank 0 may take to meet what all meet, each in its own time"""
_SAY_NO_MORE: Order = ("end",)


class Followers:
    """Rank 0's side. Within this context the others are awaited; leaving it lets them go.

    When one of them dies, SIGTERM unwinds this process, and leaving raises DeviceLost, which says who and why.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._listener = Listener(str(_freed(ranks)), "AF_UNIX", backlog=ranks.count)
        self._links: dict[int, Connection] = {}
        self._have_met = threading.Event()
        """or never will"""
        self._is_lost = threading.Event()
        self._losing = threading.Lock()
        self._has_ended = threading.Event()
        self._is_interrupted = False
        self._is_leaving = False
        self._reason = ""
        self._modes = _terminal_modes()
        self._watch = threading.Thread(target=self._meet_and_watch, daemon=True, name="followers")

    def tell(self, *order: Any) -> None:
        """Gives `order` to all others. Raises DeviceLost where one is gone, or does not come."""
        if not self._have_met.wait(MEETING_SECONDS):
            raise DeviceLost(
                f"only {len(self._links) + 1} of {self.ranks.count} processes have started",
                hint="--processes 1, with RANK and WORLD_SIZE unset, for a process on its own",
            )
        if self._is_lost.is_set():
            raise self.lost()
        try:
            for link in self._links.values():
                link.send(order)
        except OSError as error:
            raise self.lost() from error

    def lost(self, otherwise: str = "a process of this run has ended") -> DeviceLost:
        """The error that says which process is gone and why, as far as that is heard within a moment."""
        self._is_lost.wait(_MOMENT_SECONDS)
        return DeviceLost(
            self._reason or otherwise, hint="start again: what was said until here is saved with the conversation"
        )

    def lose(self, rank: int, why: str) -> None:
        """Ends this process because `rank` is gone: as orderly as it can be. For a thread that has heard of it."""
        with self._losing:
            if self._has_ended.is_set() or self._is_lost.is_set():
                return
            self._reason = f"process {rank} of {self.ranks.count} (counted from 0) {why}"
            self._is_lost.set()
            self._have_met.set()
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._has_ended.wait(GRACE_SECONDS):  # it waits for a device that waits for one that is gone
            _restore_terminal(self._modes)
            _leave_at_once(f"error: {self._reason}\n", ExitStatus.RESOURCE)

    def __enter__(self) -> "Followers":
        if self.ranks.is_elastic:
            # Ctrl-C reaches torchrun alone, which hands it on and then kills whoever is still there.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            threading.Thread(target=self._leave_on_interrupt, daemon=True, name="interrupt").start()
        signal.signal(signal.SIGTERM, self._terminate)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_leaving = True
        if self.ranks.is_elastic and isinstance(error, SystemExit) and not self._is_interrupted:
            self._is_lost.wait(_MOMENT_SECONDS / 2)  # torchrun ends all when one has died: it may be quicker
        with self._losing:
            is_lost = self._is_lost.is_set()
            self._has_ended.set()
        for link in list(self._links.values()):
            with suppress(OSError):
                link.send(_SAY_NO_MORE)
        self._listener.close()
        if self._is_interrupted:
            raise KeyboardInterrupt from error
        if is_lost and (error is None or isinstance(error, SystemExit)):
            raise self.lost() from error

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Unwinds once: what comes from torchrun on top of that is not to cut it short."""
        if not self._is_leaving:
            self._is_leaving = True
            raise SystemExit(ExitStatus.TERMINATED)

    def _meet_and_watch(self) -> None:
        with suppress(OSError, EOFError):  # closed
            while len(self._links) < self.ranks.count - 1:
                link = self._listener.accept()
                self._links[link.recv()] = link
            self._have_met.set()
            ranks = {link: rank for rank, link in self._links.items()}
            gone = wait(list(ranks))
            link = next(link for link in self._links.values() if link in gone)
            self.lose(ranks[link], _last_words(link))

    def _leave_on_interrupt(self) -> None:
        signal.sigwait({signal.SIGINT})
        self._is_interrupted = True
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Leader:
    """The side of all others: they live as long as rank 0 does, and neither Ctrl-C nor SIGTERM is meant for them."""

    link: Connection
    _orders: "queue.Queue[Order]" = field(default_factory=queue.Queue)
    _has_ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def met(cls, ranks: Ranks) -> "Leader":
        """Rank 0, once it is there; from then on no signal ends this process. Raises SinkchatError for none."""
        until = time.monotonic() + MEETING_SECONDS
        while True:
            try:
                link = Client(str(ranks.meeting_place), "AF_UNIX")
                break
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() > until:
                    raise SinkchatError("process 0 has not started") from error
                time.sleep(0.05)
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        link.send(ranks.rank)
        leader = cls(link)
        threading.Thread(target=leader._listen, daemon=True, name="leader").start()
        return leader

    def orders(self) -> Iterator[Order]:
        """What is to be done, until rank 0 has nothing more to say or is gone."""
        while (order := self._orders.get()) != _SAY_NO_MORE:
            yield order

    def serve(self, follow: Callable[[Iterator[Order]], None]) -> ExitStatus:
        """Follows until the end. What fails here is told by rank 0, with its reason."""
        try:
            follow(self.orders())
        except UsageError as error:  # what was asked for cannot be, for rank 0 neither, and it knows what to type
            if self._report(error.message, patience=_ALIKE_SECONDS):
                return error.exit_status
        except SinkchatError as error:
            if self._report(error.message):
                return error.exit_status
        except Exception as error:
            if self._report(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"):
                return ExitStatus.UNEXPECTED
        return ExitStatus.OK

    def _report(self, failure: str, *, patience: float = _MOMENT_SECONDS) -> bool:
        """Says why this process fails. Whether rank 0 is there to hear it; what befalls both, it says itself."""
        if self._has_ended.wait(patience):
            return False
        with suppress(OSError):
            self.link.send(failure)
        return True

    def _listen(self) -> None:
        order: Order = ()
        while order != _SAY_NO_MORE:
            try:
                order = self.link.recv()
            except (OSError, EOFError):
                order = _SAY_NO_MORE
            self._orders.put(order)
        self._has_ended.set()
        time.sleep(GRACE_SECONDS)
        os._exit(ExitStatus.OK)


def _last_words(link: Connection) -> str:
    """Why the process at its other end is gone, as far as it has said so."""
    with suppress(OSError, EOFError):
        return f"failed: {link.recv()}"
    return "ended unexpectedly"


def _freed(ranks: Ranks) -> Any:
    """The meeting place, without what a run that was killed has left there."""
    place = ranks.meeting_place
    place.unlink(missing_ok=True)
    return place


def _terminal_modes() -> list[Any] | None:
    try:
        import termios

        return termios.tcgetattr(0)
    except (ImportError, OSError, termios.error):
        return None


def _restore_terminal(modes: list[Any] | None) -> None:
    if modes is not None:
        import termios

        with suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSANOW, modes)


def _leave_at_once(words: str, status: int) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(words)
        sys.stderr.flush()
    os._exit(status)
