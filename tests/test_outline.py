"""What memory holds as a difference: nothing is lost on the way, and a difference that is lost is found out."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_session import ended, session_of, stop_at

from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.chat.events import TextDelta
from sinkchat.chat.options import ChatOptions
from sinkchat.chat.outline import Outline, OutlineMismatch
from sinkchat.chat.turns import Entry
from sinkchat.engine.segment import Segment
from sinkchat.errors import UsageError

BRIEF = ChatOptions(temperature=0, max_tokens=2)


def through_json(value):
    return json.loads(json.dumps(value))


def happen(session, what: str, number: int) -> None:
    """One of the things that change memory; where it cannot be done now, nothing happens."""
    try:
        if what == "send":
            ended(session, f"{number} " + "w " * number)
        elif what == "stop":
            stop_at(session, f"{number}", TextDelta)
        elif what == "clear":
            session.clear()
        elif what == "proceed":
            list(session.proceed())
        elif what == "pin":
            list(session.pin(1 + number % max(1, session.latest)).events)
        elif what == "unpin":
            list(session.unpin(session.pinned_turns[0] if session.pinned_turns else 1).events)
        else:
            list(session.undo(None if what == "undo" else 1 + number % max(1, session.latest)).events)
    except UsageError:
        pass


DEEDS = ("send", "send", "send", "stop", "proceed", "undo", "deep undo", "clear", "pin", "unpin")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    deeds=st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(1, 25)), max_size=10),
    policy=st.sampled_from([EvictMessages(), EvictTokens(1)]),
)
def test_differences_lead_through_a_conversation(deeds, policy):
    session = session_of(capacity=128, policy=policy, options=BRIEF)
    before = Outline()
    for what, number in deeds:
        happen(session, what, number)
        outline = session.outline
        assert Outline.from_difference(through_json(outline.difference(before)), before) == outline
        assert Outline.from_difference(through_json(outline.difference())) == outline
        before = outline


ROWS = st.builds(Entry, st.integers(1, 9), st.integers(0, 99), st.text(max_size=3), st.text(max_size=3))
IDS = st.lists(st.integers(0, 3), max_size=6).map(tuple)
OUTLINES = st.builds(
    Outline,
    pinned=IDS,
    to_pin=st.integers(0, 9),
    window=IDS,
    pending=IDS,
    evicted=st.integers(0, 9),
    borders=IDS,
    turns=st.lists(ROWS, max_size=4).map(tuple),
    pins=st.lists(st.tuples(ROWS, st.integers(1, 9)), max_size=3).map(tuple),
    count=st.integers(0, 9),
    is_closed=st.booleans(),
    finish=st.sampled_from([None, "stop", "length", "interrupt"]),
)


@settings(max_examples=300, deadline=None)
@given(OUTLINES, OUTLINES, OUTLINES)
def test_a_difference_leads_to_its_outline_and_from_another_one_nowhere_else(before, after, other):
    difference = through_json(after.difference(before))
    assert Outline.from_difference(difference, before) == after
    try:
        assert Outline.from_difference(difference, other) == after
    except OutlineMismatch:
        assert other != before


def test_an_outline_tells_what_the_engine_holds():
    session = session_of(capacity=128)
    for index in range(8):
        ended(session, f"message {index}")
    outline, engine, state = session.outline, session.engine, session.state
    assert [*outline.pinned, *outline.window] == engine.held_ids
    assert (len(outline.pinned), outline.evicted, list(outline.pending)) == (
        state.pinned,
        state.evicted,
        engine.pending,
    )
    assert list(outline.segments()) == engine.window_segments()
    assert outline.first == state.next_to_leave
    assert (outline.count, outline.finish, outline.is_closed) == (8, "length", False)
    assert [entry.number for entry in outline.turns] == [turn.number for turn in session.turns]


def test_segments_are_cut_where_messages_begin():
    outline = Outline(pinned=(1, 2), window=(3, 4, 5, 6), evicted=10, borders=(12, 14))
    assert list(outline.segments()) == [Segment((3, 4), opens_message=True), Segment((5, 6), opens_message=True)]
    assert list(Outline(window=(3, 4), borders=(1,)).segments()) == [Segment((3,)), Segment((4,), opens_message=True)]
    assert list(Outline().segments()) == []


def test_a_turn_is_written_as_what_is_new_in_it():
    session = session_of(capacity=1024)
    for index in range(40):
        ended(session, f"message {index}")
    before = session.outline
    ended(session, "one more")
    difference = session.outline.difference(before)
    dropped, kept, new = difference["window"]
    assert dropped > 0
    assert dropped + kept == len(before.window)
    assert new == session.engine.held_ids[-len(new) :]
    assert len(json.dumps(difference)) < len(json.dumps(session.outline.difference())) / 5


def test_nothing_new_is_written_as_nothing():
    session = session_of()
    ended(session, "one")
    outline = session.outline
    assert outline.difference(outline) == {"check": outline.check}


def test_a_lost_difference_is_found_out_at_the_next():
    session = session_of(capacity=128)
    ended(session, "one")
    first = session.outline
    ended(session, "two")
    second = session.outline
    ended(session, "three")
    difference = session.outline.difference(second)
    assert Outline.from_difference(difference, second) == session.outline
    with pytest.raises(OutlineMismatch, match="belongs to another outline"):
        Outline.from_difference(difference, first)


@pytest.mark.parametrize(
    "difference",
    [
        {},
        {"check": None},
        {"window": 3, "check": ""},
        {"window": [0, 0], "check": ""},
        {"window": [0, 0, ["x"]], "check": ""},
        {"turns": [0, 0, [[1]]], "check": ""},
        {"pins": [0, 0, [None]], "check": ""},
        {"count": 1e400, "check": ""},
        {"count": [], "check": ""},
        {"pending": [{}], "check": ""},
    ],
)
def test_what_is_no_difference_is_refused(difference):
    with pytest.raises(OutlineMismatch):
        Outline.from_difference(difference)


def test_names_of_a_later_version_are_passed_over():
    assert Outline.from_difference({"colour": "green", **Outline(count=3).difference()}) == Outline(count=3)
