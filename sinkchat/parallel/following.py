"""What all others do: as rank 0 says, one order after the other, on their own heads."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.storage import KeysValues
from sinkchat.parallel.exchange import hand_in, receive
from sinkchat.parallel.link import Order


class Part:
    """A process's part of a model and of what is remembered. `cache` decides nothing here."""

    def __init__(self, model: nn.Module, cache: SinkCache) -> None:
        self._forward = Forward(model)
        self._cache = cache
        self._storage = storage = cache.storage
        self._pinned: Sequence[KeysValues] = ()
        self._verbs: dict[str, Callable[..., object]] = {
            "forward": self._compute,
            "clear": lambda pinned, left: storage.clear(pinned, left=left),
            "append": storage.append,
            "cut": storage.cut,
            "drop": storage.drop,
            "turn": storage.turn,
            "hand_in": lambda start, stop: hand_in(storage.read(start, stop)),
            "write": lambda start, count: storage.write(start, self._received(count)),
            "keep": self._keep,
            "place": lambda distance: storage.place(self._pinned, distance),
        }

    def obey(self, orders: Iterable[Order]) -> None:
        """Does all of them."""
        for verb, *what in orders:
            self._verbs[verb](*what)

    def _compute(self, input_ids: list[list[int]], position_ids: list[list[int]], logits_to_keep: int) -> None:
        ids, positions = (torch.tensor(those, device=self._forward.device) for those in (input_ids, position_ids))
        self._forward(ids, positions, self._cache, logits_to_keep=logits_to_keep)

    def _keep(self, count: int) -> None:
        self._pinned = self._received(count)

    def _received(self, count: int) -> list[KeysValues]:
        return receive(self._storage.read(0, 0), count)
