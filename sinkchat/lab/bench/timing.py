"""Times become figures: the middle one, and how far they spread.

A machine's speed moves by a sixth from minute to minute, so what is compared is measured in turns, round by round,
and a ratio is taken within a round before the middle of all rounds is. No torch here: figures are plain numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""seconds, from any beginning"""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several values of one thing, the least and the most of them, and how many there were."""

    median: float
    least: float
    most: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(median(values), min(values), max(values), len(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Ours by theirs, round by round; a round that only one of them finished does not count. None without any."""
    pairs = [one / other for one, other in zip(ours, theirs, strict=False)]
    return spread(pairs) if pairs else None


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all values do not exceed: one that was measured, not one between two."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
