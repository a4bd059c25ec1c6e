"""What rank 0 does for all: its forward and its storage give each order to the others, and do their own part.

The cache counts and decides on rank 0 alone. The others hold keys and values of their heads, and know neither
positions nor policies: they append, drop and turn as they are told. So there is nothing to keep in step but the
order of what is done, and that is the order of the words on the link.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.storage import KeysValues, Storage
from sinkchat.parallel.exchange import collected, dealt
from sinkchat.parallel.link import Followers

_HELD_BACK = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGTSTP") if hasattr(signal, name)]


class LeadingForward(Forward):
    """The model's forward, of which every process computes a part."""

    def __init__(self, model: nn.Module, followers: Followers) -> None:
        super().__init__(model)
        self._followers = followers

    @property
    def state(self) -> str:
        return f"by the model's own code, in {self._followers.ranks.count} processes"

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, cache: SinkCache, *, logits_to_keep: int = 1
    ) -> Tensor:
        with _together(self._followers, "forward", input_ids.tolist(), position_ids.tolist(), logits_to_keep):
            return super().__call__(input_ids, position_ids, cache, logits_to_keep=logits_to_keep)


class DividedStorage:
    """Storage of all heads: `own` holds this process's, the others follow. What is read is all of them."""

    def __init__(self, own: Storage, followers: Followers) -> None:
        self._own = own
        self._followers = followers
        self._placed: Sequence[KeysValues] = ()
        """the pinned tokens, of which every process has kept its heads"""
        self._own_pinned: Sequence[KeysValues] = ()

    @property
    def held(self) -> int:
        return self._own.held

    @property
    def nbytes(self) -> int:
        return self._own.nbytes * self._followers.ranks.count

    @property
    def layers(self) -> Sequence[Any]:
        return self._own.layers

    def clear(self, pinned: int, *, left: int = 0) -> None:
        with _together(self._followers, "clear", pinned, left):
            self._own.clear(pinned, left=left)

    def append(self, count: int) -> None:
        with _together(self._followers, "append", count):
            self._own.append(count)

    def cut(self, count: int) -> None:
        with _together(self._followers, "cut", count):
            self._own.cut(count)

    def drop(self, count: int) -> None:
        with _together(self._followers, "drop", count):
            self._own.drop(count)

    def read(self, start: int, stop: int) -> list[KeysValues]:
        """As `Storage` says; the heads of rank 0 come first."""
        own = self._own.read(start, stop)
        if start == stop:
            return own
        with _together(self._followers, "hand_in", start, stop):
            return collected(own)

    def write(self, start: int, tokens: Sequence[KeysValues]) -> None:
        if count := tokens[0].keys.shape[2]:
            with _together(self._followers, "write", start, count):
                self._own.write(start, self._dealt(tokens))

    def place(self, pinned: Sequence[KeysValues], distance: int) -> None:
        """As `Storage` says. The tokens go to the others once; from then on only how far they are moved."""
        count = pinned[0].keys.shape[2]
        if not count:
            return
        if pinned is not self._placed:
            with _together(self._followers, "keep", count):
                self._own_pinned, self._placed = self._dealt(pinned), pinned
        with _together(self._followers, "place", distance):
            self._own.place(self._own_pinned, distance)

    def turn(self, start: int, stop: int, distance: int) -> None:
        with _together(self._followers, "turn", start, stop, distance):
            self._own.turn(start, stop, distance)

    def _dealt(self, tokens: Sequence[KeysValues]) -> list[KeysValues]:
        return dealt(tokens, self._own.read(0, 0))


@contextmanager
def _together(followers: Followers, *order: Any) -> Iterator[None]:
    """Gives `order` to the others; within this context this process does its own part of it.

    One that fails leaves the others in the middle: it is the end. What a signal would raise waits, or it would do so.
    """
    with _signals_held_back():
        followers.tell(*order)
        try:
            yield
        except RuntimeError as error:
            reason, _, _ = str(error).partition("\n")
            raise followers.lost(f"process 0 of {followers.ranks.count} (counted from 0) failed: {reason}") from error


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Within this context no handler of a signal runs; at its end those do whose signal came."""
    if threading.current_thread() is not threading.main_thread():  # no other runs any
        yield
        return
    came: list[int] = []
    before: dict[int, Callable[[int, FrameType | None], object]] = {}
    try:
        for number in _HELD_BACK:
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            before[number](number, None)
