"""The turn map: memory from left to right, a cell for every so many tokens, drawn as the turn that it holds.

Pinned tokens come first, then the window, oldest token leftmost, so what is next to leave stands at the left edge
and room that is still free at the right end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sinkchat.terminal.drawing.gauge import PanelFacts

UNOWNED = 0
"""what a cell holds whose tokens belong to no turn; turns are numbered from 1"""


@dataclass(frozen=True, slots=True)
class TurnMap:
    """What the cells hold. A divider, one cell wide, stands after the pinned ones if there are any."""

    pinned: int
    """cells of tokens that never leave"""
    window: tuple[int | None, ...]
    """for each cell of the window the number of a turn, `UNOWNED`, or None where it is free"""


def sign(owner: int | None, *, free: str) -> str:
    """One cell: the last digit of a turn's number."""
    return free if owner is None else str(owner % 10)


def turn_map(facts: PanelFacts, width: int) -> TurnMap:
    """The map in exactly `width` cells, at least 3.

    Each cell stands for capacity / cells tokens and shows whose most of them are, the older turn where two have the
    same part. Pinned tokens have at least one cell, and so has the window.
    """
    state = facts.state
    cells = width - 1 if state.pinned else width
    pinned = _share(state.pinned, state.capacity, cells) if state.pinned else 0
    return TurnMap(pinned, tuple(_owners(facts, cells - pinned)))


def cells_of(tokens: int, facts: PanelFacts, cells: int) -> int:
    """How many of the window's `cells` that many tokens take, at least one."""
    return min(cells, max(1, round(tokens * cells / max(1, facts.state.window_capacity))))


def _share(part: int, whole: int, cells: int) -> int:
    return min(cells - 1, max(1, round(part * cells / whole)))


def _owners(facts: PanelFacts, cells: int) -> Iterator[int | None]:
    """The owner of most tokens in each cell: both lists are walked once, side by side."""
    capacity = max(1, facts.state.window_capacity)
    owners: list[int | None] = [UNOWNED, *(turn.number for turn in facts.held), None]
    counts = [facts.unowned, *(turn.left for turn in facts.held), capacity]
    run, run_stop = 0, counts[0]
    for cell in range(cells):
        start = cell * capacity // cells
        stop = max(start + 1, (cell + 1) * capacity // cells)
        while run_stop <= start:
            run += 1
            run_stop += counts[run]
        owner, most, begin = owners[run], min(run_stop, stop) - start, run_stop
        following, following_stop = run, run_stop
        while begin < stop:
            following += 1
            following_stop += counts[following]
            tokens = min(following_stop, stop) - begin
            if tokens > most:
                owner, most = owners[following], tokens
            begin = following_stop
        yield owner
