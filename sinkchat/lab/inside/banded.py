"""A stream in which one token leaves for each that comes, read many tokens at a time.

The same numbers as `SinkCache` with `EvictTokens(1)`, fed one by one, at the speed of reading a prompt. It only
reads: to draw a token after each would be one by one again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.cache import POSITION_LIMIT
from sinkchat.cache.forward import Forward
from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.rope import rotate
from sinkchat.cache.storage import KeysValues
from sinkchat.errors import UsageError
from sinkchat.lab.inside.band import Band, Turn, banded

CHUNK_SIZE = 256


class BandLayer(CacheLayerMixin):
    """What one layer holds: the pinned tokens as written, and the latest ones, up to what the next token sees.

    Nothing is counted until the whole forward has succeeded.
    """

    is_sliding = False

    def __init__(self, layout: LayerLayout) -> None:
        super().__init__()
        self.layout = layout
        self.pinned = self.window = self.empty
        self._new = self.empty
        self.is_initialized = True

    @property
    def empty(self) -> KeysValues:
        layout = self.layout
        shape = (1, layout.heads, 0)
        keys = torch.zeros(*shape, layout.key_width, dtype=layout.dtype, device=layout.device)
        return KeysValues(keys, torch.zeros(*shape, layout.value_width, dtype=layout.dtype, device=layout.device))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to wait for."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keys and values (1, H, S, D) of pinned, window and new tokens."""
        self._new = KeysValues(key_states, value_states)
        held = _joined(self.pinned, self.window, self._new)
        return held.keys, held.values

    def pin(self) -> None:
        """The new tokens are pinned."""
        self.pinned, self._new = _joined(self.pinned, self._new), self.empty

    def roll(self, count: int) -> None:
        """The new tokens join the window, of which the latest `count` stay."""
        window = _joined(self.window, self._new)
        first = max(0, window.keys.shape[2] - count)
        self.window = KeysValues(window.keys[:, :, first:].clone(), window.values[:, :, first:].clone())
        self._new = self.empty

    def turn(self, distance: int) -> None:
        """The window's keys move by `distance` positions."""
        if self.layout.rotation is not None:
            self.window = KeysValues(rotate(self.window.keys, distance, self.layout.rotation), self.window.values)

    def get_seq_length(self) -> int:
        return self.pinned.keys.shape[2] + self.window.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def _joined(*parts: KeysValues) -> KeysValues:
    return KeysValues(
        torch.cat([part.keys for part in parts], dim=2), torch.cat([part.values for part in parts], dim=2)
    )


class BandedStream:
    """A model that reads a stream through a cache of `capacity` tokens, of which the first `pinned` never leave.

    `layouts` come from `probe`, `position_limit` is the first position that the model must not be given; at least
    twice the capacity. Whether a model can be read so, `why_not_banded` says.
    """

    def __init__(
        self,
        model: nn.Module,
        layouts: Sequence[LayerLayout],
        *,
        capacity: int,
        pinned: int,
        position_limit: int = POSITION_LIMIT,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        if not 0 <= pinned < capacity:
            raise UsageError(
                f"{pinned:,} sinks leave no window in a cache of {capacity:,}",
                hint=f"fewer sinks, or --cache-size {pinned + max(16, pinned)}",
            )
        if position_limit < 2 * capacity:
            raise ValueError(f"{position_limit} positions are too few for a band of {capacity} tokens")
        self.capacity, self.pinned = capacity, pinned
        self.seen = 0
        self._base = 0
        self._layers = [BandLayer(layout) for layout in layouts]
        self._cache = Cache(layers=self._layers)
        self._forward = Forward(model)
        self._position_limit, self._chunk_size = position_limit, chunk_size

    @property
    def window(self) -> int:
        """The most tokens that a token sees beside the pinned ones, itself among them."""
        return self.capacity - self.pinned

    def read(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """Logits (T, V) of the tokens `ids`, chunk by chunk. What is broken off has read whole chunks."""
        start = 0
        while start < len(ids):
            chunk = ids[start : start + self._next_count()]
            start += len(chunk)
            yield self._read(chunk)

    def state(self) -> dict[str, Tensor]:
        """Everything that is remembered, by name. The tensors are not changed any more."""
        tensors = {"counts": torch.tensor([self.seen, self._base])}
        for index, layer in enumerate(self._layers):
            for part, held in (("pinned", layer.pinned), ("window", layer.window)):
                tensors[f"{index}.{part}.keys"], tensors[f"{index}.{part}.values"] = held.keys, held.values
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Puts back what `state` gave, to the bit."""
        self.seen, self._base = map(int, state["counts"])
        for index, layer in enumerate(self._layers):
            pinned, window = (
                KeysValues(state[f"{index}.{part}.keys"], state[f"{index}.{part}.values"]).on(layer.layout.device)
                for part in ("pinned", "window")
            )
            layer.pinned, layer.window = pinned, window

    def _next_count(self) -> int:
        """How many tokens the next forward takes: those to be pinned are read alone."""
        if self.seen < self.pinned:
            return min(self._chunk_size, self.pinned - self.seen)
        return min(self._chunk_size, self._position_limit - self.window)

    def _read(self, chunk: Sequence[int]) -> Tensor:
        self._rebase(len(chunk))
        first = self.seen - self._base
        model, device = self._forward.model, self._forward.device
        positions = torch.arange(first, first + len(chunk), device=device).unsqueeze(0)
        arguments = self._forward.arguments(positions, self._cache, logits_to_keep=0)
        with torch.inference_mode(), banded(model):
            input_ids = torch.tensor([chunk], device=device)
            logits: Tensor = model(input_ids=input_ids, band=self._band(len(chunk)), **arguments).logits
        for layer in self._layers:
            if self.seen < self.pinned:
                layer.pin()
            else:
                layer.roll(self.window - 1)
        self.seen += len(chunk)
        return logits[0]

    def _band(self, count: int) -> Band:
        sinks = min(self.seen, self.pinned)
        held = self._layers[0].get_seq_length() - sinks
        queries = torch.arange(self.seen, self.seen + count)[:, None]
        keys = torch.arange(self.seen - held, self.seen + count)
        hidden = (keys > queries) | ((keys <= queries - self.window) & (keys >= self.pinned))
        moves = [min(t, self.capacity - 1) - (t - self._base) for t in range(self.seen, self.seen + count)]
        layouts = [layer.layout for layer in self._layers]
        turns: dict[int, Turn] = {}
        for layout in layouts:
            if layout.rotation is not None and id(layout.rotation) not in turns and any(moves):
                turns[id(layout.rotation)] = Turn.by(moves, layout.rotation, device=layout.device, dtype=layout.dtype)
        return Band(sinks, hidden.to(layouts[0].device), [turns.get(id(layout.rotation)) for layout in layouts])

    def _rebase(self, count: int) -> None:
        """Turns the window back to the first positions where the next tokens would reach the limit."""
        if self.seen + count - self._base <= self._position_limit:
            return
        base = self.seen - (self._layers[0].get_seq_length() - self.pinned)
        for layer in self._layers:
            layer.turn(self._base - base)
        self._base = base
