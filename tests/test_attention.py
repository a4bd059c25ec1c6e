"""Where attention goes: every share against a plain computation, and a control that must fail."""

import io

import pytest
import torch
from reference import rotary_generator
from streams import engine_for, random_ids
from tiny import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictTokens
from sinkchat.engine.engine import CHUNK_SIZE
from sinkchat.errors import CannotStream, UsageError
from sinkchat.lab.attention.eviction import evict_sinks
from sinkchat.lab.attention.measured import measure
from sinkchat.lab.attention.passages import passages_of, text_of
from sinkchat.lab.attention.shares import mean_beyond
from sinkchat.lab.inside.recorded import recorded

MODEL = tiny_model("llama", 3)
LONG = CHUNK_SIZE + 44


def passages(count, length):
    return [random_ids(length, seed=seed) for seed in range(count)]


def measured(model, ids, **options):
    *_, last = measure(model, ids, **options)
    return last


def gpt_oss(sink=0.0):
    settings = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "vocab_size": 260,
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **settings)).eval()
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, sink)
    return model.requires_grad_(False)


def plain_maps(model, ids):
    """Weights (L, B, H, T, K) as transformers itself returns them, all at once."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return torch.stack(model(torch.tensor(ids), use_cache=False, output_attentions=True).attentions)
    finally:
        model.set_attn_implementation("sdpa" if model.config.model_type != "gpt_oss" else "eager")


def plain_share(maps, first):
    """(L, H): mean over passages and over the queries of the second half."""
    return maps[..., maps.shape[-2] // 2 :, :first].sum(-1).mean((1, 3))


def softmax_by_hand(model, ids, *, turns=True):
    """Weights (H, T, T) of the first layer, from its matrices alone."""
    config, layer = model.config, model.model.layers[0]
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = layer.input_layernorm(model.model.embed_tokens(torch.tensor(ids)))
    queries = (hidden @ layer.self_attn.q_proj.weight.T).view(-1, heads, width).double()
    keys = (hidden @ layer.self_attn.k_proj.weight.T).view(-1, groups, width).double()
    angles = torch.arange(len(ids), dtype=torch.float64)[:, None, None]
    turn = torch.matrix_exp(angles * rotary_generator(config, width) * turns)
    queries, keys = torch.einsum("tij,thj->thi", turn, queries), torch.einsum("tij,thj->thi", turn, keys)
    scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(heads // groups, dim=1)) / width**0.5
    return scores.masked_fill(~torch.tril(torch.ones(len(ids), len(ids), dtype=torch.bool)), -torch.inf).softmax(-1)


@pytest.mark.parametrize(("count", "length"), [(40, 16), (2, LONG)], ids=["many short", "long, in chunks"])
@pytest.mark.parametrize(("first", "agrees"), [(4, True), (3, False)], ids=["four", "control"])
def test_the_shares_are_those_of_the_maps_that_transformers_returns(count, length, first, agrees):
    ids = passages(count, length)
    shares, maps = measured(MODEL, ids), plain_maps(MODEL, ids)
    assert torch.allclose(torch.tensor(shares.first), plain_share(maps, first).float(), atol=1e-5) is agrees
    assert torch.allclose(torch.tensor(shares.token_0), plain_share(maps, 1).float(), atol=1e-5)
    assert (shares.passages, shares.length, len(shares.first)) == (count, length, 3)


@pytest.mark.parametrize(("turns", "agrees"), [(True, True), (False, False)], ids=["rotary", "control"])
def test_the_shares_of_the_first_layer_are_those_of_a_softmax_by_hand(turns, agrees):
    ids = random_ids(24)
    by_hand = softmax_by_hand(MODEL, ids, turns=turns)[:, 12:, :4].sum(-1).mean(-1)
    assert torch.allclose(torch.tensor(measured(MODEL, [ids]).first[0]).double(), by_hand, atol=1e-5) is agrees


def test_the_maps_are_means_over_passages_and_heads():
    ids = passages(5, 16)
    expected = plain_maps(MODEL, ids).mean((1, 2))
    assert torch.allclose(torch.tensor(measured(MODEL, ids).maps), expected, atol=1e-5)
    assert measured(MODEL, passages(1, 65)).maps == ()


@pytest.mark.parametrize("length", [16, LONG])
def test_attention_that_is_even_gives_what_even_attention_would(length):
    model = tiny_model("llama", 2)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.zero_()
    shares = measured(model, passages(2, length))
    assert torch.allclose(torch.tensor(shares.first), torch.tensor(shares.even), atol=1e-5)
    assert torch.allclose(torch.tensor(shares.token_0), torch.tensor(shares.even_0), atol=1e-5)
    assert not torch.allclose(torch.tensor(measured(MODEL, passages(2, length)).first), torch.tensor(shares.even))


def test_a_learned_sink_has_a_share_of_its_own():
    model, ids = gpt_oss(sink=1.5), passages(3, 16)
    shares = measured(model, ids)
    given = plain_maps(model, ids)
    expected = 1 - given[..., 8:, :].sum(-1).mean((1, 3))
    assert torch.allclose(torch.tensor(shares.learned), expected, atol=1e-5)
    assert shares.has_learned_sinks
    assert 0.1 < mean_beyond(shares.learned) < 0.9


def test_the_higher_its_logit_the_more_a_learned_sink_gets_and_the_less_token_0():
    ids = passages(3, 16)
    low, high = measured(gpt_oss(sink=-1.0), ids), measured(gpt_oss(sink=9.0), ids)
    assert mean_beyond(low.learned) < 0.1
    assert mean_beyond(high.learned) > 0.99
    assert mean_beyond(high.token_0) < 0.01 < mean_beyond(low.token_0)


def test_a_model_without_learned_sinks_shows_none():
    assert not measured(MODEL, passages(3, 16)).has_learned_sinks


def test_no_more_queries_are_seen_at_once_than_a_chunk_has():
    seen = []
    with recorded(MODEL, lambda weights: seen.append(weights.shape[-2])):
        engine = engine_for(MODEL, capacity=LONG, chunk_size=CHUNK_SIZE)
        seen.clear()
        engine.feed(random_ids(LONG))
    assert seen == [CHUNK_SIZE] * 3 + [44] * 3


def test_a_recording_leaves_the_model_as_it_was():
    ids = torch.tensor([random_ids(9)])
    before = MODEL(ids).logits
    with recorded(MODEL, torch.Tensor.sum) as recording:
        assert torch.allclose(MODEL(ids).logits, before, atol=1e-5)
        assert len(recording.by_layer()) == 3
    assert MODEL.config._attn_implementation == "sdpa"
    recording.clear()
    assert torch.equal(MODEL(ids).logits, before)
    assert recording == {}


OTHER_FAMILIES = {
    "falcon": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "bloom": {"hidden_size": 64, "n_head": 4, "n_layer": 2},
}


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_models_that_know_no_attention_interface_show_theirs_too(family):
    settings = OTHER_FAMILIES[family] | {"vocab_size": 260, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).eval()
    shares = measured(model, passages(2, 16))
    assert [len(shares.first), len(shares.first[0])] == [2, 4]
    assert not shares.has_learned_sinks
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for layer in shares.maps for row in layer)


def test_a_model_that_shows_no_attention_is_refused():
    with (
        recorded(MODEL, torch.Tensor.sum) as recording,
        pytest.raises(CannotStream, match="no layer gives its weights"),
    ):
        recording.by_layer()


@pytest.mark.parametrize("sinks", [0, 9])
def test_more_first_tokens_than_half_a_passage_are_refused(sinks):
    with pytest.raises(UsageError, match=f"the first {sinks} of 16 tokens"):
        next(measure(MODEL, passages(1, 16), sinks=sinks))


ONE_HEAD = tiny_model("llama", 3, num_attention_heads=1, num_key_value_heads=1, head_dim=64)
"""Shares are means over heads, so that only with one head they are a softmax."""


@pytest.mark.parametrize("block", [1, 5])
@pytest.mark.parametrize(("layer", "agrees"), [(0, True), (2, False)], ids=["first layer", "deeper"])
def test_the_evicted_sinks_share_falls_on_the_window_in_proportion(layer, agrees, block):
    engine = engine_for(ONE_HEAD, EvictTokens(block), capacity=24, pinned=4)
    found = evict_sinks(engine, random_ids(60))
    left = 1 - sum(found.kept.sinks[layer])
    expected = torch.tensor(found.kept.window[layer]) / left
    assert torch.allclose(torch.tensor(found.evicted.window[layer]), expected, atol=1e-5) is agrees
    assert 0.05 < left < 0.95


def test_with_its_sinks_the_query_answers_as_any_stream_does():
    ids = random_ids(60)
    engine, other = (engine_for(MODEL, capacity=24, pinned=4) for _ in range(2))
    found = evict_sinks(engine, ids)
    logits = other.feed(ids) and other.logits.log_softmax(-1)
    assert found.kept.likeliest == int(logits.argmax())
    assert found.kept.probability == pytest.approx(logits.max().exp().item(), rel=1e-4)
    assert (found.token, found.capacity) == (59, 24)
    assert [len(found.kept.sinks[0]), len(found.kept.window[0])] == [4, 20]
    assert [len(found.evicted.sinks[0]), len(found.evicted.window[0])] == [0, 20]


def test_without_them_it_answers_as_a_model_that_is_given_the_window_alone():
    """The plainer way, one layer: a fresh forward over the tokens of the window."""
    model, ids = tiny_model("llama", 1), random_ids(60)
    found = evict_sinks(engine_for(model, capacity=24, pinned=4), ids)
    forward = Forward(model)
    answers = []
    for window in (ids[-20:], ids[-24:]):
        logits = forward(torch.tensor([window]), torch.arange(len(window)).unsqueeze(0), DynamicCache())[0, -1]
        answers.append((int(logits.argmax()), logits.softmax(-1).max().item()))
    assert (found.evicted.likeliest, pytest.approx(found.evicted.probability, rel=1e-4)) == answers[0]
    assert found.evicted.probability != pytest.approx(answers[1][1], rel=1e-4)


def test_nothing_evicted_is_no_divergence():
    found = evict_sinks(engine_for(MODEL, capacity=24, pinned=0), random_ids(60), sinks=0)
    assert found.divergence == pytest.approx(0, abs=1e-9)
    assert evict_sinks(engine_for(MODEL, capacity=24), random_ids(60)).divergence > 0.001


def test_a_text_that_does_not_roll_the_window_is_refused():
    with pytest.raises(UsageError, match="24 tokens do not roll the window of a cache of 24"):
        evict_sinks(engine_for(MODEL, capacity=24), random_ids(24))


@pytest.mark.model
def test_smollm2_gives_most_of_its_attention_to_token_0_from_its_third_layer_on(smollm2):
    ids = passages_of(smollm2.tokenizer, text_of([], io.BytesIO()), length=16, count=32)
    shares = measured(smollm2.model, ids)
    assert mean_beyond(shares.first) > 0.6 > shares.even + 0.25
    assert mean_beyond(shares.token_0) > 0.5 > 6 * shares.even_0
    assert max(share for layer in shares.token_0[:2] for share in layer) < 0.2
