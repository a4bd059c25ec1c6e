"""The cache computes what StreamingLLM says: each claim against a second, plainer computation, with its control."""

import pytest
import torch
from reference import reference_logits
from streams import (
    distance,
    engine_for,
    held_after,
    logits_in_chunks,
    logits_in_one_read,
    logits_one_by_one,
    random_ids,
)
from tiny import tiny_model
from transformers import DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.lab.families.configs import STREAMING

FAMILIES = {
    "llama": {},
    "llama-mqa": {"num_key_value_heads": 1},
    "llama-mha": {"num_key_value_heads": 4},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gpt_neox": {},
    "phi": {},
    "stablelm": {},
}
CAPACITY, PINNED = 16, 4
ROTARY = pytest.mark.parametrize("family", FAMILIES)


def model_of(family: str, layers: int, **options):
    return tiny_model(family.split("-")[0], layers, **FAMILIES.get(family, {}), **options)


def fresh_forward(model, ids: list[int]) -> torch.Tensor:
    """Logits (V,) of the last of `ids`, read at positions 0 to n - 1 with no cache at all."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def one_layer_error(family: str, *, moves_sinks: bool) -> float:
    """In one layer a key depends on its own token only: streaming equals reading what is kept afresh."""
    model = model_of(family, 1)
    engine = engine_for(model, capacity=CAPACITY, pinned=PINNED, moves_sinks=moves_sinks)
    ids = random_ids(10 * CAPACITY)
    streamed = logits_one_by_one(engine, ids)
    kept = ([ids[i] for i in held_after(count, CAPACITY, PINNED)] for count in range(1, len(ids) + 1))
    return distance(streamed, torch.stack([fresh_forward(model, tokens) for tokens in kept]))


@ROTARY
def test_one_layer_equals_a_fresh_forward_over_what_is_kept(family):
    assert one_layer_error(family, moves_sinks=True) < 1e-5


@ROTARY
def test_without_moving_the_sinks_one_layer_is_wrong(family):
    assert one_layer_error(family, moves_sinks=False) > 0.1


@ROTARY
@pytest.mark.parametrize("policy", [EvictTokens(), EvictTokens(5), EvictMessages()], ids=["token", "block", "turn"])
def test_three_layers_equal_the_reference(family, policy):
    model = model_of(family, 3)
    ids, borders = random_ids(6 * CAPACITY), [4, 9, 11, 30, 33, 60, 75]
    engine = engine_for(model, policy, capacity=CAPACITY, pinned=PINNED)
    for border in borders:
        engine.cache.open_message(border)
    expected = reference_logits(model, ids, policy, capacity=CAPACITY, pinned=PINNED, borders=borders)
    assert distance(logits_one_by_one(engine, ids), expected) < 1e-4


def test_a_stream_may_go_on_past_the_trained_length():
    model = tiny_model("qwen2", 3, max_position_embeddings=32)
    ids = random_ids(200)
    expected = reference_logits(model, ids, EvictTokens(), capacity=CAPACITY, pinned=PINNED)
    assert distance(logits_one_by_one(engine_for(model), ids), expected) < 1e-4


def test_the_reference_sees_sinks_that_do_not_move():
    model = model_of("llama", 3)
    ids = random_ids(6 * CAPACITY)
    expected = reference_logits(model, ids, EvictTokens(), capacity=CAPACITY, pinned=PINNED)
    assert distance(logits_one_by_one(engine_for(model, moves_sinks=False), ids), expected) > 0.1


@pytest.mark.parametrize("policy", [EvictTokens(), EvictTokens(5), EvictMessages()], ids=["token", "block", "turn"])
@pytest.mark.parametrize("earlier", [0, 5, 40], ids=["first turn", "second turn", "late turn"])
def test_how_text_was_handed_over_does_not_matter(policy, earlier):
    model = model_of("llama", 3)
    window = CAPACITY - PINNED
    ids = random_ids(earlier + 10 * window)
    borders = [b for b in (4, 9, 11, 30, 33, 60, 75, 90) if b < len(ids)]

    def last_logits(size: int) -> torch.Tensor:
        engine = engine_for(model, policy, capacity=CAPACITY, pinned=PINNED)
        return logits_in_chunks(engine, ids, size, borders)

    one_by_one = last_logits(1)
    for size in (7, window - 1, window, window + 1, 10 * window):
        assert distance(last_logits(size), one_by_one) < 3e-5, size
    for chunk_size in (1, 3, 256):
        engine = engine_for(model, policy, capacity=CAPACITY, pinned=PINNED, chunk_size=chunk_size)
        assert distance(logits_in_one_read(engine, ids, borders), one_by_one) < 3e-5, chunk_size


def test_evicting_another_block_at_a_time_does_matter():
    model = model_of("llama", 3)
    ids = random_ids(120)
    one, five = (
        logits_in_chunks(engine_for(model, EvictTokens(count), capacity=CAPACITY, pinned=PINNED), ids, 7)
        for count in (1, 5)
    )
    assert distance(one, five) > 0.01


@pytest.mark.parametrize("family", [*STREAMING, "llama-mqa", "llama-mha"])
def test_before_the_first_eviction_all_is_as_with_a_dynamic_cache(family):
    model = model_of(family, 3)
    ids = random_ids(CAPACITY)
    forward, cache = Forward(model), DynamicCache()
    parts = [(0, 7), (7, CAPACITY)]
    expected = torch.stack(
        [forward(torch.tensor([ids[a:b]]), torch.arange(a, b).unsqueeze(0), cache)[0, -1] for a, b in parts]
    )
    engine = engine_for(model, capacity=CAPACITY, pinned=PINNED)
    logits = [logits_in_chunks(engine, ids[:7], 7)]
    engine.feed(ids[7:])
    logits.append(engine.logits)
    assert distance(torch.stack(logits), expected) < 1e-6


def test_rebasing_changes_nothing():
    model = model_of("llama", 3)
    ids = random_ids(400)
    far = logits_one_by_one(engine_for(model, capacity=CAPACITY, pinned=PINNED), ids)
    rebased = engine_for(model, capacity=CAPACITY, pinned=PINNED, position_limit=40)
    assert distance(logits_one_by_one(rebased, ids), far) < 2e-5


def test_positions_stay_below_the_limit():
    engine = engine_for(model_of("llama", 1), capacity=CAPACITY, pinned=PINNED, position_limit=40)
    for token in random_ids(200):
        engine.feed([token])
        assert engine.cache.positions(1).item() <= 40


def drift(dtype: torch.dtype, tokens: int) -> list[float]:
    """Error of one layer in `dtype` against a fresh float32 forward over what is kept, along `tokens` tokens."""
    capacity, exact = 256, model_of("llama", 1)
    engine = engine_for(model_of("llama", 1, dtype=dtype), EvictTokens(4), capacity=capacity, pinned=4)
    ids = random_ids(tokens)
    errors = []
    for start in range(0, tokens, 4):
        engine.feed(ids[start : start + 4])
        if start >= 260 and start % 64 == 0 and (start < 1_300 or start > tokens - 1_300):
            errors.append(distance(engine.logits, fresh_forward(exact, engine.held_ids)))
    return errors


def test_twenty_thousand_tokens_in_bfloat16_do_not_drift():
    errors = drift(torch.bfloat16, 20_000)
    early, late = (sum(part) / len(part) for part in (errors[:16], errors[-16:]))
    assert late < 1.25 * early, (early, late)
    assert early < 0.1
