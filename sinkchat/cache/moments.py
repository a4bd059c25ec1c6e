"""The two ways back: to a moment before a turn, and to anything at all.

A *checkpoint* costs nothing until something leaves: only what the turn after it pushes out of the window is kept.
A *snapshot* copies all that is held, and so survives whatever is done to the cache.
"""

from dataclasses import dataclass, field

from sinkchat.cache.storage import KeysValues


@dataclass(slots=True)
class Checkpoint:
    """A moment that a cache can go back to. While it is the latest one, what leaves the window is kept here."""

    seen: int
    evicted: int
    base: int
    borders: list[int]
    left: list[list[KeysValues]] = field(default_factory=list)
    """for each eviction since, the tokens that left, by layer group, oldest first"""

    @property
    def kept(self) -> int:
        """Tokens of the window at that moment that have left since and are kept here."""
        return sum(groups[0].keys.shape[2] for groups in self.left)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a cache holds, in the machine's own memory, so that it can be put back whatever came after."""

    seen: int
    evicted: int
    base: int
    pinned: int
    borders: tuple[int, ...]
    held: tuple[KeysValues, ...]
    """of each layer group, the tokens held, pinned ones first"""
    pristine: tuple[KeysValues, ...] | None
