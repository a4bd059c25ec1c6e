"""How much of memory may be pinned: what is left must do to talk in."""

from sinkchat.chat.template import ChatTemplate
from sinkchat.errors import UsageError

SINKS = 4
"""first tokens that are always pinned: four suffice for released models (arXiv 2309.17453, table 2)"""


def leaves_room(pinned: int, capacity: int) -> bool:
    """Whether a cache of `capacity` tokens is still good to talk in when so many are pinned."""
    return capacity - pinned >= min(128, capacity // 8)


def sink_count(template: ChatTemplate, sinks: int | None, *, capacity: int) -> int:
    """How many tokens are pinned under that template, besides turns; `sinks` is what was asked for.

    Raises UsageError where that leaves no room to talk in.
    """
    opening = len(template.opening)
    count = max(SINKS, opening) if sinks is None else sinks
    if not leaves_room(count, capacity):
        raise UsageError(
            f"the system prompt is {opening:,} tokens and --cache-size is {capacity:,}: "
            f"only {max(0, capacity - count):,} would be left to talk in",
            hint="a shorter --system, or a larger --cache-size",
        )
    return count
