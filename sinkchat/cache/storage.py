"""What the cache asks of the place where keys and values live. It counts in *ranks*: 0 is the first pinned token.

A layout decides which slot of its buffers a rank means, so that forgetting moves next to nothing: `layers` slides a
window through one long run, `ring` wraps it around at addresses that never change. Both know nothing of positions in
the stream, of policies, or of when there is room.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.probe import LayerLayout


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Keys (N, H, T, Dk) and values (N, H, T, Dv) of the same T tokens in N layers, both owned by the holder."""

    keys: Tensor
    values: Tensor

    def on(self, device: torch.device | str) -> "KeysValues":
        """The same tokens on `device`."""
        return KeysValues(self.keys.to(device), self.values.to(device))


class Storage(Protocol):
    """Buffers for all layers, allocated once. Lists of tokens are by group of alike layers, as `read` gives them."""

    @property
    def held(self) -> int:
        """Tokens that are held: ranks 0 to `held`."""

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""

    @property
    def layers(self) -> Sequence[CacheLayerMixin]:
        """What each layer of the model speaks to. They write behind what is held, and count nothing."""

    def clear(self, pinned: int, *, left: int = 0) -> None:
        """Holds nothing any more; from now on the first `pinned` ranks stay. `left` tokens of the stream had left."""

    def append(self, count: int) -> None:
        """Holds the next `count` tokens too, which the layers or `write` have written."""

    def cut(self, count: int) -> None:
        """Lets the newest `count` tokens go."""

    def drop(self, count: int) -> None:
        """Lets the oldest `count` tokens behind the pinned ones go. The pinned ones must then be placed again."""

    def read(self, start: int, stop: int) -> list[KeysValues]:
        """A copy of the ranks `[start, stop)`."""

    def write(self, start: int, tokens: Sequence[KeysValues]) -> None:
        """Puts `tokens` at the ranks from `start` on."""

    def place(self, pinned: Sequence[KeysValues], distance: int) -> None:
        """Puts the pinned tokens, as the model wrote them, in front of the window, moved by `distance` positions."""

    def turn(self, start: int, stop: int, distance: int) -> None:
        """Moves the tokens at the ranks `[start, stop)` by `distance` positions."""


def alike_layers(layouts: Sequence[LayerLayout]) -> list[tuple[int, ...]]:
    """Which layers are shaped alike and turn alike, so that one operation can serve them all."""
    alike: dict[Hashable, list[int]] = {}
    for index, layout in enumerate(layouts):
        shape = (layout.heads, layout.key_width, layout.value_width, layout.dtype, layout.device)
        alike.setdefault((*shape, id(layout.rotation), id(layout.value_rotation)), []).append(index)
    return [tuple(layers) for layers in alike.values()]
