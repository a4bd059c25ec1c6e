"""A model's own linears replaced by 4-bit ones, and its head by an 8-bit one.

The modules of the decoder layers stay what they are; only `nn.Linear` inside them is exchanged, where the kernel
takes its size. Embeddings, norms and the routers of experts keep their numbers. One group is exchanged at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkchat.models.int4.blocks import Blocks, quantized, stacked
from sinkchat.models.int4.linear import Int4Linear, Int8Linear
from sinkchat.models.int4.packing import fits
from sinkchat.models.int4.sharing import reads_the_same, shared

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which linears become one matmul of 4 bits, by their names in the model, and the head of 8 bits."""

    groups: tuple[tuple[str, ...], ...]
    head: str | None


def plan_of(model: PreTrainedModel) -> Plan:
    """What can be replaced in `model`, found by running it on one token."""
    groups = reads_the_same(model, linears_of(model))
    return Plan(tuple(tuple(group) for group in groups), head_of(model))


def linears_of(model: PreTrainedModel) -> Mapping[str, nn.Linear]:
    """The linears inside the decoder layers that the kernel takes, by name."""
    text = model.config.get_text_config(decoder=True)
    routed = {getattr(text, name, None) for name in _EXPERTS}
    return {
        f"{path}.{name}": module
        for path, layers in model.named_modules()
        if isinstance(layers, nn.ModuleList) and len(layers) == text.num_hidden_layers
        for name, module in layers.named_modules()
        if type(module) is nn.Linear
        and fits(module.out_features, module.in_features)
        and module.out_features not in routed
    }


def head_of(model: PreTrainedModel) -> str | None:
    """The name of the head where it is a plain linear."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return names[head]


def to_int4(model: PreTrainedModel, *, blocks_for: Callable[[Tensor], Blocks | None] = lambda weight: None) -> Plan:
    """Replaces the linears of `model`, which must lie on the CPU, and returns what it replaced.

    `blocks_for` may know the blocks that a weight was made from; else it is quantised.
    """
    plan = plan_of(model)
    dtype = model.dtype
    for group in plan.groups:
        linears = [model.get_submodule(name) for name in group]
        blocks = stacked([blocks_for(one.weight) or quantized(one.weight, dtype) for one in linears])
        _put(model, group, Int4Linear.of(blocks, bias=_joined_bias(linears), dtype=dtype), _sizes(linears))
    if plan.head is not None:
        head = model.get_submodule(plan.head)
        model.set_submodule(plan.head, Int8Linear.of(head.weight, bias=head.bias, dtype=dtype))
        _untie(model)
    return plan


def to_empty_int4(model: PreTrainedModel, plan: Plan) -> None:
    """Replaces as `plan` says, with weights that are yet to be loaded."""
    dtype = model.dtype
    for group in plan.groups:
        linears: list[Any] = [model.get_submodule(name) for name in group]
        sizes, bias = _sizes(linears), any(one.bias is not None for one in linears)
        whole = Int4Linear(linears[0].in_features, sum(sizes), bias=bias, dtype=dtype)
        _put(model, group, whole, sizes)
    if plan.head is not None:
        head: Any = model.get_submodule(plan.head)
        bias = head.bias is not None
        model.set_submodule(plan.head, Int8Linear(head.in_features, head.out_features, bias=bias, dtype=dtype))
        _untie(model)


def _put(model: nn.Module, group: tuple[str, ...], whole: Int4Linear, sizes: list[int]) -> None:
    for name, module in zip(group, shared(whole, sizes), strict=True):
        model.set_submodule(name, module)


def _sizes(linears: list[Any]) -> list[int]:
    return [one.out_features for one in linears]


def _joined_bias(linears: list[Any]) -> Tensor | None:
    if all(one.bias is None for one in linears):
        return None
    return torch.cat([one.weight.new_zeros(one.out_features) if one.bias is None else one.bias for one in linears])


def _untie(model: PreTrainedModel) -> None:
    """The head has codes of its own now; the embedding keeps its numbers."""
    model.config.tie_word_embeddings = False
    model.config.get_text_config(decoder=True).tie_word_embeddings = False
    model.all_tied_weights_keys = {}
