"""Recall against distance: it ends where the window ends, by arithmetic, within one fact."""

from dataclasses import replace

import pytest
import torch
from streams import engine_for
from tiny import tiny_model, tiny_tokenizer
from transformers import DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import CacheState, EvictMessages, EvictNothing, EvictTokens
from sinkchat.errors import UsageError
from sinkchat.lab.recall.induction import LineTokenizer
from sinkchat.lab.recall.measured import stream_eval
from sinkchat.lab.recall.recall import (
    HEADER,
    Answer,
    Fact,
    Plan,
    Point,
    Reading,
    distances_around,
    line_text,
    question_for,
    recall_of,
)
from sinkchat.models.induction import induction_model

WORDS = LineTokenizer()
INDUCTION = induction_model(LineTokenizer.vocabulary_size)
LINE = 3
"""tokens of a line, to its tokenizer"""


def answers_of(*arguments):
    """What `stream_eval` answers, without how far it is."""
    return [event for event in stream_eval(*arguments) if isinstance(event, Answer)]


def facts(count, seed=0):
    numbers = torch.randint(1000, 10_000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    lines = [line_text(line, number) for line, number in enumerate(numbers, 1)]
    return numbers, WORDS.encode(HEADER + "".join(lines))


def dense_logits(ids):
    return Forward(INDUCTION)(torch.tensor([ids]), torch.arange(len(ids)).unsqueeze(0), DynamicCache())[0, -1]


def test_the_induction_head_recalls_every_fact_however_far_back():
    numbers, ids = facts(700)
    for line in (1, 2, 99, 350, 698, 699, 700):
        said = int(dense_logits([*ids, *WORDS.encode(question_for(line))]).argmax())
        assert WORDS.decode([said]) == str(numbers[line - 1])


def test_what_it_was_not_told_it_does_not_know():
    """The control: the same question, its line left out."""
    numbers, ids = facts(300)
    start = len(WORDS.encode(HEADER)) + LINE * 99
    without = ids[:start] + ids[start + LINE :]
    said = int(dense_logits([*without, *WORDS.encode(question_for(100))]).argmax())
    assert WORDS.decode([said]) != str(numbers[99])


def test_a_line_is_three_tokens_and_comes_back_as_it_was():
    ids = WORDS.encode(line_text(17, 4821))
    assert len(ids) == LINE
    assert WORDS.decode(ids) == "line 17: REGISTER_CONTENT is <4821>\n"
    assert WORDS.encode(question_for(17)) == WORDS.encode(question_for(5017)) == ids[:1]
    assert WORDS.decode(WORDS.encode("Remember 12")) == "??"


@pytest.mark.parametrize("policy", [EvictTokens(), EvictTokens(7), EvictMessages()], ids=["token", "block", "turn"])
@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("capacity", [40, 64])
def test_recall_ends_at_the_window_s_edge_within_one_fact(policy, sinks, capacity):
    engine = engine_for(INDUCTION, policy, capacity=capacity, pinned=0)
    answers = answers_of(engine, WORDS, Plan(sinks=sinks, rounds=2))
    found = recall_of(answers, capacity=capacity, sinks=sinks)
    assert found.edge <= found.reach <= found.edge + 1
    assert all(answer.is_right for answer in answers if answer.is_held)
    assert not any(answer.is_right for answer in answers if answer.lines_back > found.edge + 1)
    assert min(point.lines_back for point in found.points) == 1
    assert max(point.lines_back for point in found.points) > found.edge + 2


def test_the_edge_is_where_a_count_by_hand_puts_it():
    """Evicting token by token: of the window the question takes one token, and the answer another."""
    engine = engine_for(INDUCTION, EvictTokens(), capacity=64, pinned=0)
    found = recall_of(answers_of(engine, WORDS, Plan(rounds=1)), capacity=64, sinks=4)
    assert found.edge == (64 - 4 - 2) // LINE
    other = recall_of(
        answers_of(engine_for(INDUCTION, EvictTokens(), capacity=94), WORDS, Plan(rounds=1)),
        capacity=94,
        sinks=4,
    )
    assert other.edge == found.edge + 30 // LINE


def test_a_window_that_forgets_nothing_has_no_edge():
    """The control: the same lines with room for all of them."""
    engine = engine_for(INDUCTION, EvictNothing(), capacity=2048, pinned=0)
    answers = answers_of(engine, WORDS, Plan(sinks=0, rounds=2, distances=(1, 19, 150)))
    assert all(answer.is_right and answer.is_held for answer in answers)
    assert [answer.lines_back for answer in answers] == [1, 19, 150] * 2


def test_a_model_that_cannot_recall_recalls_nothing():
    engine = engine_for(tiny_model("llama", 1), EvictMessages(), capacity=320, pinned=0)
    answers = answers_of(engine, tiny_tokenizer(), Plan(rounds=1, distances=(1, 2)))
    assert not any(answer.is_right for answer in answers)
    assert answers[0].tokens_back == len(line_text(10, 1000))
    assert all(answer.is_held for answer in answers)


def test_questions_leave_no_trace_in_the_stream():
    quiet, asking = (engine_for(INDUCTION, EvictMessages(), capacity=64, pinned=0) for _ in range(2))
    *_, _ = stream_eval(quiet, WORDS, Plan(rounds=1, distances=(40,)))
    *_, _ = stream_eval(asking, WORDS, Plan(rounds=1, distances=(1, 2, 3, 20, 30, 40)))
    assert quiet.held_ids == asking.held_ids
    assert quiet.state == asking.state
    assert torch.equal(quiet.logits, asking.logits)


def test_leaving_early_keeps_the_stream_whole():
    engine = engine_for(INDUCTION, EvictMessages(), capacity=64, pinned=0)
    events = stream_eval(engine, WORDS, Plan(distances=(1,)))
    assert next(event for event in events if isinstance(event, Answer)).is_right
    assert engine.state.seen == len(engine.held_ids) + engine.state.evicted


def test_every_line_tells_how_far_it_is():
    engine = engine_for(INDUCTION, EvictMessages(), capacity=64, pinned=0)
    events = list(stream_eval(engine, WORDS, Plan(rounds=2, distances=(1, 15))))
    told = [event for event in events if isinstance(event, Reading)]
    assert [(one.lines, one.asked) for one in told] == [(line, 0 if line <= 20 else 2) for line in range(1, 31)]
    assert {(one.of_lines, one.to_ask) for one in told} == {(30, 4)}
    assert len(events) == 34


def test_other_seeds_are_other_numbers():
    def numbers(seed):
        engine = engine_for(INDUCTION, EvictMessages(), capacity=64, pinned=0)
        return [answer.number for answer in answers_of(engine, WORDS, Plan(rounds=1, distances=(1, 5), seed=seed))]

    assert numbers(1) == numbers(1) != numbers(2)


@pytest.mark.parametrize(
    ("start", "stop", "is_held"),
    [(0, 4, True), (2, 6, False), (13, 17, False), (14, 18, True), (90, 94, True)],
    ids=["a sink", "half a sink", "half gone", "oldest", "recent"],
)
def test_a_fact_is_held_if_all_of_it_is(start, stop, is_held):
    state = CacheState(seen=100, evicted=10, pinned=4, capacity=90, nbytes=0)
    assert Fact(1, 1000, start, stop).is_held(state) is is_held
    assert Fact(1, 1000, start, stop).is_held(replace(state, evicted=0))


def test_answers_are_counted_by_distance():
    answers = [
        Answer(1, 3, "1234", "1234", True),
        Answer(9, 27, "1234", "1234", True),
        Answer(9, 29, "1234", "12345", False),
        Answer(12, 36, "1234", "", False),
    ]
    found = recall_of(answers, capacity=64, sinks=4)
    assert found.points == (Point(1, 3, 1, 1, 1), Point(9, 28, 2, 1, 1), Point(12, 36, 1, 0, 0))
    assert (found.edge, found.reach) == (9, 9)
    assert recall_of([], capacity=64, sinks=4).edge == 0


def test_distances_are_dense_at_the_edge():
    assert distances_around(40) == (1, 5, 10, 15, 20, 25, 30, 35, 37, 38, 39, 40, 41, 42, 43, 45, 50, 55, 60)
    assert distances_around(2) == (1, 2, 3, 4, 5)


def test_a_cache_in_which_hardly_a_line_has_room_is_refused():
    engine = engine_for(INDUCTION, EvictMessages(), capacity=12, pinned=0)
    with pytest.raises(UsageError, match="4 sinks and lines of 3 tokens leave room for 2 of them in a cache of 12"):
        next(stream_eval(engine, WORDS, Plan()))


def test_no_line_back_is_no_distance():
    with pytest.raises(UsageError, match="--distances begin there"):
        Plan(distances=(0, 1))


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_recalls_nothing_beyond_its_window(smollm2):
    engine = engine_for(smollm2.model, EvictMessages(), capacity=256, pinned=0)
    answers = answers_of(engine, smollm2.tokenizer, Plan(rounds=3, distances=(1, 5, 14, 20)))
    assert [answer.is_held for answer in answers] == [True, True, False, False] * 3
    assert not any(answer.is_right for answer in answers if not answer.is_held)
