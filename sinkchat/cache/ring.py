"""The ring layout: every token keeps its address, so that one compiled step serves for ever.

The pinned tokens lie in the first slots. Behind them the window is a ring: the next token takes the slot that was
freed longest ago, and forgetting frees slots without moving anything. `bias` says which slots are held: 0 there,
minus infinity elsewhere; added to the scores it is all the mask that one new token needs.

    slots   |SSSS|.. newest]......[oldest ..........................|
                         next^    ^start

Slots lie in blocks of 32, keys across the block: (D, 32). One register then holds the same dimension of many keys,
and the scores of a block come without a sum across it: 2.0 to 2.7 times as fast on a CPU as rows of D.
Attention that knows no blocks (reading many tokens at once, and all that is not compiled) gets the tokens in a row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.rope import Rotation, put, rotate, turned
from sinkchat.cache.storage import KeysValues, alike_layers

BLOCK = 32
"""Slots that lie across each other."""


class Blocks:
    """Buffers of N alike layers: `keys` (N, C/32, H, Dk, 32), `values` (N, C/32, H, 32, Dv)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values

    @classmethod
    def zeros(cls, layout: LayerLayout, layers: int, capacity: int) -> "Blocks":
        shape = (layers, -(-capacity // BLOCK), layout.heads)
        like: dict[str, Any] = {"dtype": layout.dtype, "device": layout.device}
        keys = torch.zeros(*shape, layout.key_width, BLOCK, **like)
        return cls(keys, torch.zeros(*shape, BLOCK, layout.value_width, **like))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def layer(self, index: int) -> "Blocks":
        """One layer's part of the same memory."""
        return Blocks(self.keys[index : index + 1], self.values[index : index + 1])

    def read(self, runs: Sequence[tuple[int, int]]) -> KeysValues:
        """A copy of the slots of all `runs`, one after the other."""
        count = sum(stop - start for start, stop in runs)
        layers, _, heads, width, _ = self.keys.shape
        keys = self.keys.new_empty(layers, heads, count, width)
        values = self.values.new_empty(layers, heads, count, self.values.shape[-1])
        for row, (block, lane) in _pieces(runs):
            rows = (block.stop - block.start, lane.stop - lane.start)
            _in_blocks(keys[:, :, row], rows).copy_(self.keys[:, block, :, :, lane].permute(0, 2, 1, 4, 3))
            _in_blocks(values[:, :, row], rows).copy_(self.values[:, block, :, lane].transpose(1, 2))
        return KeysValues(keys, values)

    def write(self, runs: Sequence[tuple[int, int]], tokens: KeysValues) -> None:
        """Puts `tokens` into the slots of all `runs`."""
        for row, (block, lane) in _pieces(runs):
            rows = (block.stop - block.start, lane.stop - lane.start)
            self.keys[:, block, :, :, lane] = _in_blocks(tokens.keys[:, :, row], rows).permute(0, 2, 1, 4, 3)
            self.values[:, block, :, lane] = _in_blocks(tokens.values[:, :, row], rows).transpose(1, 2)

    def place(self, runs: Sequence[tuple[int, int]], pairs: Tensor, rotation: Rotation) -> None:
        """Puts the turned `pairs` (N, H, T, R/2) into the keys of all `runs`; dimensions that do not turn stay."""
        for row, (block, lane) in _pieces(runs):
            rows = (block.stop - block.start, lane.stop - lane.start)
            slots = self.keys[:, block, :, :, lane].permute(0, 2, 1, 4, 3)
            put(_in_blocks(pairs[:, :, row], rows), slots, rotation)


class RingLayer(CacheLayerMixin):
    """One layer, as attention speaks to it: the new tokens go to their slots, all come back in a row."""

    is_sliding = False

    def __init__(self, storage: "RingStorage", blocks: Blocks) -> None:
        super().__init__()
        self._storage = storage
        self._blocks = blocks
        self.keys, self.values = blocks.keys, blocks.values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All held keys and values (1, H, T, D) in the order of their ranks, the new ones at the end; a copy."""
        held, count = self._storage.held, key_states.shape[2]
        self._blocks.write(self._storage.runs(held, held + count), KeysValues(key_states, value_states))
        tokens = self._blocks.read(self._storage.runs(0, held + count))
        return tokens.keys, tokens.values

    def get_seq_length(self) -> int:
        return self._storage.held

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._storage.held + query_length, 0

    def get_max_length(self) -> int:
        return -1


class RingStorage:
    """Keys and values of exactly `capacity` tokens, at fixed addresses."""

    def __init__(self, layouts: Sequence[LayerLayout], capacity: int) -> None:
        self.capacity = capacity
        self._held = 0
        self.reach = 0
        """blocks, from the first on, in which anything was ever written in this stream"""
        self._pinned = 0
        self._start = 0  # where in the ring the oldest window token lies
        self._alike = alike_layers(layouts)
        self._rotations = [layouts[layers[0]].rotation for layers in self._alike]
        self.groups = [Blocks.zeros(layouts[layers[0]], len(layers), capacity) for layers in self._alike]
        self.bias = torch.full((-(-capacity // BLOCK), BLOCK), -torch.inf, device=layouts[0].device)
        layers = {
            index: RingLayer(self, blocks.layer(place))
            for alike, blocks in zip(self._alike, self.groups, strict=True)
            for place, index in enumerate(alike)
        }
        self.layers = [layers[index] for index in range(len(layouts))]

    @property
    def nbytes(self) -> int:
        return sum(blocks.nbytes for blocks in self.groups)

    @property
    def held(self) -> int:
        return self._held

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The runs of slots in which the ranks `[start, stop)` lie, in the order of the ranks."""
        pinned, length = self._pinned, self.capacity - self._pinned
        runs = [(start, min(stop, pinned))] if start < pinned else []
        first, last = (self._start + max(rank, pinned) - pinned for rank in (start, stop))
        for turn in (0, length):
            run = (pinned + max(first - turn, 0), pinned + min(last - turn, length))
            if run[0] < run[1]:
                runs.append(run)
        return runs

    def clear(self, pinned: int, *, left: int = 0) -> None:
        """As `Storage` says; the next token takes the slot that its place in the stream gives it, as ever."""
        self._pinned = pinned
        self._start = left % (self.capacity - pinned)
        self._held = self.reach = 0
        self.bias.fill_(-torch.inf)

    def append(self, count: int) -> None:
        runs = self.runs(self.held, self.held + count)
        self._mark(runs, 0.0)
        self._held += count
        self.reach = max([self.reach, *(-(-stop // BLOCK) for _, stop in runs)])

    def cut(self, count: int) -> None:
        self._mark(self.runs(self.held - count, self.held), -torch.inf)
        self._held -= count

    def drop(self, count: int) -> None:
        self._mark(self.runs(self._pinned, self._pinned + count), -torch.inf)
        self._start = (self._start + count) % (self.capacity - self._pinned)
        self._held -= count

    def read(self, start: int, stop: int) -> list[KeysValues]:
        return [blocks.read(self.runs(start, stop)) for blocks in self.groups]

    def write(self, start: int, tokens: Sequence[KeysValues]) -> None:
        for blocks, those in zip(self.groups, tokens, strict=True):
            blocks.write(self.runs(start, start + those.keys.shape[2]), those)

    def place(self, pinned: Sequence[KeysValues], distance: int) -> None:
        """Turns the pinned keys, where they are; their values never move."""
        for blocks, rotation, those in zip(self.groups, self._rotations, pinned, strict=True):
            if rotation is not None:
                blocks.place(self.runs(0, those.keys.shape[2]), turned(those.keys, distance, rotation), rotation)

    def turn(self, start: int, stop: int, distance: int) -> None:
        """Moves the keys at the ranks `[start, stop)`, a layer at a time."""
        runs = self.runs(start, stop)
        for blocks, rotation in zip(self.groups, self._rotations, strict=True):
            if rotation is not None:
                for index in range(len(blocks.keys)):
                    layer = blocks.layer(index)
                    tokens = layer.read(runs)
                    layer.write(runs, KeysValues(rotate(tokens.keys, distance, rotation), tokens.values))

    def _mark(self, runs: Sequence[tuple[int, int]], bias: float) -> None:
        flat = self.bias.view(-1)
        for start, stop in runs:
            flat[start:stop] = bias


def _in_blocks(tokens: Tensor, rows: tuple[int, int]) -> Tensor:
    """A view (N, H, blocks, lanes, D) of `tokens` (N, H, T, D)."""
    view: Tensor = torch.unflatten(tokens, 2, rows)
    return view


def _pieces(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[slice, tuple[slice, slice]]]:
    """Cuts runs of slots at the borders of blocks: rows of the tokens, and the blocks and lanes where they lie."""
    row = 0
    for start, stop in runs:
        while start < stop:
            block, lane = divmod(start, BLOCK)
            whole = (stop - start) // BLOCK if lane == 0 else 0
            count = whole * BLOCK if whole else min(BLOCK - lane, stop - start)
            lanes = slice(0, BLOCK) if whole else slice(lane, lane + count)
            yield slice(row, row + count), (slice(block, block + max(whole, 1)), lanes)
            start, row = start + count, row + count
