"""StreamingLLM computed a second, plainer way: what the cache is checked against.

What a model caches is kept as it would be at position 0, in float64. At every step all of it is placed anew, each
token at its rank in the cache. Forgetting is deleting rows. Nothing is clever, and nothing is known of rotary
embeddings: how a tensor at position 0 becomes one at position p is a matrix, measured by least squares on many
tokens, of any shape. So this shares neither frequencies nor pairings with the code that it checks.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictionPolicy, Span

_ROWS = 64
"""tokens by which a matrix is measured: more than any head of a tiny model is wide"""

Matrices: TypeAlias = Tensor | None
"""(P, D, D): rows at position 0 times matrix p are rows at position p; None where nothing changes"""


class PlainLayer(CacheLayerMixin):
    """One layer: keys and values, each with the matrices that place it."""

    is_sliding = False

    def __init__(self, matrices: Sequence[Matrices]) -> None:
        super().__init__()
        self._matrices = matrices
        self._raw: list[Tensor] = []
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to allocate."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All that is held, (1, H, T, D) each, placed by rank; the new token, whose rank it came at, is the last."""
        rank = self.get_seq_length()
        new = [
            states if turns is None else torch.linalg.solve(turns[rank], states, left=False)
            for states, turns in zip((key_states, value_states), self._matrices, strict=True)
        ]
        self._raw = [torch.cat([raw, one], 2) for raw, one in zip(self._raw, new, strict=True)] if self._raw else new
        keys, values = (
            raw if turns is None else (raw.unsqueeze(3) @ turns[: rank + 1]).squeeze(3)
            for raw, turns in zip(self._raw, self._matrices, strict=True)
        )
        return keys, values

    def forget(self, start: int, stop: int) -> None:
        """Deletes the ranks `[start, stop)`."""
        self._raw = [torch.cat([raw[:, :, :start], raw[:, :, stop:]], 2) for raw in self._raw]

    def get_seq_length(self) -> int:
        return self._raw[0].shape[2] if self._raw else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def reference_logits(
    model: nn.Module, ids: Sequence[int], policy: EvictionPolicy, *, capacity: int, pinned: int
) -> Tensor:
    """Logits (T, V) of every token of `ids`, fed one at a time through a plain streaming cache.

    `model` is in float64. Without message borders: for policies that count tokens.
    """
    forward = Forward(model)
    layers = [PlainLayer(matrices) for matrices in _measured(forward, capacity)]
    cache = Cache(layers=layers)
    held: list[int] = []
    rows = []
    for index, token in enumerate(ids):
        if len(held) == capacity:
            window = Span(held[pinned], index)
            count = len(policy.span_to_evict(window, capacity - pinned, ()))
            for layer in layers:
                layer.forget(pinned, pinned + count)
            del held[pinned : pinned + count]
        rows.append(forward(torch.tensor([[token]]), torch.tensor([[len(held)]]), cache)[0, -1])
        held.append(index)
    return torch.stack(rows)


def _measured(forward: Forward, positions: int) -> list[tuple[Matrices, Matrices]]:
    """For each layer what takes its keys, and its values, from position 0 to each of `positions`."""
    ids = torch.arange(_ROWS).unsqueeze(1) % forward.vocabulary_size
    at = [_cached(forward, ids, position) for position in range(positions if forward.takes_positions else 1)]
    slots = [[_matrices([layers[index][slot] for layers in at]) for slot in (0, 1)] for index in range(len(at[0]))]
    return [(keys, values) for keys, values in slots]


def _cached(forward: Forward, ids: Tensor, position: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values (B H, D) of each layer."""
    cache = DynamicCache()
    forward(ids, torch.tensor([[position]]), cache)
    return [(layer.keys.flatten(0, 2), layer.values.flatten(0, 2)) for layer in cache.layers]


def _matrices(rows: Sequence[Tensor]) -> Matrices:
    if all(torch.allclose(rows[0], other, atol=1e-9) for other in rows):
        return None
    return torch.stack([torch.linalg.lstsq(rows[0], other).solution for other in rows])
