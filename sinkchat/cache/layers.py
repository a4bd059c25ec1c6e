"""The contiguous layout: `[pinned | window]` as one run of slots, right for every model without any mask.

A buffer is allocated once, a little longer than the capacity. New tokens are written behind the window; what is
held is one slice, so attention needs no mask. Forgetting moves the start of the slice forward, over the oldest
window tokens; the pinned ones, few, are then written again directly in front of the window. When the slice reaches
the buffer's end it is copied back to the front: once per `slack` tokens, never per token.

    slots   |..............[SSSS|oldest ............ newest]........|
                           front                          stop
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.rope import rotate
from sinkchat.cache.storage import KeysValues, alike_layers


@dataclass(slots=True)
class Slots:
    """Which slots of every layer's buffer are in use: `[front, stop)`. One object for all layers."""

    front: int = 0
    stop: int = 0


class LayerGroup:
    """The buffers of all layers that are alike.

    `keys` is (N, H, L, Dk), `values` (N, H, L, Dv): layers, heads, slots, dimensions.
    """

    def __init__(self, layout: LayerLayout, layers: Sequence[int], length: int) -> None:
        shape = (len(layers), layout.heads, length)
        self.layers = tuple(layers)
        self._rotations = (layout.rotation, layout.value_rotation)
        self.keys = torch.zeros(*shape, layout.key_width, dtype=layout.dtype, device=layout.device)
        self.values = torch.zeros(*shape, layout.value_width, dtype=layout.dtype, device=layout.device)

    @property
    def _buffers(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def read(self, start: int, stop: int) -> KeysValues:
        """A copy of the slots `[start, stop)`."""
        return KeysValues(self.keys[:, :, start:stop].clone(), self.values[:, :, start:stop].clone())

    def write(self, start: int, tokens: KeysValues, *, distance: int = 0) -> None:
        """Puts `tokens` into the slots from `start` on, moved by `distance` positions."""
        stop = start + tokens.keys.shape[2]
        for buffer, those, rotation in zip(self._buffers, (tokens.keys, tokens.values), self._rotations, strict=True):
            moved = rotate(those, distance, rotation) if rotation is not None and distance else those
            buffer[:, :, start:stop] = moved

    def shift(self, source: int, target: int, count: int) -> None:
        """Copies `count` slots from `source` down to `target`, in blocks that do not overlap."""
        step = source - target
        for first in range(0, count, step):
            block = min(step, count - first)
            for buffer in self._buffers:
                old = buffer[:, :, source + first : source + first + block]
                buffer[:, :, target + first : target + first + block] = old

    def turn(self, start: int, stop: int, distance: int) -> None:
        """Moves what is in the slots `[start, stop)` by `distance` positions, a layer at a time."""
        for buffer, rotation in zip(self._buffers, self._rotations, strict=True):
            if rotation is not None:
                for tensor in buffer:
                    tensor[:, start:stop] = rotate(tensor[:, start:stop], distance, rotation)


class ContiguousLayer(CacheLayerMixin):
    """One layer of a group, as transformers' attention speaks to it.

    `update` writes behind what is held and returns all of it; nothing is forgotten there, and nothing is counted
    until the whole forward has succeeded, so a forward that is broken off leaves every layer as it was.
    """

    is_sliding = False

    def __init__(self, group: LayerGroup, index: int, slots: Slots) -> None:
        super().__init__()
        self._slots = slots
        self.keys = group.keys[index : index + 1]
        self.values = group.values[index : index + 1]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All held keys and values (1, H, T, D), the new ones at the end; views of the buffers."""
        slots = self._slots
        stop = slots.stop + key_states.shape[2]
        self.keys[:, :, slots.stop : stop] = key_states
        self.values[:, :, slots.stop : stop] = value_states
        return self.keys[:, :, slots.front : stop], self.values[:, :, slots.front : stop]

    def get_seq_length(self) -> int:
        return self._slots.stop - self._slots.front

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class ContiguousStorage:
    """Keys and values of `capacity` tokens, and of the slack in which the window slides."""

    def __init__(self, layouts: Sequence[LayerLayout], capacity: int) -> None:
        self._capacity = capacity
        self._length = capacity + max(capacity // 4, 1)
        self._groups = [LayerGroup(layouts[layers[0]], layers, self._length) for layers in alike_layers(layouts)]
        self._slots = Slots()
        self._pinned = 0
        layers = {
            index: ContiguousLayer(group, place, self._slots)
            for group in self._groups
            for place, index in enumerate(group.layers)
        }
        self.layers = [layers[index] for index in range(len(layouts))]

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    @property
    def held(self) -> int:
        return self._slots.stop - self._slots.front

    def clear(self, pinned: int, *, left: int = 0) -> None:
        self._pinned = pinned
        self._slots.front = self._slots.stop = 0

    def append(self, count: int) -> None:
        self._slots.stop += count

    def cut(self, count: int) -> None:
        self._slots.stop -= count

    def drop(self, count: int) -> None:
        """Moves the front; copies the window to the buffer's front where the next tokens might not fit behind it."""
        slots = self._slots
        slots.front += count
        if slots.front + self._capacity > self._length:
            window = self.held - self._pinned
            for group in self._groups:
                group.shift(slots.front + self._pinned, self._pinned, window)
            slots.front, slots.stop = 0, self._pinned + window

    def read(self, start: int, stop: int) -> list[KeysValues]:
        front = self._slots.front
        return [group.read(front + start, front + stop) for group in self._groups]

    def write(self, start: int, tokens: Sequence[KeysValues]) -> None:
        for group, those in zip(self._groups, tokens, strict=True):
            group.write(self._slots.front + start, those)

    def place(self, pinned: Sequence[KeysValues], distance: int) -> None:
        for group, those in zip(self._groups, pinned, strict=True):
            group.write(self._slots.front, those, distance=distance)

    def turn(self, start: int, stop: int, distance: int) -> None:
        front = self._slots.front
        for group in self._groups:
            group.turn(front + start, front + stop, distance)
