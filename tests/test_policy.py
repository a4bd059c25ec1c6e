"""Who leaves: plain integers, compared whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkchat.cache.policy import CacheState, EvictMessages, EvictTokens, Span
from sinkchat.errors import UsageError

WINDOW = Span(100, 180)


def test_the_paper_s_rule_lets_one_token_leave():
    assert EvictTokens(1).span_to_evict(WINDOW, 80, [110]) == Span(100, 101)


def test_a_block_leaves_at_once():
    assert EvictTokens(64).span_to_evict(WINDOW, 80, [110]) == Span(100, 164)


def test_a_block_larger_than_the_window_takes_all_of_it():
    assert EvictTokens(200).span_to_evict(WINDOW, 80, []) == Span(100, 180)


def test_a_whole_message_leaves():
    assert EvictMessages().span_to_evict(WINDOW, 80, [100, 107, 150]) == Span(100, 107)


def test_what_is_left_of_a_message_leaves_whole():
    assert EvictMessages().span_to_evict(WINDOW, 80, [90, 103, 150]) == Span(100, 103)


def test_a_long_message_leaves_in_eighths_of_the_window():
    assert EvictMessages().span_to_evict(WINDOW, 80, [100, 150]) == Span(100, 110)


def test_a_message_that_fills_the_window_leaves_in_eighths():
    assert EvictMessages().span_to_evict(WINDOW, 80, [20]) == Span(100, 110)


def test_no_block_is_refused():
    with pytest.raises(UsageError, match="0 tokens"):
        EvictTokens(0)


@given(st.lists(st.integers(0, 300), unique=True), st.integers(0, 200), st.integers(1, 90))
def test_every_policy_names_some_of_the_oldest(borders, start, length):
    window = Span(start, start + length)
    for policy in (EvictTokens(1), EvictTokens(7), EvictMessages()):
        span = policy.span_to_evict(window, length, sorted(borders))
        assert span.start == window.start
        assert window.start < span.stop <= window.stop


def test_the_numbers_of_a_state_add_up():
    state = CacheState(seen=3252, evicted=1204, pinned=46, capacity=2048, nbytes=0)
    assert (state.occupied, state.window, state.window_capacity, state.next_to_leave) == (2048, 2002, 2002, 1250)
    assert state.pinned + state.window + state.evicted == state.seen
