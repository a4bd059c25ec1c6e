"""The ring: what it holds is what a plain list would hold, at addresses that do not change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import ring_engine
from streams import random_ids
from tiny import tiny_model

from sinkchat.cache.policy import EvictMessages, EvictTokens, Span
from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.ring import BLOCK, RingStorage
from sinkchat.cache.rope import Rotation, rotate
from sinkchat.cache.storage import KeysValues

ROTATION = Rotation("half", 0, torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64))
TURNING = LayerLayout(2, 6, 5, torch.float32, torch.device("cpu"), ROTATION)
STILL = LayerLayout(1, 3, 4, torch.float32, torch.device("cpu"), None)
LAYOUTS = (TURNING, STILL, TURNING)


def random_tokens(count: int, seed: int) -> list[KeysValues]:
    """`count` tokens for the two groups that `LAYOUTS` makes: layers 0 and 2, and layer 1."""
    generator = torch.Generator().manual_seed(seed)
    return [
        KeysValues(
            torch.randn(layers, layout.heads, count, layout.key_width, generator=generator),
            torch.randn(layers, layout.heads, count, layout.value_width, generator=generator),
        )
        for layers, layout in ((2, TURNING), (1, STILL))
    ]


def joined(*parts: list[KeysValues]) -> list[KeysValues]:
    return [
        KeysValues(torch.cat([each.keys for each in group], 2), torch.cat([each.values for each in group], 2))
        for group in zip(*parts, strict=True)
    ]


def part(tokens: list[KeysValues], start: int, stop: int) -> list[KeysValues]:
    return [KeysValues(each.keys[:, :, start:stop], each.values[:, :, start:stop]) for each in tokens]


def turned(tokens: list[KeysValues], distance: int) -> list[KeysValues]:
    first, second = tokens
    return [KeysValues(rotate(first.keys, distance, ROTATION), first.values), second]


def slots(ring: RingStorage, start: int, stop: int) -> list[int]:
    return [slot for run in ring.runs(start, stop) for slot in range(*run)]


def changed_slots(buffer: torch.Tensor, before: torch.Tensor, lanes: int) -> list[int]:
    """Slots in which any layer's keys (whose lanes are dimension 4) or values (3) differ."""
    others = [index for index in range(buffer.ndim) if index not in (1, lanes)]
    return torch.nonzero((buffer != before).sum(others).flatten()).flatten().tolist()


def is_equal(tokens: list[KeysValues], others: list[KeysValues]) -> bool:
    return all(
        torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)
        for mine, theirs in zip(tokens, others, strict=True)
    )


def filled(capacity: int, pinned: int, count: int) -> tuple[RingStorage, list[KeysValues]]:
    """A ring that holds `count` tokens, and those tokens."""
    ring, tokens = RingStorage(LAYOUTS, capacity), random_tokens(count, seed=count)
    ring.clear(pinned)
    ring.write(0, tokens)
    ring.append(count)
    return ring, tokens


STEPS = st.lists(st.tuples(st.sampled_from(["come", "leave", "cut", "turn"]), st.integers(1, 70)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(capacity=st.sampled_from([5, 31, 32, 33, 64, 70]), pinned=st.integers(0, 4), steps=STEPS)
def test_whatever_comes_and_leaves_it_holds_what_a_list_would(capacity, pinned, steps):
    ring = RingStorage(LAYOUTS, capacity)
    ring.clear(pinned)
    expected, reach = random_tokens(0, seed=0), 0
    for seed, (step, count) in enumerate(steps):
        held = ring.held
        window = max(0, held - pinned)
        if step == "come" and (count := min(count, capacity - held)):
            come = random_tokens(count, seed)
            ring.write(held, come)
            ring.append(count)
            expected = joined(expected, come)
        elif step == "leave" and (count := min(count, window)):
            ring.drop(count)
            expected = joined(part(expected, 0, pinned), part(expected, pinned + count, held))
        elif step == "cut" and (count := min(count, window)):
            ring.cut(count)
            expected = part(expected, 0, held - count)
        elif step == "turn" and window:
            ring.turn(pinned, held, -count)
            expected = joined(part(expected, 0, pinned), turned(part(expected, pinned, held), -count))
        occupied = slots(ring, 0, ring.held)
        reach = max([reach, *(slot // BLOCK + 1 for slot in occupied)])
        free = torch.ones(ring.bias.numel(), dtype=torch.bool)
        free[occupied] = False
        assert is_equal(ring.read(0, ring.held), expected)
        assert len(set(occupied)) == ring.held == expected[0].keys.shape[2]
        assert torch.equal(ring.bias.flatten() == -torch.inf, free)
        assert torch.equal(ring.bias.flatten() == 0, ~free)
        assert max(occupied, default=0) < capacity
        assert ring.reach == reach


def test_layers_give_the_tokens_in_the_order_of_their_ranks_around_the_wrap():
    ring, tokens = filled(capacity=40, pinned=4, count=40)
    ring.drop(10)
    come = random_tokens(7, seed=1)
    expected = joined(part(tokens, 0, 4), part(tokens, 14, 40), come)
    for layer, (group, place) in enumerate([(0, 0), (1, 0), (0, 1)]):
        new = come[group]
        keys, values = ring.layers[layer].update(new.keys[place : place + 1], new.values[place : place + 1])
        assert torch.equal(keys[0], expected[group].keys[place])
        assert torch.equal(values[0], expected[group].values[place])
    ring.append(7)
    assert is_equal(ring.read(0, 37), expected)


def test_what_stays_keeps_its_address():
    ring, _ = filled(capacity=70, pinned=4, count=70)
    addresses = [each.data_ptr() for blocks in ring.groups for each in (blocks.keys, blocks.values)]
    for count in (1, 13, 66, 30):
        pinned, stay = slots(ring, 0, 4), slots(ring, 4 + count, 70)
        ring.drop(count)
        ring.append(count)
        assert slots(ring, 0, 70 - count) == pinned + stay
    assert [each.data_ptr() for blocks in ring.groups for each in (blocks.keys, blocks.values)] == addresses


def test_the_next_token_takes_the_slot_that_was_freed_longest_ago():
    ring, _ = filled(capacity=40, pinned=4, count=40)
    freed = slots(ring, 4, 9)
    ring.drop(2)
    ring.drop(3)
    ring.append(5)
    assert slots(ring, 35, 40) == freed


def test_a_dropped_token_is_no_longer_seen_and_the_pinned_ones_always_are():
    ring, _ = filled(capacity=40, pinned=4, count=40)
    ring.drop(3)
    unseen = torch.nonzero(ring.bias.flatten() == -torch.inf).flatten().tolist()
    assert unseen == [4, 5, 6, *range(40, 64)]


def test_keys_lie_across_a_block_and_values_along_it():
    ring, tokens = filled(capacity=64, pinned=4, count=40)
    blocks, _ = ring.groups
    assert blocks.keys.shape == (2, 2, 2, 6, BLOCK)
    assert blocks.values.shape == (2, 2, 2, BLOCK, 5)
    assert torch.equal(blocks.keys[1, 1, 0, :, 3], tokens[0].keys[1, 0, 35])
    assert torch.equal(blocks.values[1, 1, 0, 3], tokens[0].values[1, 0, 35])


def test_its_memory_is_that_of_whole_blocks():
    of_a_token = 4 * (2 * 2 * (6 + 5) + 1 * (3 + 4))
    assert RingStorage(LAYOUTS, 33).nbytes == 64 * of_a_token
    assert RingStorage(LAYOUTS, 32).nbytes == 32 * of_a_token


def test_placing_the_pinned_tokens_turns_their_keys_in_the_layers_that_turn():
    ring, tokens = filled(capacity=40, pinned=4, count=40)
    pinned = part(tokens, 0, 4)
    for distance in (9, 0, 70):
        ring.place(pinned, distance)
        expected = turned(pinned, distance) if distance else pinned
        assert is_equal(ring.read(0, 40), joined(expected, part(tokens, 4, 40)))
    assert not is_equal(ring.read(0, 4), pinned)


@pytest.mark.parametrize("left", [0, 1, 35, 36, 100])
def test_a_token_takes_the_slot_that_its_place_in_the_stream_gives_it(left):
    ring, _ = filled(capacity=40, pinned=4, count=40)
    ring.clear(4, left=left)
    ring.append(40)
    assert slots(ring, 0, 4) == [0, 1, 2, 3]
    assert slots(ring, 4, 40) == [4 + (left + index) % 36 for index in range(36)]


def test_clearing_forgets_all_and_begins_with_the_first_slot():
    ring, _ = filled(capacity=70, pinned=4, count=70)
    ring.drop(20)
    ring.clear(2)
    assert (ring.held, ring.reach) == (0, 0)
    assert torch.equal(ring.bias, torch.full((3, BLOCK), -torch.inf))
    ring.append(5)
    assert slots(ring, 0, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65, 70])
def test_reach_counts_the_blocks_that_were_ever_written(count):
    ring, _ = filled(capacity=70, pinned=4, count=count)
    assert ring.reach == -(-count // BLOCK)
    if count > 4:
        ring.cut(count - 4)
        assert ring.reach == -(-count // BLOCK)


@pytest.mark.parametrize("policy", [EvictTokens(1), EvictTokens(9), EvictMessages()], ids=["token", "block", "turn"])
def test_an_eviction_writes_the_pinned_keys_and_nothing_else(policy):
    engine = ring_engine(tiny_model("llama", 3), policy, capacity=70)
    engine.feed(random_ids(70 + 66 + 40))
    engine.feed(random_ids(engine.cache.room))
    ring = engine.cache.storage
    (blocks,) = ring.groups
    keys, values = blocks.keys.clone(), blocks.values.clone()
    assert isinstance(engine.cache.make_room(), Span)
    assert changed_slots(blocks.keys, keys, 4) == [0, 1, 2, 3]
    assert changed_slots(blocks.values, values, 3) == []


def test_a_token_writes_its_own_slot_and_the_pinned_keys():
    engine = ring_engine(tiny_model("llama", 3), capacity=70)
    engine.feed(random_ids(200))
    ring = engine.cache.storage
    (blocks,) = ring.groups
    keys, values = blocks.keys.clone(), blocks.values.clone()
    freed = slots(ring, 4, 5)
    engine.feed([9])
    assert changed_slots(blocks.keys, keys, 4) == [0, 1, 2, 3, *freed]
    assert changed_slots(blocks.values, values, 3) == freed
