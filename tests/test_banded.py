"""Reading in bands gives the numbers of reading one by one; and where it would not, it says so."""

from dataclasses import replace

import pytest
import torch
from reference import reference_logits
from streams import TRAINED, distance, engine_for, logits_one_by_one, random_ids
from tiny import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import probe
from sinkchat.errors import UsageError
from sinkchat.lab.inside.band import CannotBand
from sinkchat.lab.inside.banded import BandedStream
from sinkchat.lab.inside.banding import why_not_banded
from sinkchat.lab.inside.plain import DenseStream, read_afresh

CAPACITY, PINNED = 16, 4
FAMILIES = {
    "llama": ("llama", {}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {}),
    "qwen3": ("qwen3", {}),
    "gpt_neox": ("gpt_neox", {}),
}


def banded(model, *, capacity=CAPACITY, pinned=PINNED, turns_queries=True, **options) -> BandedStream:
    """A stream in bands. `turns_queries=False` is the control: queries meet the sinks where these were written."""
    layouts = probe(model, position_limit=TRAINED)
    if not turns_queries:
        layouts = [replace(layout, rotation=None) for layout in layouts]
    return BandedStream(model, layouts, capacity=capacity, pinned=pinned, **options)


def read(stream, ids) -> torch.Tensor:
    return torch.cat(list(stream.read(ids)))


@pytest.mark.parametrize(("turns_queries", "agrees"), [(True, True), (False, False)], ids=["turned", "control"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_band_gives_the_logits_of_the_engine_fed_one_by_one(family, turns_queries, agrees):
    name, config = FAMILIES[family]
    model, ids = tiny_model(name, 3, **config), random_ids(4 * CAPACITY)
    expected = logits_one_by_one(engine_for(model, EvictTokens(1), capacity=CAPACITY, pinned=PINNED), ids)
    got = read(banded(model, turns_queries=turns_queries), ids)
    assert (distance(got, expected) < 1e-5) is agrees, distance(got, expected)


@pytest.mark.parametrize("pinned", [0, 1, 10])
def test_a_band_gives_the_logits_of_the_plain_reference(llama, pinned):
    ids = random_ids(3 * CAPACITY)
    expected = reference_logits(llama, ids, EvictTokens(1), capacity=CAPACITY, pinned=pinned)
    assert distance(read(banded(llama, pinned=pinned), ids), expected) < 1e-5
    other = reference_logits(llama, ids, EvictTokens(1), capacity=CAPACITY + 1, pinned=pinned)
    assert distance(read(banded(llama, pinned=pinned), ids), other) > 0.01


def test_how_a_text_is_cut_into_bands_does_not_matter(llama):
    ids = random_ids(100)
    whole = read(banded(llama), ids)
    for size in (1, 5, CAPACITY, 64):
        assert distance(read(banded(llama, chunk_size=size), ids), whole) < 1e-5
    stream = banded(llama)
    in_parts = torch.cat([read(stream, ids[:2]), read(stream, ids[2:37]), read(stream, ids[37:])])
    assert distance(in_parts, whole) < 1e-5


def test_positions_stay_below_the_limit_and_nothing_changes(llama):
    ids, seen = random_ids(300), []
    stream = banded(llama, position_limit=2 * CAPACITY)
    hook = llama.model.layers[0].register_forward_pre_hook(
        lambda *given: seen.append(int(given[2]["position_ids"].max())), with_kwargs=True
    )
    try:
        near = read(stream, ids)
    finally:
        hook.remove()
    assert CAPACITY < max(seen) < 2 * CAPACITY
    assert distance(near, read(banded(llama), ids)) < 3e-5


def test_a_stream_goes_on_from_its_state_to_the_bit(llama):
    ids = random_ids(90)
    first, second = banded(llama), banded(llama)
    read(first, ids[:50])
    state = first.state()
    expected = read(first, ids[50:])
    second.restore(state)
    assert second.seen == 50
    assert torch.equal(read(second, ids[50:]), expected)
    assert not torch.equal(read(banded(llama), ids[50:]), expected)


def test_what_is_broken_off_has_read_whole_chunks(llama):
    ids = random_ids(40)
    stream = banded(llama, chunk_size=8)
    reading = stream.read(ids)
    next(reading)
    next(reading)
    reading.close()
    assert stream.seen == 12  # four sinks, read alone, and one chunk
    assert distance(read(stream, ids[12:]), read(banded(llama), ids)[12:]) < 1e-5


def test_the_model_attends_as_before_when_a_band_was_read(llama):
    before = llama.config._attn_implementation
    read(banded(llama), random_ids(20))
    assert llama.config._attn_implementation == before


@pytest.mark.parametrize("family", FAMILIES)
def test_models_that_can_be_read_in_bands(family):
    name, config = FAMILIES[family]
    model = tiny_model(name, 2, **config)
    layouts = probe(model, position_limit=TRAINED)
    assert why_not_banded(model, layouts, capacity=64, position_limit=4096) == ""


@pytest.mark.parametrize(
    ("family", "config", "reason"),
    [
        ("stablelm", {}, "its layers are not told what the forward was"),
        ("mistral", {"sliding_window": 32}, "some of its layers see only 32 tokens"),
    ],
)
def test_models_that_cannot_and_why(family, config, reason):
    model = tiny_model(family, 2, **config)
    layouts = probe(model, position_limit=TRAINED)
    assert why_not_banded(model, layouts, capacity=64, position_limit=4096) == reason


def test_attention_that_does_more_than_the_band_is_seen():
    model = tiny_model("llama", 2)
    layouts = probe(model, position_limit=TRAINED)
    model.model.layers[1].register_forward_hook(lambda layer, given, hidden: hidden + hidden.mean(1, keepdim=True))
    reason = why_not_banded(model, layouts, capacity=64, position_limit=4096)
    assert reason.startswith("read many at once, its logits differ by ")


def test_attention_that_caps_its_scores_is_not_read_in_bands():
    settings = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = AutoConfig.for_model("gemma2", **settings, head_dim=16, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    layouts = probe(model, position_limit=TRAINED)
    assert why_not_banded(model, layouts, capacity=64, position_limit=4096) == "its attention takes softcap"


def test_too_few_positions_are_no_band(llama):
    layouts = probe(llama, position_limit=TRAINED)
    assert why_not_banded(llama, layouts, capacity=64, position_limit=100) == ("only 100 positions can be told apart")


def test_what_a_layer_leaves_out_is_an_error_while_it_is_read():
    stream = banded(tiny_model("stablelm", 1))
    with pytest.raises(CannotBand):
        read(stream, random_ids(4))
    assert stream.seen == 0


def test_sinks_that_leave_no_window_are_refused(llama):
    with pytest.raises(UsageError, match="16 sinks leave no window in a cache of 16"):
        banded(llama, pinned=16)


def test_a_dense_stream_gives_the_logits_of_one_forward(llama):
    ids = random_ids(70)
    with torch.inference_mode():
        expected = llama(torch.tensor([ids]), use_cache=False).logits[0]
    assert distance(read(DenseStream(llama, chunk_size=32), ids), expected) < 1e-5
    assert distance(read(banded(llama), ids), expected) > 0.01


def test_windows_read_afresh_give_the_logits_of_a_forward_each(llama):
    ids = random_ids(40)
    windows = torch.tensor([ids[start : start + 8] for start in (0, 3, 30)])
    with torch.inference_mode():
        expected = torch.stack([llama(window[None], use_cache=False).logits[0, -1] for window in windows])
    got = read_afresh(llama, windows)
    assert distance(got, expected) < 1e-5
    assert distance(got.flip(0), expected) > 0.1


@pytest.mark.model
@pytest.mark.parametrize(("turns_queries", "agrees"), [(True, True), (False, False)], ids=["turned", "control"])
def test_smollm2_reads_in_bands_what_it_reads_one_by_one(smollm2, turns_queries, agrees):
    ids = smollm2.tokenizer.encode("Call me Ishmael. Some years ago, never mind how long precisely. " * 9)[:120]
    expected = logits_one_by_one(engine_for(smollm2.model, EvictTokens(1), capacity=32), ids)
    got = read(banded(smollm2.model, capacity=32, turns_queries=turns_queries), ids)
    assert (distance(got, expected) < 1e-4) is agrees, distance(got, expected)
