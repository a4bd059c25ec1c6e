"""The probe finds how keys turn, and refuses what does not merely turn."""

import pytest
import torch
from tiny import tiny_model

from sinkchat.cache.probe import layer_shapes, probe, shift_test
from sinkchat.errors import CannotStream

LAYOUTS = {
    "llama": ("half", 0, 16),
    "mistral": ("half", 0, 16),
    "qwen2": ("half", 0, 16),
    "qwen3": ("half", 0, 16),
    "gpt_neox": ("half", 0, 4),
    "phi": ("half", 0, 8),
    "stablelm": ("half", 0, 4),
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
@pytest.mark.parametrize("family", LAYOUTS)
def test_the_probe_finds_the_layout(family, dtype):
    model = tiny_model(family, 3, dtype=dtype)
    layouts = probe(model, position_limit=2048)
    found = [(layout.rotation.pairing, layout.rotation.start, layout.rotation.width) for layout in layouts]
    assert found == [LAYOUTS[family]] * 3
    parameters = model.config.rope_parameters
    width = LAYOUTS[family][2]
    expected = [parameters["rope_theta"] ** (-2 * j / width) for j in range(width // 2)]
    torch.testing.assert_close(
        layouts[0].rotation.frequencies, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )


@DTYPES
@pytest.mark.parametrize("family", LAYOUTS)
def test_what_the_probe_accepts_passes_the_shift_test(family, dtype):
    shift_test(tiny_model(family, 3, dtype=dtype), last_position=16_000)


@DTYPES
@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_learned_absolute_positions_are_refused(family, dtype):
    with pytest.raises(CannotStream, match="tiny cannot stream: it learns absolute positions, so its cached keys"):
        probe(tiny_model(family, 2, dtype=dtype), position_limit=1024, name="tiny")


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
