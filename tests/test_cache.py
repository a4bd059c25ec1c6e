"""What the cache holds, and that nothing it does not mean to change is changed."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import engine_for, held_after, held_by, laid_out, random_ids
from tiny import tiny_model

from sinkchat.cache.layers import ContiguousStorage
from sinkchat.cache.policy import EvictMessages, EvictNothing, EvictTokens, Span
from sinkchat.cache.ring import RingStorage
from sinkchat.errors import CacheFull, UsageError

MODEL = tiny_model("llama", 2)


@pytest.fixture(params=[ContiguousStorage, RingStorage], ids=["contiguous", "ring"], autouse=True)
def layout(request):
    """Every claim of this file holds in both layouts."""
    with laid_out(request.param):
        yield request.param


@pytest.mark.parametrize("heads", [1, 2, 4], ids=["multi-query", "grouped-query", "multi-head"])
def test_four_sinks_and_twelve_recent_tokens_of_batches_of_four(heads):
    engine = engine_for(tiny_model("llama", 2, num_key_value_heads=heads), capacity=16, pinned=4)
    ids = random_ids(20)
    occupied = [engine.feed(ids[start : start + 4]).occupied for start in range(0, 20, 4)]
    assert occupied == [4, 8, 12, 16, 16]
    assert engine.held_ids == ids[:4] + ids[8:]
    assert held_by(engine)[0].keys.shape[1] == heads


@pytest.mark.parametrize("first", range(1, 17))
@pytest.mark.parametrize("second", [5, 12, 13, 16, 17, 40])
def test_a_batch_that_overflows_a_partly_filled_cache_keeps_the_right_ones(first, second):
    engine = engine_for(MODEL, capacity=16, pinned=4)
    ids = random_ids(first + second)
    engine.feed(ids[:first])
    state = engine.feed(ids[first:])
    assert engine.held_ids == [ids[i] for i in held_after(len(ids), 16, 4)]
    assert state.occupied == len(engine.held_ids)
    assert state.pinned + state.window + state.evicted == state.seen == len(ids)


@pytest.mark.parametrize("first", [1, 10, 16])
def test_the_held_keys_and_values_are_those_of_the_held_tokens(first):
    """In the first layer keys and values depend on their own token alone, so each can be told by its value."""
    engine = engine_for(MODEL, capacity=16, pinned=4)
    ids = random_ids(45)
    engine.feed(ids[:first])
    engine.feed(ids[first:])
    alone = engine_for(MODEL, capacity=64, pinned=4)
    alone.feed(ids)
    expected = held_by(alone)[0].values[0, :, held_after(45, 16, 4)]
    torch.testing.assert_close(held_by(engine)[0].values[0], expected, rtol=0, atol=1e-5)


def test_an_eviction_leaves_the_window_keys_as_the_model_wrote_them():
    engine = engine_for(MODEL, EvictTokens(1), capacity=16, pinned=4)
    engine.feed(random_ids(16))
    before = held_by(engine)[0].keys[:, :, 5:]
    assert engine.cache.make_room() == Span(4, 5)
    assert torch.equal(before, held_by(engine)[0].keys[:, :, 4:])


def test_buffers_are_allocated_once():
    engine = engine_for(MODEL, capacity=16, pinned=4)
    pointers = [layer.keys.data_ptr() for layer in engine.cache.layers]
    nbytes = engine.state.nbytes
    engine.feed(random_ids(500))
    assert [layer.keys.data_ptr() for layer in engine.cache.layers] == pointers
    assert engine.state.nbytes == nbytes


def test_a_forward_that_fails_leaves_every_layer_as_it_was():
    engine, control = (engine_for(MODEL, capacity=16, pinned=4) for _ in range(2))
    ids = random_ids(40)
    for each in (engine, control):
        each.feed(ids[:30])
    layer = MODEL.model.layers[1]
    handle = layer.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken off")))
    with pytest.raises(RuntimeError, match="broken off"):
        engine.feed(ids[30:])
    handle.remove()
    assert engine.pending == ids[30:]
    engine.feed([])
    control.feed(ids[30:])
    assert torch.equal(engine.logits, control.logits)
    assert engine.state == control.state


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.integers(0, 60),
    second=st.integers(0, 70),
    policy=st.sampled_from([EvictTokens(1), EvictTokens(5), EvictMessages()]),
    limit=st.sampled_from([24, 16_384]),
    pinned=st.integers(0, 6),
)
def test_rewinding_puts_every_bit_back(first, second, policy, limit, pinned):
    engine, control = (engine_for(MODEL, policy, pinned=pinned, position_limit=limit) for _ in range(2))
    ids = random_ids(first + second + 30)
    for each in (engine, control):
        for border in (6, 8, 21, 23, 40):
            each.cache.open_message(border)
        each.feed(ids[:first])
    mark = engine.mark()
    for _ in range(2):
        engine.feed(ids[first : first + second])
        engine.rewind(mark)
        assert (engine.state, engine.held_ids) == (control.state, control.held_ids)
        for mine, theirs in zip(held_by(engine), held_by(control), strict=True):
            assert torch.equal(mine.keys, theirs.keys)
            assert torch.equal(mine.values, theirs.values)
    for each in (engine, control):
        each.feed(ids[-30:])
    assert torch.equal(engine.logits, control.logits)


def test_only_the_latest_checkpoint_can_be_rewound_to():
    engine = engine_for(MODEL)
    old = engine.mark()
    engine.mark()
    with pytest.raises(ValueError, match="latest"):
        engine.rewind(old)


def test_the_window_policy_lets_the_first_tokens_leave():
    engine = engine_for(MODEL, capacity=16, pinned=0)
    ids = random_ids(30)
    engine.feed(ids)
    assert engine.held_ids == ids[-16:]


def test_the_dense_policy_stops_when_full():
    engine = engine_for(MODEL, EvictNothing(), capacity=16, pinned=0)
    engine.feed(random_ids(16))
    with pytest.raises(CacheFull, match="16 tokens"):
        engine.feed([5])
    assert engine.state.occupied == 16


def test_pinned_tokens_must_leave_a_window():
    with pytest.raises(UsageError, match="16 pinned tokens leave no window in a cache of 16"):
        engine_for(MODEL, capacity=16, pinned=16)


def test_a_cleared_cache_answers_as_a_fresh_one():
    engine, fresh = engine_for(MODEL), engine_for(MODEL)
    engine.feed(random_ids(50))
    engine.reset()
    for each in (engine, fresh):
        each.feed(random_ids(12, seed=1))
    assert torch.equal(engine.logits, fresh.logits)
