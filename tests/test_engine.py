"""The loop around the model: what is read, drawn, counted and left pending."""

from itertools import pairwise

import pytest
import torch
from streams import engine_for, random_ids
from tiny import tiny_model
from transformers import DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictMessages, Span
from sinkchat.engine.sampling import Greedy
from sinkchat.engine.segment import Segment

MODEL = tiny_model("llama", 2)
NONE: frozenset[int] = frozenset()


def greedy(engine, count, **options):
    return [step.token for step in engine.generate(Greedy(), stop_ids=NONE, max_tokens=count, **options)]


def test_greedy_tokens_are_those_of_a_plain_loop_over_a_dynamic_cache():
    ids = random_ids(10)
    engine = engine_for(MODEL, capacity=64)
    engine.feed(ids)
    forward, cache, expected, fed = Forward(MODEL), DynamicCache(), [], list(ids)
    for start in range(40):
        first = 0 if start == 0 else len(ids) + start - 1
        logits = forward(torch.tensor([fed]), torch.arange(first, first + len(fed)).unsqueeze(0), cache)
        fed = [int(logits[0, -1].argmax())]
        expected += fed
    assert greedy(engine, 40) == expected


def test_the_last_token_drawn_waits_to_be_fed():
    engine = engine_for(MODEL)
    engine.feed(random_ids(5))
    tokens = greedy(engine, 3)
    assert engine.pending == tokens[-1:]
    assert engine.held_ids[-2:] == tokens[:2]
    assert engine.state.seen == 7
    engine.feed([9])
    assert engine.held_ids[-2:] == [tokens[-1], 9]


def test_a_stop_id_ends_the_answer_and_is_not_kept():
    engine, other = engine_for(MODEL), engine_for(MODEL)
    for each in (engine, other):
        each.feed(random_ids(5))
    tokens = greedy(other, 6)
    stop = next(token for token in tokens if tokens.index(token) > 0)
    steps = list(engine.generate(Greedy(), stop_ids=frozenset([stop])))
    assert [step.token for step in steps] == tokens[: tokens.index(stop) + 1]
    assert engine.pending == []
    assert stop not in engine.held_ids[5:]


def test_the_stop_flag_is_read_once_a_token():
    engine = engine_for(MODEL)
    engine.feed(random_ids(5))
    asked = iter([False, False, False, True])
    assert len(greedy(engine, 0, stopped=lambda: next(asked))) == 2
    assert len(engine.pending) == 1


def test_a_flag_that_is_set_before_the_first_token_draws_nothing():
    engine = engine_for(MODEL)
    engine.feed(random_ids(5))
    assert greedy(engine, 0, stopped=lambda: True) == []
    assert engine.pending == []


def test_leaving_the_loop_stops_the_generation():
    engine = engine_for(MODEL)
    engine.feed(random_ids(5))
    for _ in engine.generate(Greedy(), stop_ids=NONE):
        break
    assert (engine.state.seen, len(engine.pending)) == (5, 1)


def test_every_eviction_is_told_once_and_in_order():
    engine = engine_for(MODEL, EvictMessages(), capacity=16, pinned=4)
    spans: list[Span] = []
    for step in engine.read([Segment(tuple(random_ids(37)), opens_message=True)]):
        spans += step.evicted
    for step in engine.generate(Greedy(), stop_ids=NONE, max_tokens=30):
        spans += step.evicted
    assert spans[0].start == 4
    assert all(a.stop == b.start for a, b in pairwise(spans))
    assert sum(map(len, spans)) == engine.state.evicted > 20


def test_input_is_pulled_as_it_is_needed():
    engine = engine_for(MODEL, capacity=64, chunk_size=8)
    pulled = []

    def arriving():
        for index in range(10):
            pulled.append(index)
            yield Segment(tuple(random_ids(4, seed=index)))

    steps = engine.read(arriving())
    next(steps)
    assert len(pulled) == 2
    assert engine.state.seen == 8


def test_one_answer_of_five_thousand_tokens_stays_within_its_cache():
    engine = engine_for(MODEL, EvictMessages(), capacity=256, pinned=4)
    engine.feed(random_ids(20))
    for step in engine.generate(Greedy(), stop_ids=NONE, max_tokens=5_000):
        assert step.state.occupied <= 256
    assert engine.state.seen == 20 + 4_999
    assert len(engine.held_ids) == engine.state.occupied


def test_going_on_from_nothing_is_a_mistake():
    with pytest.raises(ValueError, match="nothing was read"):
        greedy(engine_for(MODEL), 1)


def test_a_retry_from_a_mark_draws_the_same_tokens_after_evictions():
    engine = engine_for(MODEL)
    engine.feed(random_ids(30))
    mark = engine.mark()
    answers = []
    for _ in range(3):
        engine.rewind(mark)
        engine.feed(random_ids(9, seed=4))
        answers.append(greedy(engine, 40))
    assert answers[0] == answers[1] == answers[2]
