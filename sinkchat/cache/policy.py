"""What is forgotten, and when: the lesson's first page, plain integers only.

A stream is a row of tokens, numbered from 0 as they were read. The cache holds two pieces of it:
the pinned ones, `[0, pinned)`, which never leave (the attention sinks and, in a chat, the opening),
and the window, the most recent ones. When it is full, a policy names the oldest tokens of the window
that leave. What has left is therefore always one piece, `[pinned, pinned + evicted)`.

A policy sees counts and message borders, never text, chunks or time. So the same stream is forgotten
in the same places however it was handed over. Sinks: arXiv 2309.17453.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sinkchat.errors import CacheFull, UsageError


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens `[start, stop)` of the stream."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class CacheState:
    """What a cache holds, in tokens. `pinned + window + evicted == seen`, always."""

    seen: int
    """tokens ever read or written in this stream"""
    evicted: int
    """tokens that have left: on screen, *forgotten*"""
    pinned: int
    """tokens held that never leave"""
    capacity: int
    """the most that can be held, pinned ones included"""
    nbytes: int
    """bytes of memory that keys and values occupy"""

    @property
    def occupied(self) -> int:
        """Tokens held now."""
        return self.seen - self.evicted

    @property
    def window(self) -> int:
        """Tokens held that will leave one day."""
        return self.occupied - self.pinned

    @property
    def window_capacity(self) -> int:
        return self.capacity - self.pinned

    @property
    def next_to_leave(self) -> int:
        """Stream index of the oldest token in the window."""
        return self.pinned + self.evicted


class EvictionPolicy(Protocol):
    """Names the oldest tokens of a full window that leave, at least one."""

    def span_to_evict(self, window: Span, capacity: int, borders: Sequence[int]) -> Span:
        """The span that leaves now.

        `window` is what the window holds, `capacity` the most it can, `borders` the ascending stream
        indices at which messages begin. The answer begins at `window.start` and is not empty.
        """
        ...


@dataclass(frozen=True, slots=True)
class EvictTokens:
    """The oldest `count` tokens leave at once. `count=1` is the paper's rule, larger is cheaper to prefill."""

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(
                f"cannot evict {self.count} tokens at a time",
                hint="--evict token, or a block such as --evict 64",
            )

    def span_to_evict(self, window: Span, capacity: int, borders: Sequence[int]) -> Span:
        return Span(window.start, min(window.start + self.count, window.stop))


@dataclass(frozen=True, slots=True)
class EvictMessages:
    """Whole messages leave, oldest first, so that the chat template is never cut in half.

    A message longer than `1 / pieces` of the window leaves in pieces of that size: forgetting it at
    once would leave the window half empty (measured: the loss is that of a shift by half).
    """

    pieces: int = 8

    def span_to_evict(self, window: Span, capacity: int, borders: Sequence[int]) -> Span:
        later = bisect_right(borders, window.start)
        message_stop = borders[later] if later < len(borders) else window.stop
        piece = max(1, capacity // self.pieces)
        return Span(window.start, min(message_stop, window.stop, window.start + piece))


@dataclass(frozen=True, slots=True)
class EvictNothing:
    """Dense attention: everything stays, until it does not fit."""

    def span_to_evict(self, window: Span, capacity: int, borders: Sequence[int]) -> Span:
        raise CacheFull(
            f"the cache is full: {window.stop:,} tokens, and the dense policy forgets nothing",
            hint="--policy sink, or a larger --cache-size",
        )
