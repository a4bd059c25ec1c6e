"""Memory as the panel sees it, made of counts: turns that hold so many tokens each."""

from dataclasses import dataclass

from hypothesis import strategies as st

from sinkchat.cache.policy import CacheState
from sinkchat.terminal.drawing.gauge import PanelFacts


@dataclass(frozen=True)
class Held:
    number: int
    left: int
    tokens: int
    user: str = ""
    answer: str = ""


def facts_of(*turns: int, capacity: int, pinned: int = 0, unowned: int = 0, evicted: int = 0, first: int = 1):
    """Memory in which turn after turn, from number `first`, holds so many tokens."""
    held = tuple(Held(first + place, left, left) for place, left in enumerate(turns))
    seen = pinned + evicted + unowned + sum(turns)
    return PanelFacts(CacheState(seen, evicted, pinned, capacity, 0), held, first + len(turns) - 1)


@st.composite
def memories(draw):
    capacity = draw(st.integers(2, 3_000))
    pinned = draw(st.integers(0, capacity - 1))
    room = capacity - pinned
    unowned = draw(st.integers(0, room)) if draw(st.booleans()) else 0
    turns = []
    for tokens in draw(st.lists(st.integers(1, 1 + room // 3), max_size=30)):
        if unowned + sum(turns) + tokens <= room:
            turns.append(tokens)
    return facts_of(*turns, capacity=capacity, pinned=pinned, unowned=unowned, first=draw(st.integers(1, 99)))
