"""A small language model of bytes, to be trained with three kinds of sinks: rotary positions, norms before layers.

What a head does not need it must put somewhere, since softmax spends all of its weight. Three ways (arXiv 2309.17453,
section 3.3): the model uses what stands first (`VANILLA`); each head can leave weight unspent, softmax with 1 added
below the line, which is a token whose key and value are nought (`ZERO_SINK`); or all texts begin with one token that
is learned for the purpose (`LEARNABLE_SINK`).

The cache holds keys that are not rotated: at each step all are turned to their rank in it. Plain, and slow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

BYTES = 256
THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a model can put the weight that it does not need."""

    name: str
    has_zero_sink: bool = False
    has_sink_token: bool = False


VANILLA = Kind("vanilla")
ZERO_SINK = Kind("zero sink", has_zero_sink=True)
LEARNABLE_SINK = Kind("learnable sink", has_sink_token=True)
KINDS = (VANILLA, ZERO_SINK, LEARNABLE_SINK)


@dataclass(frozen=True, slots=True)
class Size:
    layers: int = 4
    heads: int = 4
    width: int = 128
    """of the residual stream; an even multiple of `heads`"""


@dataclass(slots=True)
class Held:
    """Keys, not rotated, and values of one layer: (B, H, T, D)."""

    keys: Tensor
    values: Tensor

    def evict(self, start: int, count: int) -> None:
        """Lets `count` tokens leave from rank `start` on."""
        for name in ("keys", "values"):
            held = getattr(self, name)
            setattr(self, name, torch.cat([held[:, :, :start], held[:, :, start + count :]], dim=2))


class Attention(nn.Module):
    def __init__(self, size: Size, kind: Kind) -> None:
        super().__init__()
        self.heads = size.heads
        self.has_zero_sink = kind.has_zero_sink
        self.inputs = nn.Linear(size.width, 3 * size.width, bias=False)
        self.output = nn.Linear(size.width, size.width, bias=False)

    def forward(self, hidden: Tensor, held: Held | None) -> tuple[Tensor, Held]:
        """`hidden` (B, T, W) attends to what is held and to itself; all that is held then."""
        batch, count, width = hidden.shape
        queries, keys, values = self.inputs(hidden).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if held is not None:
            keys, values = torch.cat([held.keys, keys], dim=2), torch.cat([held.values, values], dim=2)
        total = keys.shape[2]
        ranks = torch.arange(total, device=hidden.device)
        asked, found, given = turned(queries, ranks[-count:]), turned(keys, ranks), values
        mask = ranks <= ranks[-count:, None]
        if self.has_zero_sink:
            found, given = pad(found, (0, 0, 1, 0)), pad(given, (0, 0, 1, 0))
            mask = pad(mask, (1, 0), value=True)
        mixed = scaled_dot_product_attention(asked, found, given, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).reshape(batch, count, width)), Held(keys, values)


class Block(nn.Module):
    def __init__(self, size: Size, kind: Kind) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.attention = Attention(size, kind)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width, bias=False),
        )

    def forward(self, hidden: Tensor, held: Held | None) -> tuple[Tensor, Held]:
        mixed, held = self.attention(self.attention_norm(hidden), held)
        hidden = hidden + mixed
        return hidden + self.mlp(self.mlp_norm(hidden)), held


class SinkModel(nn.Module):
    """Bytes in, logits of the next byte out. The kind with a sink token puts it before the first byte of a text."""

    def __init__(self, kind: Kind, size: Size) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(BYTES, size.width)
        self.sink = nn.Parameter(torch.randn(size.width)) if kind.has_sink_token else None
        self.blocks = nn.ModuleList(Block(size, kind) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, BYTES, bias=False)

    def forward(self, text: Tensor, cache: list[Held | None] | None = None) -> tuple[Tensor, list[Held | None]]:
        """Logits (B, T, 256) of what follows each byte of `text` (B, T), and what is held then, a layer each."""
        hidden = self.embedding(text)
        is_first = cache is None
        if is_first and self.sink is not None:
            hidden = torch.cat([self.sink.expand(len(text), 1, -1), hidden], dim=1)
        new: list[Held | None] = []
        for index, block in enumerate(self.blocks):
            hidden, held = block(hidden, None if cache is None else cache[index])
            new.append(held)
        return self.head(self.norm(hidden[:, -text.shape[1] :])), new


def turned(keys: Tensor, positions: Tensor) -> Tensor:
    """`keys` (B, H, T, D), not rotated, at `positions` (T,); halves pair up."""
    half = keys.shape[-1] // 2
    angles = positions[:, None] * THETA ** (-torch.arange(half, device=keys.device) / half)
    cos, sin = angles.cos(), angles.sin()
    first, second = keys.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
