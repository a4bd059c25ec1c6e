"""The probe finds how keys turn, and refuses what does not merely turn."""

import pytest
import torch
from tiny import tiny_model

from sinkchat.cache.probe import layer_shapes, probe, shift_test
from sinkchat.errors import CannotStream
from sinkchat.lab.families.checks import in_words
from sinkchat.models.families import limits_of

HALF, FIRST_HALF = "half-split, 16 of 16", "half-split, 8 of 16"
LAYOUTS = {
    "llama": HALF,
    "llama, linear": HALF,
    "llama, llama3": HALF,
    "llama, yarn": HALF,
    "llama, dynamic": HALF,
    "llama, longrope": HALF,
    "mpt": "not turned",
    "falcon": HALF,
    "falcon, alibi": "not turned",
    "gpt_neox": "half-split, 4 of 16",
    "mistral, window": HALF,
    "qwen2": HALF,
    "qwen2_vl": HALF,
    "qwen3": HALF,
    "gemma3": f"{HALF}; 2 sets of rates",
    "gemma3n": f"{HALF}; 2 sets of rates",
    "gemma4": f"half-split, 32 of 32; {HALF}",
    "phi": FIRST_HALF,
    "phi4, partial": "half-split, 12 of 16",
    "stablelm": "half-split, 4 of 16",
    "olmo3": f"{HALF}; 2 sets of rates",
    "cohere": "interleaved, 16 of 16",
    "cohere2": "not turned; interleaved, 16 of 16",
    "glm4": "interleaved, 8 of 16",
    "smollm3": f"{HALF}; not turned",
    "gptj": "interleaved, 8 of 16",
    "bloom": "not turned",
    "deepseek_v2": "interleaved, 8 of 8 in the values",
    "deepseek_v3": "half-split, 8 of 8 in the values",
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
@pytest.mark.parametrize("family", LAYOUTS)
def test_the_probe_finds_the_layout(family, dtype):
    assert in_words(probe(tiny_model(family, 3, dtype=dtype), position_limit=2048)) == LAYOUTS[family]


@DTYPES
@pytest.mark.parametrize("family", LAYOUTS)
def test_what_the_probe_accepts_passes_the_shift_test(family, dtype):
    model = tiny_model(family, 3, dtype=dtype)
    shift_test(model, last_position=limits_of(model.config).positions(256) - 1)


@DTYPES
@pytest.mark.parametrize(("family", "width"), [("llama", 16), ("gpt_neox", 4), ("phi", 8), ("glm4", 8)])
def test_the_rates_are_those_of_the_paper(family, width, dtype):
    """Computed here by the formula of RoPE; the probe reads them off the model, in bfloat16 as exactly."""
    turn = probe(tiny_model(family, 1, dtype=dtype), position_limit=2048)[0].rotation
    expected = [10_000.0 ** (-2 * j / width) for j in range(width // 2)]
    torch.testing.assert_close(turn.frequencies, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-8), (torch.bfloat16, 3e-6)], ids=str)
def test_rates_are_read_off_a_table_of_sines(dtype, error):
    """GPT-J has no rates, only sines for 2,048 positions; in bfloat16 they err by 0.006 rad at the end."""
    turn = probe(tiny_model("gptj", 1, dtype=dtype), position_limit=2048)[0].rotation
    expected = torch.tensor([10_000.0 ** (-2 * j / 8) for j in range(4)], dtype=torch.float64)
    torch.testing.assert_close(turn.frequencies, expected, rtol=0, atol=error)


def test_keys_may_turn_the_other_way():
    """nanochat's do: its rates are those of Llama, negative."""
    llama, nanochat = (probe(tiny_model(name, 1), position_limit=2048)[0].rotation for name in ("llama", "nanochat"))
    torch.testing.assert_close(nanochat.frequencies, -llama.frequencies)


def test_scaled_rates_are_told_from_the_plain_ones():
    plain, linear = (probe(tiny_model(f"llama{kind}", 1), position_limit=2048)[0] for kind in ("", ", linear"))
    torch.testing.assert_close(linear.rotation.frequencies * 4, plain.rotation.frequencies)


@DTYPES
def test_rates_that_differ_by_layer_are_told_apart(dtype):
    """Gemma 3 turns layers with a window of their own a hundred times as fast, at the lowest rate."""
    layouts = probe(tiny_model("gemma3", 3, dtype=dtype), position_limit=2048)
    lowest = [layout.rotation.frequencies[-1].item() for layout in layouts]
    assert lowest == pytest.approx([1e6 ** (-7 / 8), 1e4 ** (-7 / 8), 1e6 ** (-7 / 8)], rel=1e-5)


@DTYPES
@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_learned_absolute_positions_are_refused(family, dtype):
    with pytest.raises(CannotStream, match="tiny cannot stream: it learns absolute positions, so its cached keys"):
        probe(tiny_model(family, 2, dtype=dtype), position_limit=1024, name="tiny")


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [(torch.float32, "its keys are scaled after they were turned"), (torch.bfloat16, "its (cached )?keys")],
    ids=str,
)
def test_a_norm_behind_the_rotation_is_refused(dtype, reason):
    with pytest.raises(CannotStream, match=f"tiny cannot stream: {reason}"):
        probe(tiny_model("hunyuan_v1", 2, dtype=dtype), position_limit=1024, name="tiny")


@pytest.mark.parametrize("family", ["jamba", "qwen3_next", "lfm2"])
def test_layers_with_a_running_state_are_refused(family):
    with pytest.raises(CannotStream, match="tiny cannot stream: its layer 0 keeps a running state"):
        probe(tiny_model(family), position_limit=1024, name="tiny")


@DTYPES
def test_keys_that_turn_without_positions_given_are_refused(dtype):
    """Where a model counts for itself, the tokens that are kept could not be placed."""
    with pytest.raises(
        CannotStream, match="tiny cannot stream: its cached keys change with position, and it takes no"
    ):
        probe(CountsForItself(tiny_model("llama", 2, dtype=dtype)), position_limit=1024, name="tiny")


class CountsForItself(torch.nn.Module):
    """A Llama whose forward takes no positions."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.get_input_embeddings = model.get_input_embeddings

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        return self.model(input_ids, past_key_values=past_key_values, use_cache=use_cache)


def test_learned_absolute_positions_fail_the_shift_test_too():
    with pytest.raises(CannotStream, match="the same text means something else to it at position 1,000"):
        shift_test(tiny_model("gpt2", 2), last_position=1000)


def test_frequencies_that_the_keys_do_not_follow_are_refused():
    model = tiny_model("llama", 2)
    rotary = model.model.rotary_emb
    plain = rotary.forward

    def of_another_model(x, position_ids):
        return tuple(table.roll(1, dims=-1) for table in plain(x, position_ids))

    rotary.forward = of_another_model
    with pytest.raises(CannotStream, match="no known rotary layout"):
        probe(model, position_limit=2048)


def test_queries_that_know_their_position_fail_the_shift_test():
    """Keys alone cannot show it: here the last norm grows with the position that was asked for."""
    model = tiny_model("llama", 2)
    asked = {}
    model.model.rotary_emb.register_forward_pre_hook(lambda _, args, kwargs: asked.update(kwargs), with_kwargs=True)
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(
            lambda _, __, out: out * (1 + asked["position_ids"].unsqueeze(-1) / 4_000)
        )
    probe(model, position_limit=2048)
    shift_test(model, last_position=100)
    with pytest.raises(CannotStream, match="position 16,000"):
        shift_test(model, last_position=16_000)


def test_layer_shapes_need_no_rotation():
    (layout,) = layer_shapes(tiny_model("gpt2", 1))
    assert (layout.heads, layout.key_width, layout.rotation) == (4, 16, None)
