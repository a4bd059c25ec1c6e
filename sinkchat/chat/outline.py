"""What memory holds, without its keys: ids, places, turns. Plain numbers and words that a line of JSON can carry.

A conversation that lasts writes after each turn what has become of its memory. Most of it is as it was: some of the
oldest tokens have left, some new ones have come. So what is written is a difference, and each carries a check of
what it must come to: a difference that was lost is found out at the next one, never passed over.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sinkchat.chat.events import Finish
from sinkchat.chat.turns import Entry
from sinkchat.engine.segment import Segment

if TYPE_CHECKING:
    from sinkchat.chat.memory import Memory

T = TypeVar("T")


class OutlineMismatch(ValueError):
    """A difference does not belong to the outline that it was applied to, or is none."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What memory holds at one moment."""

    pinned: tuple[int, ...] = ()
    """ids of the tokens that never leave"""
    to_pin: int = 0
    """how many tokens are pinned once they have been read"""
    window: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    """ids of the stream that are not in memory yet"""
    evicted: int = 0
    borders: tuple[int, ...] = ()
    """the stream indices at which messages of the window begin"""
    turns: tuple[Entry, ...] = ()
    """those that are not pinned, oldest in the stream first"""
    pins: tuple[tuple[Entry, int], ...] = ()
    """the pinned turns, each with its tokens"""
    count: int = 0
    """turns since the conversation began"""
    is_closed: bool = True
    finish: Finish | None = None
    """how the latest answer ended; None: it was not drawn, or there is none"""

    @classmethod
    def of(cls, memory: "Memory", *, finish: Finish | None) -> "Outline":
        engine, ledger = memory.engine, memory.ledger
        pinned = engine.state.pinned
        return cls(
            pinned=tuple(engine.held_ids[:pinned]),
            to_pin=engine.cache.pinned,
            window=tuple(engine.held_ids[pinned:]),
            pending=tuple(engine.pending),
            evicted=engine.state.evicted,
            borders=engine.cache.borders,
            turns=ledger.entries,
            pins=ledger.pins,
            count=ledger.count,
            is_closed=memory.is_closed,
            finish=finish,
        )

    @classmethod
    def from_difference(cls, difference: Mapping[str, Any], before: "Outline | None" = None) -> "Outline":
        """The outline that `difference` leads to from `before`; None: it is a whole one.

        Raises OutlineMismatch where it leads elsewhere. Names that are no part of an outline are passed over.
        """
        before = before if before is not None else _NOTHING
        try:
            changed = {
                name: _READERS[name](value, getattr(before, name))
                for name, value in difference.items()
                if name in _READERS
            }
            outline = replace(before, **changed)
            is_right = difference["check"] == outline.check
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise OutlineMismatch(f"this is no difference of outlines: {error}") from error
        if not is_right:
            raise OutlineMismatch("this difference belongs to another outline")
        return outline

    def difference(self, before: "Outline | None" = None) -> dict[str, Any]:
        """What is new since `before`, for `from_difference`; None: all of it."""
        before = before if before is not None else _NOTHING
        written = self._written(before)
        return {name: written[name] for name in written if getattr(self, name) != getattr(before, name)} | {
            "check": self.check
        }

    @property
    def check(self) -> str:
        """Eight hexadecimal digits that stand for all of it."""
        return f"{zlib.crc32(json.dumps(self._written(_NOTHING)).encode()):08x}"

    @property
    def first(self) -> int:
        """The stream index of the window's oldest token."""
        return len(self.pinned) + self.evicted

    def segments(self) -> Iterator[Segment]:
        """The window, cut where its messages begin."""
        stop = self.first + len(self.window)
        starts = [self.first, *(at for at in self.borders if self.first < at < stop)]
        for start, end in zip(starts, [*starts[1:], stop], strict=True):
            if end > start:
                ids = self.window[start - self.first : end - self.first]
                yield Segment(ids, opens_message=start in self.borders)

    def _written(self, before: "Outline") -> dict[str, Any]:
        turns, known = [_row(turn) for turn in self.turns], [_row(turn) for turn in before.turns]
        pins, pins_known = ([[*_row(turn), tokens] for turn, tokens in outline.pins] for outline in (self, before))
        numbers = [turn.number for turn in before.turns]
        oldest = self.turns[0].number if self.turns else 0
        return {
            "pinned": _spliced(self.pinned, before.pinned, 0),
            "to_pin": self.to_pin,
            "window": _spliced(self.window, before.window, self.first - before.first),
            "pending": list(self.pending),
            "evicted": self.evicted,
            "borders": _spliced(self.borders, before.borders, sum(at < self.first for at in before.borders)),
            "turns": _spliced(turns, known, numbers.index(oldest) if oldest in numbers else 0),
            "pins": _spliced(pins, pins_known, 0),
            "count": self.count,
            "is_closed": self.is_closed,
            "finish": self.finish,
        }


_NOTHING = Outline()


def _row(entry: Entry) -> list[Any]:
    return [entry.number, entry.start, entry.user, entry.answer]


def _spliced(after: Sequence[T], before: Sequence[T], dropped: int) -> list[Any]:
    """`after` as: how many of `before` left at its beginning, how many after them stayed, and what follows those."""
    dropped = min(max(dropped, 0), len(before))
    alike = zip(before[dropped:], after, strict=False)
    kept = next(
        (place for place, (old, new) in enumerate(alike) if old != new), min(len(before) - dropped, len(after))
    )
    return [dropped, kept, list(after[kept:])]


def _unspliced(value: Any, before: Sequence[T], read: Callable[[Any], T]) -> tuple[T, ...]:
    dropped, kept, new = value
    return (*before[dropped : dropped + kept], *map(read, new))


def _entry(row: Any) -> Entry:
    number, start, user, answer = row
    return Entry(int(number), int(start), str(user), str(answer))


def _pin(row: Any) -> tuple[Entry, int]:
    return _entry(row[:4]), int(row[4])


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("pinned", "window", "borders"), lambda value, before: _unspliced(value, before, int)),
    "turns": lambda value, before: _unspliced(value, before, _entry),
    "pins": lambda value, before: _unspliced(value, before, _pin),
    "pending": lambda value, _: tuple(map(int, value)),
    **dict.fromkeys(("to_pin", "evicted", "count"), lambda value, _: int(value)),
    "is_closed": lambda value, _: bool(value),
    "finish": lambda value, _: value,
}
