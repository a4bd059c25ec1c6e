"""The numbers behind the panel: exact rates, what is forgotten, and for how long an eviction is news."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remembered import Held

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import Evicted, Notice, PromptProgress, PromptRead, TextDelta, TurnEnded, TurnRest
from sinkchat.terminal.drawing.gauge import Answering, Gauge, Idle, Loss, PanelFacts, Reading

FULL = CacheState(seen=3_252, evicted=1_204, pinned=46, capacity=2_048, nbytes=2**30)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Memory:
    """A conversation as far as the gauge looks into it."""

    state: CacheState = FULL
    held: list[Held] = field(default_factory=lambda: [Held(4, 253, 320), Held(5, 1_749, 1_749)])
    latest: int = 5
    pinned_turns: tuple[int, ...] = ()
    forgets: bool = True


def seen(tokens: int) -> CacheState:
    return CacheState(tokens, 0, 4, 100_000, 0)


def ended(tokens: int = 20, rate: float = 31.4) -> TurnEnded:
    return TurnEnded(5, "text", "stop", 10, tokens, ttft_s=0.42, tokens_per_s=rate, state=FULL)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gauge(clock) -> Gauge:
    return Gauge(clock=clock)


def activity(gauge: Gauge):
    return gauge.facts(Memory()).activity


def test_before_the_first_turn_nothing_is_known(gauge):
    assert gauge.facts(Memory()) == PanelFacts(FULL, tuple(Memory().held), 5)


def test_the_memory_of_the_device_is_asked_for_each_time(clock):
    answers = iter([None, 7])
    gauge = Gauge(clock=clock, device_bytes=lambda: next(answers))
    assert [gauge.facts(Memory()).device_bytes for _ in range(2)] == [None, 7]


def test_reading_has_a_rate_and_an_end(gauge):
    gauge.show(PromptProgress(1_000, 5_000, 2.0, seen(1_000)))
    assert activity(gauge) == Reading(1_000, 5_000, rate=500.0, seconds_left=8.0)


def test_input_that_still_arrives_has_no_end(gauge):
    gauge.show(PromptProgress(1_000, None, 2.0, seen(1_000)))
    assert activity(gauge) == Reading(1_000, None, rate=500.0, seconds_left=None)


def test_the_opening_counts_for_the_rate_of_the_first_turn(gauge):
    gauge.show(PromptProgress(100, 100, 1.0, seen(100)))
    gauge.show(PromptProgress(300, 900, 4.0, seen(400)))
    assert activity(gauge) == Reading(300, 900, rate=100.0, seconds_left=6.0)


def test_each_turn_is_read_at_its_own_rate(gauge):
    gauge.show(PromptProgress(100, 100, 1.0, seen(100)))
    gauge.show(PromptRead(1, 100, 1.0, seen(100)))
    gauge.show(ended())
    gauge.show(PromptProgress(50, 50, 2.0, seen(400)))
    assert activity(gauge) == Reading(50, 50, rate=25.0, seconds_left=0.0)


def test_the_prefill_rate_is_of_the_last_input_read_whole(gauge):
    gauge.show(PromptRead(1, 812, 2.0, seen(812)))
    gauge.show(PromptProgress(10, 50, 2.0, seen(900)))
    assert gauge.facts(Memory()).prefill_rate == 406.0


def test_an_answer_begins_without_numbers(gauge):
    gauge.show(PromptRead(5, 10, 0.3, FULL))
    assert activity(gauge) == Answering(tokens=0, rate=None, first_s=None)


def test_the_first_token_is_timed_from_the_sending(gauge, clock):
    gauge.show(PromptRead(5, 10, 0.25, FULL))
    clock.now += 0.5
    gauge.show(TextDelta("a", 1, FULL))
    assert activity(gauge) == Answering(tokens=1, rate=None, first_s=0.75)


def test_the_running_rate_of_a_short_answer_is_the_one_it_ends_with(gauge, clock):
    """Tokens after the first over the time since the first, computed here from all of the times."""
    times = [clock.now + 0.3 * n + 0.01 * n * n for n in range(12)]
    gauge.show(PromptRead(5, 10, 0.25, FULL))
    for token, at in enumerate(times, start=1):
        clock.now = at
        gauge.show(TextDelta("a", token, FULL))
    assert activity(gauge).rate == pytest.approx((len(times) - 1) / (times[-1] - times[0]))
    assert activity(gauge).rate != pytest.approx(len(times) / (times[-1] - times[0]))  # the first is not counted


def test_the_running_rate_of_a_long_answer_looks_five_seconds_back(gauge, clock):
    gauge.show(PromptRead(5, 10, 0.25, FULL))
    for token in range(1, 101):
        clock.now += 0.125 if token <= 60 else 0.5
        gauge.show(TextDelta("a", token, FULL))
    assert activity(gauge).rate == pytest.approx(2.0)
    assert activity(gauge).tokens == 100


def test_tokens_without_text_of_their_own_are_counted(gauge, clock):
    gauge.show(PromptRead(5, 10, 0.25, FULL))
    gauge.show(TextDelta("a", 1, FULL))
    clock.now += 2
    gauge.show(TextDelta("é", 5, FULL))
    assert activity(gauge).rate == 2.0


def test_after_the_answer_its_own_numbers_stay(gauge):
    gauge.show(PromptRead(5, 10, 0.25, FULL))
    gauge.show(TextDelta("a", 1, FULL))
    gauge.show(ended())
    gauge.show(Notice("a sentence"))
    assert activity(gauge) == Idle(tokens=20, rate=31.4, first_s=0.42)


def test_an_answer_of_one_token_has_no_rate(gauge):
    gauge.show(ended(tokens=1, rate=0.0))
    assert activity(gauge) == Idle(tokens=1, rate=None, first_s=0.42)


def test_a_turn_that_is_taken_back_leaves_the_numbers_of_the_one_before(gauge):
    gauge.show(ended())
    gauge.show(PromptProgress(10, 50, 2.0, seen(900)))
    gauge.break_off()
    assert activity(gauge) == Idle(tokens=20, rate=31.4, first_s=0.42)


def test_what_left_is_news_for_one_second(gauge, clock):
    gauge.show(Evicted(Span(1_100, 1_200), (3,), None, FULL))
    clock.now += 0.75
    gauge.show(Evicted(Span(1_200, 1_250), (), TurnRest(4, 100, 50), FULL))
    assert gauge.facts(Memory()).loss == Loss(Span(1_100, 1_250), (3, 4))
    clock.now += 0.25
    assert gauge.facts(Memory()).loss == Loss(Span(1_200, 1_250), (4,))
    clock.now += 0.75
    assert gauge.facts(Memory()).loss is None


def test_a_turn_that_goes_on_leaving_is_no_news(gauge):
    gauge.show(Evicted(Span(1_200, 1_201), (), TurnRest(4, 100, 98), FULL))
    assert gauge.facts(Memory()).loss == Loss(Span(1_200, 1_201), ())


def test_what_belongs_to_no_turn_is_what_the_turns_leave_of_the_window():
    facts = PanelFacts(CacheState(60, 0, 4, 100, 0), (Held(1, 30, 30), Held(2, 6, 6)), 2)
    assert (facts.unowned, facts.next_to_go, facts.partly) == (20, None, None)


def test_the_oldest_turn_goes_next_and_may_be_going():
    facts = PanelFacts(FULL, (Held(4, 253, 320), Held(5, 1_749, 1_749)), 5)
    assert (facts.unowned, facts.next_to_go, facts.partly) == (0, Held(4, 253, 320), Held(4, 253, 320))


def test_the_first_fill_ends_with_the_first_loss():
    assert PanelFacts(CacheState(90, 0, 4, 100, 0)).first_fill == 0.9
    assert PanelFacts(CacheState(101, 1, 4, 100, 0)).first_fill == 0.0


@given(st.integers(0, 60), st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)))
def test_forgotten_are_all_turns_but_those_held_and_pinned(latest, held, pinned):
    held, pinned = ({n for n in numbers if n <= latest} for numbers in (held, pinned))
    facts = PanelFacts(FULL, tuple(Held(n, 1, 1) for n in held), latest, tuple(pinned))
    runs = facts.forgotten
    assert [number for run in runs for number in run] == sorted(set(range(1, latest + 1)) - held - pinned)
    assert all(before.stop < after.start for before, after in pairwise(runs))
