"""StreamingLLM computed a second, plainer way: what the cache is checked against.

Keys are kept un-rotated in float64. At every step they are all rotated anew, each by its rank in the cache, by
matrices that are exponentials of their generators. Evicting is deleting rows. Nothing is clever, nothing is shared
with the code under test but the model and the rule of who leaves.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictionPolicy, Span


def rotary_generator(config: Any, head_width: int) -> Tensor:
    """The (D, D) matrix G of a half-split rotary embedding, read off the configuration: R(p) = exp(p G)."""
    parameters = config.rope_parameters
    turning = int(head_width * parameters.get("partial_rotary_factor", 1.0))
    generator = torch.zeros(head_width, head_width, dtype=torch.float64)
    for j in range(turning // 2):
        frequency = parameters["rope_theta"] ** (-2 * j / turning)
        generator[j, j + turning // 2] = -frequency
        generator[j + turning // 2, j] = frequency
    return generator


class PlainLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, generator: Tensor) -> None:
        super().__init__()
        self.generator = generator
        self.raw_keys: Tensor | None = None
        self.raw_values: Tensor | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def turn(self, keys: Tensor, ranks: range, sign: int) -> Tensor:
        angles = torch.tensor([sign * rank for rank in ranks], dtype=torch.float64)
        matrices = torch.matrix_exp(angles[:, None, None] * self.generator)
        return torch.einsum("tij,bhtj->bhti", matrices, keys.double())

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        held = self.get_seq_length()
        raw = self.turn(key_states, range(held, held + key_states.shape[2]), -1)
        if self.raw_keys is None or self.raw_values is None:
            self.raw_keys, self.raw_values = raw, value_states
        else:
            self.raw_keys = torch.cat([self.raw_keys, raw], dim=2)
            self.raw_values = torch.cat([self.raw_values, value_states], dim=2)
        return self.turn(self.raw_keys, range(self.raw_keys.shape[2]), 1).to(key_states.dtype), self.raw_values

    def forget(self, start: int, stop: int) -> None:
        self.raw_keys = torch.cat([self.raw_keys[:, :, :start], self.raw_keys[:, :, stop:]], dim=2)
        self.raw_values = torch.cat([self.raw_values[:, :, :start], self.raw_values[:, :, stop:]], dim=2)

    def get_seq_length(self) -> int:
        return 0 if self.raw_keys is None else self.raw_keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def reference_logits(
    model: nn.Module, ids: list[int], policy: EvictionPolicy, *, capacity: int, pinned: int, borders: list[int] = ()
) -> Tensor:
    """Logits (T, V) of every token of `ids`, fed one at a time through a plain streaming cache."""
    text_config = model.config.get_text_config(decoder=True)
    width = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
    layers = [PlainLayer(rotary_generator(text_config, width)) for _ in range(text_config.num_hidden_layers)]
    cache = Cache(layers=layers)
    forward = Forward(model)
    held = list(range(0))
    rows = []
    for index, token in enumerate(ids):
        if len(held) == capacity:
            window = Span(held[pinned], index)
            known = [border for border in borders if window.start <= border <= index]
            count = len(policy.span_to_evict(window, capacity - pinned, known))
            for layer in layers:
                layer.forget(pinned, pinned + count)
            del held[pinned : pinned + count]
        rows.append(forward(torch.tensor([[token]]), torch.tensor([[len(held)]]), cache)[0, -1])
        held.append(index)
    return torch.stack(rows)
