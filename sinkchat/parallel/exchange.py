"""Keys and values between processes: each holds some heads of every layer, rank 0 reads and writes all of them.

Every function is a collective: rank 0 calls one half of a pair while all others call the other half.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sinkchat.cache.storage import KeysValues


def collected(own: Sequence[KeysValues]) -> list[KeysValues]:
    """On rank 0: the tokens `own` with the heads of all processes, in the order of their ranks."""
    return [KeysValues(_gathered(tokens.keys), _gathered(tokens.values)) for tokens in own]


def hand_in(own: Sequence[KeysValues]) -> None:
    """On the others: what `collected` collects."""
    for tokens in own:
        for tensor in (tokens.keys, tokens.values):
            dist.gather(tensor.contiguous(), dst=0)


def dealt(tokens: Sequence[KeysValues], like: Sequence[KeysValues]) -> list[KeysValues]:
    """On rank 0: its own heads of `tokens`, on the devices of `like`. The others get theirs."""
    return [
        KeysValues(_scattered(every.keys, own.keys), _scattered(every.values, own.values))
        for every, own in zip(tokens, like, strict=True)
    ]


def receive(like: Sequence[KeysValues], count: int) -> list[KeysValues]:
    """On the others: what `dealt` gives them, `count` tokens."""
    return [KeysValues(_received(own.keys, count), _received(own.values, count)) for own in like]


def _gathered(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.gather(tensor, parts, dst=0)
    return torch.cat(parts, dim=1)


def _scattered(tensor: Tensor, like: Tensor) -> Tensor:
    parts = [part.contiguous() for part in tensor.to(like.device).chunk(dist.get_world_size(), dim=1)]
    own = torch.empty_like(parts[0])
    dist.scatter(own, parts, src=0)
    return own


def _received(like: Tensor, count: int) -> Tensor:
    layers, heads, _, width = like.shape
    own = like.new_empty(layers, heads, count, width)
    dist.scatter(own, src=0)
    return own
