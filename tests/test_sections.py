"""A model cut into sections says what the whole says, for every family, wherever the ring stands."""

from collections.abc import Callable

import pytest
import torch
from stepping import BothWays, Runs, eager_step, ring_cache
from streams import distance, random_ids
from tiny import tiny_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.ring import BLOCK, RingStorage
from sinkchat.cache.step import Held, attend
from sinkchat.engine.engine import Engine
from sinkchat.engine.sections import Sections, decoder_layers, group_size
from sinkchat.errors import CannotStream

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
CAPACITY = 4 * BLOCK
CLOSE = 3e-5
"""standard deviations, in float32"""


def both_ways(model: nn.Module, *, chunk: int = 19, tokens: int = 400) -> BothWays:
    """Reads `tokens` tokens, every `chunk + 1`st of them alone and both ways: far past the ring's first turn."""
    cache, ring = ring_cache(model, EvictTokens(chunk + 1), capacity=CAPACITY)
    forward = BothWays(model, ring, eager_step(model, ring))
    engine, ids = Engine(model, cache, forward=forward), random_ids(tokens)
    for start in range(0, tokens, chunk + 1):
        engine.feed(ids[start : start + chunk])
        engine.feed(ids[start + chunk : start + chunk + 1])
    return forward


@pytest.mark.parametrize("family", FAMILIES)
def test_sections_say_what_the_model_says_before_and_after_the_ring_has_turned(family):
    forward = both_ways(tiny_model(family.split("-")[0], 2, **FAMILIES[family]))
    assert sorted(set(forward.reaches)) == [1, 2, 3, 4]
    assert len(forward.plain) >= 20
    assert distance(torch.stack(forward.stepped), torch.stack(forward.plain)) < CLOSE


def test_groups_of_layers_come_one_after_the_other():
    """Seven layers are seven groups of one, eight two groups of four, nine three of three."""
    for layers, groups in ((7, 7), (8, 2), (9, 3)):
        model = tiny_model("llama", layers)
        cache, ring = ring_cache(model)
        runs = Runs(model)
        forward = BothWays(model, ring, eager_step(model, ring, runs))
        engine = Engine(model, cache, forward=forward)
        engine.feed(random_ids(70))
        engine.feed([9])
        assert len(runs.biases) == groups * len(forward.plain)
        assert distance(torch.stack(forward.stepped), torch.stack(forward.plain)) < CLOSE


def test_a_model_that_caps_its_scores_is_cut_as_well():
    config = AutoConfig.for_model(
        "gemma2",
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=1,
        attn_logit_softcapping=2.0,
        layer_types=["full_attention"] * 2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for weight in model.parameters():
        weight.copy_(torch.randn(weight.shape) * (0.1 if weight.ndim == 1 else 1.3 / weight.shape[-1] ** 0.5))
    forward = both_ways(model)
    assert distance(torch.stack(forward.stepped), torch.stack(forward.plain)) < CLOSE


def stepped_after(change: Callable[[RingStorage], None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a step over a full ring that `change` has changed, and of the plain forward over it unchanged."""
    model = tiny_model("llama", 2)
    cache, ring = ring_cache(model, capacity=CAPACITY)
    Engine(model, cache).feed(random_ids(300))
    cache.make_room()
    input_ids, position_ids = torch.tensor([[9]]), cache.positions(1)
    with torch.inference_mode():
        (plain,) = Engine(model, cache)._forward(input_ids, position_ids, cache)[0]
        change(ring)
        logits, _ = eager_step(model, ring)(input_ids, position_ids)
    return logits, plain


def hide_a_held_slot(ring: RingStorage) -> None:
    ring.bias[2, 5] = -torch.inf


def show_a_free_slot(ring: RingStorage) -> None:
    ((free,),) = [torch.nonzero(ring.bias.flatten() == -torch.inf).flatten().tolist()]
    ring.bias.view(-1)[free] = 0.0


def change_a_key_of_the_last_layer(ring: RingStorage) -> None:
    ring.groups[0].keys[1, 0, 0, :, 0] += 1.0


def change_a_value_of_the_first_layer(ring: RingStorage) -> None:
    ring.groups[0].values[0, 0, 1, 0] += 1.0


def change_nothing(ring: RingStorage) -> None:
    pass


@pytest.mark.parametrize(
    "change",
    [hide_a_held_slot, show_a_free_slot, change_a_key_of_the_last_layer, change_a_value_of_the_first_layer],
    ids=lambda change: change.__name__.replace("_", " "),
)
def test_a_ring_that_is_wrong_in_one_slot_shows(change):
    assert distance(*stepped_after(change_nothing)) < CLOSE
    assert distance(*stepped_after(change)) > 100 * CLOSE


def attention(softcap: float | None, *, heads: int = 2, group: int = 3, scaling: float | None = 0.2) -> tuple:
    """`attend` over three blocks with free slots among them, and the same by one softmax over a row of tokens."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return 2 * torch.randn(shape, generator=generator)

    keys, values = noise(3, heads, 8, BLOCK), noise(3, heads, BLOCK, 5)
    query, new_key, new_value = noise(1, heads * group, 1, 8), noise(1, heads, 1, 8), noise(1, heads, 1, 5)
    bias = torch.where(torch.rand(3, BLOCK, generator=generator) < 0.6, 0.0, -torch.inf)
    output, nothing = attend(
        nn.Identity(),
        query,
        Held(new_key, keys, bias),
        Held(new_value, values, bias),
        None,
        scaling,
        softcap,
    )
    assert nothing is None
    held = bias.flatten() == 0
    rows = torch.cat([keys.permute(1, 0, 3, 2).flatten(1, 2)[:, held], new_key[0]], 1).double()
    mixed = torch.cat([values.transpose(0, 1).flatten(1, 2)[:, held], new_value[0]], 1).double()
    scores = query.double().view(heads, group, 8) @ rows.transpose(1, 2) * (8**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return output, (scores.softmax(-1) @ mixed).view(1, 1, heads * group, 5)


@pytest.mark.parametrize("scaling", [None, 0.2])
@pytest.mark.parametrize("softcap", [None, 2.0, 50.0])
def test_attention_over_blocks_is_one_softmax_over_the_held_slots(softcap, scaling):
    output, expected = attention(softcap, scaling=scaling)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)


def test_the_cap_of_scores_changes_what_attention_says():
    (capped, _), (free, _) = attention(2.0), attention(None)
    assert (capped - free).abs().max() > 0.1


def test_over_an_empty_ring_a_token_attends_to_itself():
    held = Held(torch.ones(1, 1, 1, 4), torch.zeros(2, 1, 4, BLOCK), torch.full((2, BLOCK), -torch.inf))
    own = held._replace(new=torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4), blocks=torch.zeros(2, 1, BLOCK, 4))
    output, _ = attend(nn.Identity(), torch.ones(1, 2, 1, 4), held, own, None)
    assert output.tolist() == [[[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]]]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"sliding_window": 8}, "sliding_window"),
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"alibi": torch.zeros(1), "sliding_window": 8}, "sliding_window, alibi"),
        ({"attention_mask": torch.zeros(1, 1, 1, 65)}, "a mask"),
    ],
    ids=["sliding window", "learned sinks", "position bias", "two of them", "mask"],
)
def test_what_attention_would_have_to_leave_out_is_refused(asked, named):
    held = Held(torch.ones(1, 1, 1, 4), torch.zeros(2, 1, 4, BLOCK), torch.zeros(2, BLOCK))
    with pytest.raises(CannotStream, match=f"^its attention needs {named}$"):
        attend(nn.Identity(), torch.ones(1, 2, 1, 4), held, held, **({"attention_mask": None} | asked))


def test_keywords_that_ask_for_nothing_are_accepted():
    held = Held(torch.ones(1, 1, 1, 4), torch.zeros(2, 1, 4, BLOCK), torch.zeros(2, BLOCK))
    asked = {"sliding_window": None, "s_aux": None, "dropout": 0.0}
    output, _ = attend(
        nn.Identity(), torch.ones(1, 2, 1, 4), held, held._replace(blocks=held.blocks.mT), None, **asked
    )
    assert output.shape == (1, 1, 2, 4)


def layers_of(*dropouts: float) -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(4, 4), nn.Dropout(each)) for each in dropouts]


@pytest.mark.parametrize(
    ("count", "size"), [(1, 1), (5, 5), (6, 6), (7, 1), (8, 4), (9, 3), (12, 6), (30, 6), (32, 4)]
)
def test_alike_layers_make_the_largest_group_that_repeats(count, size):
    assert group_size(layers_of(*[0.1] * count)) == size


@pytest.mark.parametrize(("count", "size"), [(2, 2), (4, 4), (8, 4), (10, 2), (26, 2)])
def test_layers_that_alternate_make_groups_that_end_where_they_began(count, size):
    assert group_size(layers_of(*[0.1, 0.2] * (count // 2))) == size


def test_layers_that_differ_all_along_make_no_group():
    with pytest.raises(CannotStream, match=r"^its layers differ from each other in more than their weights$"):
        group_size(layers_of(*(index / 10 for index in range(7))))
    with pytest.raises(CannotStream, match="layers differ"):
        group_size([*layers_of(*[0.1] * 6), nn.Linear(4, 4)])


def test_the_layers_are_the_list_that_weighs_most():
    model = tiny_model("llama", 2)
    model.adapters = nn.ModuleList([nn.Linear(2, 2) for _ in range(9)])
    owner, name = decoder_layers(model)
    assert (owner, name) == (model.model, "layers")


def test_a_model_without_a_list_of_layers_is_refused():
    with pytest.raises(CannotStream, match=r"^Linear has no list of layers$"):
        decoder_layers(nn.Linear(2, 2))


def test_a_group_is_given_what_the_layers_before_it_were_given():
    sections = Sections(tiny_model("llama", 2))
    with pytest.raises(ValueError, match="only after `before`"):
        sections.layers([torch.zeros(1, 1, 64)], torch.zeros(2, BLOCK), [torch.zeros(1)] * 18, [torch.zeros(1)] * 4)
