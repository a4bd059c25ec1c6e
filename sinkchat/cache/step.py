"""Attention of one new token over the ring, and the cache through which a layer comes to it.

A decode step changes nothing: the new token's key and value are handed out, not written, so a step is a pure
function of tensors at fixed addresses. Compilers and graphs like that, and a step that fails leaves no trace.
A compiled section asks for one layer at a time (`StepCache`), a whole model for all of them (`StepStack`).

The scores are those of flash-decoding (blocks, a common maximum, one division at the end). Grouped-query heads of
one KV head read its keys once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache
from transformers.cache_utils import CacheLayerMixin

from sinkchat.errors import CannotStream

IMPLEMENTATION = "sinkchat_step"
"""The name under which transformers' attention finds `attend`."""

_CHOICE = "_attn_implementation"
"""Where a configuration says which attention its layers use; a parent's choice passes down to its parts."""

_REFUSED = ("sliding_window", "s_aux", "position_bias", "alibi")
"""What a layer may ask of its attention and does not get here."""


class Held(NamedTuple):
    """Keys or values, as `update` hands them to `attend`."""

    new: Tensor
    """(1, H, 1, D) of the new token"""
    blocks: Tensor
    """keys (C/32, H, D, 32) or values (C/32, H, 32, D) of the ring"""
    bias: Tensor
    """(C/32, 32): 0 where a slot is held, minus infinity elsewhere"""


class StepLayer(CacheLayerMixin):
    """One layer of the ring as one new token sees it."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True
        self._bias = bias
        self._new: tuple[Tensor, Tensor] | None = None

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """Key and value (1, H, 1, D) that the layer made. Raises CannotStream where it made none."""
        if self._new is None:
            raise CannotStream("a layer kept no key and no value of its own")
        return self._new

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Held, Held]:
        self._new = key_states, value_states
        return Held(key_states, self.keys, self._bias), Held(value_states, self.values, self._bias)

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self) -> int:
        return -1


class StepCache(Cache):
    """A single layer, whatever index the model gives it."""

    def __init__(self, keys: Tensor, values: Tensor, bias: Tensor) -> None:
        super().__init__(layers=[StepLayer(keys, values, bias)])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Held, Held]:
        held: tuple[Held, Held] = self.layers[0].update(key_states, value_states)
        return held

    def get_seq_length(self, *_: Any) -> int:
        return 0

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """Key and value (1, H, 1, D) that the layer made. Raises CannotStream where it made none."""
        new: tuple[Tensor, Tensor] = self.layers[0].new
        return new


class StepStack(Cache):
    """All layers of a model, each by its index. `held` are the keys and values of each in the ring."""

    def __init__(self, held: Sequence[tuple[Tensor, Tensor]], bias: Tensor) -> None:
        super().__init__(layers=[StepLayer(keys, values, bias) for keys, values in held])

    def new(self, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """New keys and values (N, H, 1, D) of N layers that are alike. Raises CannotStream where one made none."""
        keys, values = zip(*(self.layers[index].new for index in layers), strict=True)
        return torch.cat(keys), torch.cat(values)


@contextmanager
def stepping(model: nn.Module) -> Iterator[None]:
    """Within this context the layers of `model` attend by `attend`; behind it as before, whatever happened."""
    configs = [config for module in model.modules() if hasattr(config := getattr(module, "config", None), _CHOICE)]
    before = [(config, getattr(config, _CHOICE)) for config in {id(config): config for config in configs}.values()]
    try:
        for config, _ in before:
            setattr(config, _CHOICE, IMPLEMENTATION)
        yield
    finally:
        for config, choice in before:
            setattr(config, _CHOICE, choice)


def attend(
    module: nn.Module,
    query: Tensor,
    keys: Held,
    values: Held,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Attention (1, 1, H, D) of one query (1, H, 1, D) over the held slots and its own token; sums in float32.

    Raises CannotStream for what it would have to leave out.
    """
    refused = [name for name in _REFUSED if asked.get(name) is not None]
    if attention_mask is not None or refused:
        raise CannotStream(f"its attention needs {', '.join(refused) or 'a mask'}")
    heads, width = keys.blocks.shape[1:3]
    grouped = query.reshape(heads, -1, width).float() * (width**-0.5 if scaling is None else scaling)
    scores = _scores(grouped, keys.blocks)
    own = (grouped * keys.new.reshape(heads, 1, width).float()).sum(-1)
    if softcap is not None:
        scores, own = (softcap * torch.tanh(each / softcap) for each in (scores, own))
    scores = scores + keys.bias[:, None, None, :]
    largest = torch.maximum(scores.amax((0, 3)), own)
    weights, weight = (scores - largest[None, :, :, None]).exp(), (own - largest).exp()
    mixed = _mixed(weights, values.blocks) + weight[..., None] * values.new.reshape(heads, 1, -1).float()
    mixed = mixed / (weights.sum((0, 3)) + weight)[..., None]
    return mixed.to(query.dtype).reshape(1, 1, query.shape[1], -1), None


def _scores(grouped: Tensor, blocks: Tensor) -> Tensor:
    """(C/32, KV heads, group, 32). On a CPU as sums that fuse; as products elsewhere, which want no fusing."""
    if blocks.device.type != "cpu":
        return torch.matmul(grouped.to(blocks.dtype), blocks).float()
    keys = blocks.float()
    return torch.stack([(query[None, :, :, None] * keys).sum(2) for query in grouped.unbind(1)], 2)


def _mixed(weights: Tensor, blocks: Tensor) -> Tensor:
    """(KV heads, group, D): the values, weighed."""
    if blocks.device.type != "cpu":
        return torch.matmul(weights.to(blocks.dtype), blocks).float().sum(0)
    values = blocks.float()
    return torch.stack([(weight[..., None] * values).sum(2) for weight in weights.unbind(2)], 2).sum(0)


AttentionInterface.register(IMPLEMENTATION, attend)
