"""Linears with one input as one matmul: found by watching, exact however they are called."""

import copy

import pytest
import torch
from tiny import tiny_model
from torch import Tensor, nn

from sinkchat.models.int4.blocks import quantized
from sinkchat.models.int4.linear import Int4Linear
from sinkchat.models.int4.packing import is_here
from sinkchat.models.int4.replace import linears_of, plan_of, to_int4
from sinkchat.models.int4.sharing import FirstOfShared, PartOfShared, reads_the_same, shared

pytestmark = pytest.mark.skipif(not is_here(), reason="this torch has no 4-bit kernel for CPUs")

LAYER = "model.layers.0"


def model_in_bfloat16(family: str = "llama", **config):
    return tiny_model(family, dtype=torch.bfloat16, **config)


def first_layer(groups) -> list[list[str]]:
    return [[name.removeprefix(f"{LAYER}.") for name in group] for group in groups if group[0].startswith(LAYER)]


def three(seed: int = 0) -> tuple[list[nn.Module], list[Int4Linear], Tensor]:
    """Three linears as one, the same three apart, and an input."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(size, 64, generator=generator) for size in (64, 32, 16)]
    whole = Int4Linear.of(quantized(torch.cat(weights)), bias=None)
    apart = [Int4Linear.of(quantized(weight), bias=None) for weight in weights]
    return shared(whole, [64, 32, 16]), apart, torch.randn(1, 1, 64, generator=generator).bfloat16()


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "llama",
            [
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                ["self_attn.o_proj"],
                ["mlp.gate_proj", "mlp.up_proj"],
                ["mlp.down_proj"],
            ],
        ),
        (
            "phi",
            [
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                ["self_attn.dense"],
                ["mlp.fc1"],
                ["mlp.fc2"],
            ],
        ),
    ],
)
def test_what_reads_the_same_tensor_is_found(family: str, expected: list[list[str]]) -> None:
    assert first_layer(plan_of(model_in_bfloat16(family)).groups) == expected


def test_a_tensor_changed_in_place_between_two_calls_is_not_the_same() -> None:
    class Two(nn.Module):
        def __init__(self, changes: bool) -> None:
            super().__init__()
            self.inner = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)})
            self.changes = changes

        def forward(self, ids: Tensor, use_cache: bool) -> Tensor:
            x = ids.float().expand(1, 32).clone()
            y = self.inner["a"](x)
            if self.changes:
                x += 1
            return y + self.inner["b"](x)

    for changes, expected in ((False, [["inner.a", "inner.b"]]), (True, [["inner.a"], ["inner.b"]])):
        two = Two(changes)
        linears = {name: module for name, module in two.named_modules() if isinstance(module, nn.Linear)}
        assert reads_the_same(two, linears) == expected


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "stablelm", "phi", "gpt_neox", "opt"])
def test_a_model_says_the_same_with_its_linears_joined_and_apart(family: str) -> None:
    model = model_in_bfloat16(family)
    joined, apart = copy.deepcopy(model), copy.deepcopy(model)
    to_int4(joined)
    for name, linear in linears_of(apart).items():
        apart.set_submodule(name, Int4Linear.of(quantized(linear.weight), bias=linear.bias))
    apart.set_output_embeddings(joined.get_output_embeddings())
    ids = torch.arange(10, 50).unsqueeze(0)
    with torch.inference_mode():
        for given in (ids, ids[:, :3], ids[:, :1]):
            assert torch.equal(joined(given).logits, apart(given).logits)
        assert not torch.equal(joined(ids).logits, model(ids).logits)


def test_nothing_is_held_after_a_forward() -> None:
    model = model_in_bfloat16()
    to_int4(model)
    model(torch.tensor([[7, 8]]))
    firsts = [module for module in model.modules() if isinstance(module, FirstOfShared)]
    assert len(firsts) == 4
    assert [(one.result.input, one.result.output, one.result.waiting) for one in firsts] == [(None, None, ())] * 4


def test_the_weights_of_a_part_are_those_of_the_first_and_are_counted_once() -> None:
    modules, _, _ = three()
    assert [type(module) for module in modules] == [FirstOfShared, PartOfShared, PartOfShared]
    assert [len(list(module.buffers())) for module in modules] == [2, 0, 0]


def test_parts_are_exact_whatever_order_they_are_called_in() -> None:
    modules, apart, x = three()
    expected = [one(x) for one in apart]
    for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0, 0, 2, 2, 1), (0, 2, 0, 1)):
        for place in order:
            assert torch.equal(modules[place](x), expected[place]), order


def test_a_part_is_never_that_of_another_input() -> None:
    modules, apart, x = three()
    other = x + 1
    modules[0](x)
    assert torch.equal(modules[1](other), apart[1](other))
    assert torch.equal(modules[1](x), apart[1](x))
    assert not torch.equal(apart[1](other), apart[1](x))


def test_an_input_filled_anew_is_computed_anew() -> None:
    modules, apart, x = three()
    with torch.inference_mode():
        for value in (1.0, 2.0):
            x.fill_(value)
            for module, plain in zip(modules, apart, strict=True):
                assert torch.equal(module(x), plain(x))


def one_layer(model) -> tuple[nn.Module, tuple[Tensor, ...]]:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model.model.layers[0]

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return self.layer(x, position_embeddings=(cos, sin), attention_mask=None)

    x = torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    return Layer(), (x, *model.model.rotary_emb(x, torch.tensor([[3]])))


def test_a_layer_is_exported_whole_with_a_matmul_for_each_group() -> None:
    model = model_in_bfloat16()
    to_int4(model)
    layer, given = one_layer(model)
    with torch.no_grad():
        exported = torch.export.export(layer, given)
        assert torch.equal(exported.module()(*given), layer(*given))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert targets.count("aten._weight_int4pack_mm_for_cpu.default") == 4


def test_a_layer_is_compiled_without_a_break() -> None:
    model = model_in_bfloat16()
    to_int4(model)
    layer, given = one_layer(model)
    with torch.inference_mode():
        compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(*given), layer(*given))
