"""The turn map against a computation that names the owner of every single token."""

from collections import Counter
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from remembered import facts_of, memories

from sinkchat.terminal.drawing.gauge import PanelFacts
from sinkchat.terminal.drawing.turnmap import cells_of, sign, turn_map


def drawn_in(width: int, facts: PanelFacts) -> str:
    """The map in one string: `SS│444455555··`."""
    drawn = turn_map(facts, width)
    edge = "S" * drawn.pinned + "│" if drawn.pinned else ""
    return edge + "".join(sign(owner, free="·") for owner in drawn.window)


def owners(facts: PanelFacts) -> list[int | None]:
    """Who owns each place of the window, token by token."""
    listed = [0] * facts.unowned + [turn.number for turn in facts.held for _ in range(turn.left)]
    return listed + [None] * (facts.state.window_capacity - len(listed))


def sampled(places: list[int | None], cells: int) -> list[int | None]:
    """The most frequent owner of each cell; of two the one that comes first."""
    ends = [cell * len(places) // cells for cell in range(cells + 1)]
    return [Counter(places[a : max(a + 1, b)]).most_common(1)[0][0] for a, b in pairwise(ends)]


@given(memories(), st.integers(3, 200))
@example(facts_of(capacity=2), 200)
def test_each_cell_shows_who_owns_most_of_its_tokens(facts, width):
    drawn = turn_map(facts, width)
    assert list(drawn.window) == sampled(owners(facts), len(drawn.window))


@given(memories(), st.integers(3, 200))
def test_the_map_takes_exactly_its_width(facts, width):
    assert len(drawn_in(width, facts)) == width


@given(memories(), st.integers(3, 200))
def test_pinned_tokens_have_their_share_of_the_cells_and_at_least_one(facts, width):
    pinned, cells = turn_map(facts, width).pinned, width - 1
    exact = facts.state.pinned * cells / facts.state.capacity
    if facts.state.pinned == 0:
        assert pinned == 0
    else:
        assert 1 <= pinned <= cells - 1
        assert abs(pinned - exact) <= 0.5 or pinned == (1 if exact < 1 else cells - 1)


def test_a_map_drawn_from_the_newest_end_would_be_noticed():
    facts = facts_of(30, 50, capacity=100, pinned=20, evicted=7)
    drawn = list(turn_map(facts, 41).window)
    assert drawn == sampled(owners(facts), len(drawn))
    assert drawn != sampled(owners(facts)[::-1], len(drawn))


def test_one_token_in_a_place_where_another_has_more_does_not_show():
    facts = facts_of(9, 1, 10, capacity=20)
    assert drawn_in(4, facts) == "1133"


def test_a_chat_in_full_swing():
    facts = facts_of(2, 8, 10, capacity=24, pinned=4, evicted=90, first=9)
    assert drawn_in(25, facts) == "SSSS│990000000011111111" + "11"


def test_what_is_free_stands_at_the_right_and_the_rest_of_the_opening_at_the_left():
    facts = facts_of(4, 2, capacity=14, pinned=4, unowned=2)
    assert drawn_in(15, facts) == "SSSS│00111122··"


def test_without_pinned_tokens_there_is_no_divider():
    assert drawn_in(10, facts_of(5, capacity=10)) == "11111·····"


def test_a_memory_smaller_than_the_map_gives_every_token_several_cells():
    assert drawn_in(13, facts_of(1, 1, capacity=4, pinned=1)) == "SSS│111222···"


def test_what_has_left_takes_its_share_of_the_window_and_at_least_one_cell():
    facts = facts_of(60, capacity=100, pinned=20)
    assert [cells_of(tokens, facts, 40) for tokens in (1, 20, 80, 500)] == [1, 10, 40, 40]
