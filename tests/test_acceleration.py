"""The faster way changes time and nothing else: the oracles of the cache on it, and what happens when it fails."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from reference import reference_logits
from stepping import Counted, Eager, Runs, accelerated_engine, eager_step, ring_engine
from streams import distance, held_after, logits_in_chunks, logits_one_by_one, random_ids
from tiny import tiny_model
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.cache.ring import BLOCK, RingStorage
from sinkchat.engine.acceleration import PROOFS, difference
from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy

FAMILIES = ("llama", "qwen3", "gpt_neox", "phi")
CAPACITY, PINNED = 2 * BLOCK, 4
WINDOW = CAPACITY - PINNED
ROTARY = pytest.mark.parametrize("family", FAMILIES)
POLICY = pytest.mark.parametrize("policy", [EvictTokens(), EvictMessages()], ids=["token", "turn"])


def counted_engine(model, spoil: Callable[[Tensor], Tensor] = lambda logits: logits) -> tuple[Engine, Counted, Eager]:
    """An accelerated engine, its step and its source."""
    made: list[tuple[Counted, Eager]] = []

    def source(ring: RingStorage) -> Eager:
        step = Counted(eager_step(model, ring), spoil)
        made.append((step, Eager(step)))
        return made[0][1]

    return accelerated_engine(model, source=source), *made[0]


def greedy(engine: Engine, count: int) -> list[int]:
    return [step.token for step in engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=count)]


def fresh_forward(model, ids: list[int]) -> Tensor:
    """Logits (V,) of the last of `ids`, read at positions 0 to n - 1 with no cache at all."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def one_layer_error(family: str, *, moves_sinks: bool) -> float:
    """In one layer a key depends on its own token only: streaming equals reading what is kept afresh."""
    model = tiny_model(family, 1)
    ids = random_ids(3 * CAPACITY)
    streamed = logits_one_by_one(accelerated_engine(model, moves_sinks=moves_sinks), ids)
    kept = ([ids[i] for i in held_after(count, CAPACITY, PINNED)] for count in range(1, len(ids) + 1))
    return distance(streamed, torch.stack([fresh_forward(model, tokens) for tokens in kept]))


@ROTARY
def test_one_layer_equals_a_fresh_forward_over_what_is_kept(family):
    assert one_layer_error(family, moves_sinks=True) < 1e-5


@ROTARY
def test_without_moving_the_sinks_one_layer_is_wrong(family):
    assert one_layer_error(family, moves_sinks=False) > 0.1


@ROTARY
@POLICY
def test_three_layers_equal_the_reference(family, policy):
    model = tiny_model(family, 3)
    ids, borders = random_ids(2 * CAPACITY + 20), [4, 20, 23, 70, 74, 120]
    engine = accelerated_engine(model, policy)
    for border in borders:
        engine.cache.open_message(border)
    expected = reference_logits(model, ids, policy, capacity=CAPACITY, pinned=PINNED, borders=borders)
    assert distance(logits_one_by_one(engine, ids), expected) < 1e-4


def test_the_reference_sees_sinks_that_do_not_move():
    model = tiny_model("llama", 3)
    ids = random_ids(3 * CAPACITY)
    expected = reference_logits(model, ids, EvictTokens(), capacity=CAPACITY, pinned=PINNED)
    assert distance(logits_one_by_one(accelerated_engine(model, moves_sinks=False), ids), expected) > 0.1


@POLICY
def test_how_text_was_handed_over_does_not_matter(policy):
    model = tiny_model("llama", 3)
    borders = [4, 20, 23, 70, 74, 120, 150]
    ids = random_ids(2 * WINDOW + 40)

    def last_logits(size: int) -> Tensor:
        return logits_in_chunks(accelerated_engine(model, policy), ids, size, borders)

    one_by_one = last_logits(1)
    for size in (7, WINDOW - 1, WINDOW + 1, len(ids)):
        assert distance(last_logits(size), one_by_one) < 3e-5, size
    other = logits_in_chunks(accelerated_engine(model, EvictTokens(5)), ids, 7, borders)
    assert distance(other, one_by_one) > 0.01


@ROTARY
def test_before_the_first_eviction_all_is_as_with_a_dynamic_cache(family):
    model = tiny_model(family, 3)
    ids = random_ids(CAPACITY)
    cuts = [0, 7, *range(8, CAPACITY + 1)]
    forward, cache = Forward(model), DynamicCache()
    expected = [
        forward(torch.tensor([ids[a:b]]), torch.arange(a, b).unsqueeze(0), cache)[0, -1] for a, b in pairwise(cuts)
    ]
    engine, logits = accelerated_engine(model), []
    for a, b in pairwise(cuts):
        engine.feed(ids[a:b])
        logits.append(engine.logits)
    assert engine.state.evicted == 0
    assert distance(torch.stack(logits), torch.stack(expected)) < 1e-5


def test_a_greedy_answer_is_the_same_long_after_the_first_eviction():
    model = tiny_model("llama", 2)
    (engine, step, source), plain, other = counted_engine(model), ring_engine(model), ring_engine(model, pinned=3)
    for each in (engine, plain, other):
        each.feed(random_ids(30))
    tokens = greedy(engine, 500)
    assert tokens == greedy(plain, 500)
    assert tokens != greedy(other, 500)
    assert len(set(tokens[-100:])) > 10
    assert (step.calls, source.refusals) == (499, [])


def test_a_conversation_can_be_taken_back_and_put_back():
    model = tiny_model("llama", 2)
    engine, plain = accelerated_engine(model), ring_engine(model)
    for each in (engine, plain):
        each.feed(random_ids(90))
        mark = each.mark()
        greedy(each, 50)
        each.rewind(mark)
        image = each.image()
        greedy(each, 70)
        each.restore(image)
        each.truncate(80)
        each.feed([9])
        each.feed([8])
    assert engine.held_ids == plain.held_ids
    assert distance(engine.logits, plain.logits) < 3e-5


def test_the_first_tokens_are_computed_both_ways_and_answered_by_the_plain_one():
    model = tiny_model("llama", 2)
    (engine, step, _), plain = counted_engine(model), ring_engine(model)
    forwards = []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(None))
    for count, token in enumerate(random_ids(PROOFS), start=1):
        engine.feed([token])
        assert (step.calls, len(forwards)) == (count, count)
    for token in random_ids(3):
        engine.feed([token])
    handle.remove()
    assert (step.calls, len(forwards)) == (PROOFS + 3, PROOFS)
    plain_logits = logits_one_by_one(plain, random_ids(PROOFS))
    assert torch.equal(logits_one_by_one(accelerated_engine(model), random_ids(PROOFS)), plain_logits)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda logits: logits + 0.01 * logits.std(), "0.01"),
        (lambda logits: torch.full_like(logits, torch.nan), "nan"),
    ],
    ids=["a hundredth off", "no numbers"],
)
def test_a_step_that_is_wrong_is_refused_and_answers_stay_those_of_the_plain_forward(spoil, told):
    model = tiny_model("llama", 2)
    (engine, step, source), plain = counted_engine(model, spoil), ring_engine(model)
    ids = random_ids(3 * CAPACITY)
    assert torch.equal(logits_one_by_one(engine, ids), logits_one_by_one(plain, ids))
    assert source.refusals == [f"compiled logits are {told} standard deviations off (bound 0.001)"]
    assert (step.calls, source.step) == (1, None)


def test_a_step_that_goes_wrong_before_it_is_trusted_is_refused_as_well():
    model = tiny_model("llama", 2)
    wrong_from = PROOFS - 1
    calls = iter(range(1_000))
    engine, step, source = counted_engine(model, lambda logits: logits * (2 if next(calls) >= wrong_from else 1))
    logits_one_by_one(engine, random_ids(10))
    assert (step.calls, len(source.refusals)) == (PROOFS, 1)


def test_rounding_is_no_fault():
    model = tiny_model("llama", 2)
    engine, step, source = counted_engine(model, lambda logits: logits + 0.0005 * logits.std())
    logits_one_by_one(engine, random_ids(10))
    assert (step.calls, source.refusals) == (10, [])


@pytest.mark.parametrize("trusted", [0, PROOFS + 60], ids=["at once", "once it is trusted"])
def test_a_step_that_fails_is_refused_and_its_token_computed_plainly(trusted):
    model = tiny_model("llama", 2)
    calls = iter(range(1_000))

    def broken(logits: Tensor) -> Tensor:
        if next(calls) == trusted:
            raise RuntimeError("run_func_( container_handle_ ) failed\n  at model_container_runner.cpp:149")
        return logits

    (engine, step, source), plain = counted_engine(model, broken), ring_engine(model)
    ids = random_ids(3 * CAPACITY)
    assert distance(logits_one_by_one(engine, ids), logits_one_by_one(plain, ids)) < 3e-5
    assert source.refusals == ["a compiled step failed: run_func_( container_handle_ ) failed"]
    assert step.calls == trusted + 1


def test_a_person_who_interrupts_a_step_leaves_the_cache_as_it_was():
    model = tiny_model("llama", 2)
    calls = iter(range(1_000))

    def interrupted(logits: Tensor) -> Tensor:
        if next(calls) == 20:
            raise KeyboardInterrupt
        return logits

    (engine, _, source), plain = counted_engine(model, interrupted), ring_engine(model)
    ids = random_ids(90)
    logits_one_by_one(engine, ids[:20])
    with pytest.raises(KeyboardInterrupt):
        engine.feed([ids[20]])
    assert (engine.state.seen, engine.pending, source.refusals) == (20, [ids[20]], [])
    engine.feed([])
    logits_one_by_one(engine, ids[21:])
    assert distance(engine.logits, logits_one_by_one(plain, ids)[-1]) < 3e-5


def test_many_tokens_at_once_go_the_plain_way():
    engine, step, source = counted_engine(tiny_model("llama", 2))
    engine.feed(random_ids(20))
    engine.feed(random_ids(2))
    assert (step.calls, source.pauses) == (0, 2)
    engine.feed([9])
    assert (step.calls, source.pauses) == (1, 2)


def test_work_beside_the_chat_is_paused_by_plain_forwards_alone():
    model = tiny_model("llama", 2)
    source = Eager(None)
    engine = accelerated_engine(model, source=lambda _: source)
    for count, token in enumerate(random_ids(10), start=1):
        engine.feed([token])
        assert source.pauses == count
    source.step = eager_step(model, engine.cache.storage)
    logits_one_by_one(engine, random_ids(100))
    assert source.pauses == 10


def test_a_difference_is_told_in_standard_deviations_of_the_plain_logits():
    plain = torch.tensor([0.0, 2.0, 4.0, 6.0])
    assert difference(plain + 1, plain) == pytest.approx(1 / plain.std().item())
    assert difference(plain.bfloat16(), plain.bfloat16()) == 0


# Counters instead of seconds.


class Operations(TorchDispatchMode):
    """Counts the operations that tensors go through, and the bytes of new memory that their results take."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.nbytes = 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        given = {each.untyped_storage()._cdata for each in arguments if isinstance(each, Tensor)}
        result = operation(*arguments, **(keywords or {}))
        self.count += 1
        if isinstance(result, Tensor) and result.untyped_storage()._cdata not in given:
            self.nbytes += result.untyped_storage().nbytes()
        return result


def cost_of(engine: Engine, ids: list[int]) -> list[tuple[int, int]]:
    costs = []
    for token in ids:
        with Operations() as operations:
            engine.feed([token])
        costs.append((operations.count, operations.nbytes))
    return costs


def test_once_the_cache_is_full_every_token_costs_the_same():
    engine = accelerated_engine(tiny_model("llama", 2))
    logits_one_by_one(engine, random_ids(CAPACITY + 5))
    assert len(set(cost_of(engine, random_ids(WINDOW + 20)))) == 1


def test_a_larger_cache_moves_no_more_for_a_token():
    def operations(capacity: int) -> set[int]:
        engine = accelerated_engine(tiny_model("llama", 2), capacity=capacity)
        logits_one_by_one(engine, random_ids(PROOFS))
        engine.feed(random_ids(capacity))
        return {count for count, _ in cost_of(engine, random_ids(10))}

    assert operations(2 * BLOCK) == operations(8 * BLOCK)


def growth(engine: Engine, tokens: int) -> int:
    """Bytes that are taken and not given back while so many tokens are decoded."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        logits = [engine.feed([token]) for token in random_ids(tokens)]
    assert len(logits) == tokens
    return sum(event.self_cpu_memory_usage for event in profiled.key_averages())


def test_more_tokens_take_no_more_memory():
    engine = accelerated_engine(tiny_model("llama", 1))
    logits_one_by_one(engine, random_ids(CAPACITY + 5))
    growth(engine, 1)  # what it gives back of the time before was never counted
    most = (
        0 if torch.__version__ >= (2, 11) else 64
    )  # a token: before, the profiler misses some of what is given back
    assert growth(engine, 40) in range(40 * most + 1)
    assert growth(engine, 10) in range(10 * most + 1)


def test_an_eviction_writes_the_pinned_keys_and_a_token_its_own_slot():
    engine = accelerated_engine(tiny_model("llama", 3))
    logits_one_by_one(engine, random_ids(CAPACITY + 30))
    (blocks,) = engine.cache.storage.groups
    keys, values = blocks.keys.clone(), blocks.values.clone()
    ((freed, _),) = engine.cache.storage.runs(PINNED, PINNED + 1)
    engine.feed([9])
    changed_keys = (blocks.keys != keys).sum((0, 2, 3)).flatten()
    changed_values = (blocks.values != values).sum((0, 2, 4)).flatten()
    assert torch.nonzero(changed_keys).flatten().tolist() == [*range(PINNED), freed]
    assert torch.nonzero(changed_values).flatten().tolist() == [freed]


def test_arguments_are_gathered_anew_once_for_each_block_that_fills():
    model = tiny_model("llama", 1)
    runs = Runs(model)
    capacity = 8 * BLOCK
    engine = accelerated_engine(
        model, EvictMessages(), capacity=capacity, source=lambda ring: Eager(eager_step(model, ring, runs))
    )
    for turn in range(1, 12):
        engine.cache.open_message(engine.state.seen)
        engine.feed(random_ids(20 * turn, seed=turn))
        greedy(engine, 20)
    gathered = 1 + sum(before is not after for before, after in pairwise(runs.biases))
    assert engine.state.seen > 5 * capacity
    assert len(runs.biases) > 200
    assert gathered <= capacity // BLOCK
