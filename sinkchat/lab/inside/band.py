"""What each of many tokens sees, when one token leaves for each that comes.

Nothing about it depends on the tokens: the sinks, and the latest tokens up to itself. So one forward can read many
tokens at once, if its attention is a band:

                sinks     window         new
    keys        0 1 2 3 | 6 7 8 9 ... | a b c
    query a     x x x x   x x x x x     x
    query b     x x x x     x x x x     x x
    query c     x x x x       x x x     x x x

Keys of window and new tokens stand where the model wrote them. The sinks should stand directly in front of each
query's own window, which no one place of a key can be; so for their scores the *query* is turned, from its place in
the stream back to its rank in the cache. Only the distance counts, and that is the same.

The attention function comes in by transformers' own door, `AttentionInterface`, and each forward brings its band.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from sinkchat.cache.rope import Rotation

ATTENTION = "sinkchat_band"

_CHANGES_SCORES = ("softcap", "s_aux", "position_bias", "sinks")
"""what families hand to their attention that this one does not compute"""


class CannotBand(Exception):
    """The model's attention does something that the band leaves out; the message says what."""


@dataclass(frozen=True, slots=True)
class Turn:
    """By how much each query of a chunk is turned: `cos` and `sin` are (T, R/2), in float32 or better."""

    rotation: Rotation
    cos: Tensor
    sin: Tensor

    @classmethod
    def by(cls, distances: Sequence[int], rotation: Rotation, *, device: torch.device, dtype: torch.dtype) -> "Turn":
        """Query number t is moved by `distances[t]` positions."""
        angles = torch.tensor(distances, dtype=torch.float64)[:, None] * rotation.frequencies.cpu()
        working = torch.promote_types(dtype, torch.float32)
        return cls(rotation, angles.cos().to(device, working), angles.sin().to(device, working))

    def __call__(self, queries: Tensor) -> Tensor:
        """Queries (..., T, D), turned; a new tensor of their dtype."""
        turned = queries.clone()
        first, second = (part.to(self.cos.dtype) for part in self.rotation.pairs(queries))
        turned_first, turned_second = self.rotation.pairs(turned)
        turned_first.copy_(first * self.cos - second * self.sin)
        turned_second.copy_(second * self.cos + first * self.sin)
        return turned


@dataclass(frozen=True, slots=True)
class Band:
    """What a chunk of T tokens sees of the keys `[sinks | window and new]`."""

    sinks: int
    """keys at the front that all queries see"""
    hidden: Tensor
    """(T, S - sinks), true where a query does not see a key"""
    turns: Sequence[Turn | None]
    """for each layer, how its queries turn to meet the sinks; None where they stay"""


def band_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    band: Band | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of `query` (1, Hq, T, D) over `key` (1, H, S, D) and `value` (1, H, S, Dv), as (1, T, Hq, Dv).

    Softmax is in float32. Raises `CannotBand` for what it would leave out.
    """
    if band is None:
        raise CannotBand("its layers are not told what the forward was")
    for name in _CHANGES_SCORES:
        if others.get(name) is not None:
            raise CannotBand(f"its attention takes {name}")
    _, query_heads, count, width = query.shape
    _, heads, length, _ = key.shape
    if length != band.sinks + band.hidden.shape[1]:
        raise CannotBand("its layers bring other keys than those held")
    scale = width**-0.5 if scaling is None else scaling
    grouped = (heads, query_heads // heads * count, width)  # queries that share a key's head, in one product
    scores = query.reshape(grouped) @ key[0, :, band.sinks :].mT
    scores = scores.view(heads, -1, count, length - band.sinks)
    scores.masked_fill_(band.hidden, float("-inf"))
    if band.sinks:
        turn = band.turns[int(module.layer_idx)]  # type: ignore[arg-type]
        turned = query if turn is None else turn(query)
        to_sinks = turned.reshape(grouped) @ key[0, :, : band.sinks].mT
        scores = torch.cat([to_sinks.view(heads, -1, count, band.sinks), scores], dim=-1)
    weights = (scores.float() * scale).softmax(-1).to(value.dtype)
    mixed = weights.view(heads, -1, length) @ value[0]
    return mixed.view(1, query_heads, count, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, band_attention)


@contextmanager
def banded(model: nn.Module) -> Iterator[None]:
    """Within this context the layers of `model` attend by the band that a forward brings.

    Raises `CannotBand` where they cannot be told to.
    """
    config: Any = model.config
    before = config._attn_implementation
    choose: Any = model.set_attn_implementation
    try:
        choose(ATTENTION)
        if config._attn_implementation != ATTENTION:
            raise CannotBand("its layers do not take another attention")
        yield
    finally:
        choose(before)
