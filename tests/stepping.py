"""Engines that decode through sections of the model, run as they are: what a compiler makes of them is checked last.

`Eager` is a source whose step is there from the start, and which counts what it is told.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import torch
from streams import TRAINED
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictionPolicy, EvictTokens
from sinkchat.cache.probe import LayerLayout, probe
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.storage import KeysValues
from sinkchat.engine.acceleration import AcceleratedForward, SectionedStep, Step
from sinkchat.engine.engine import Engine
from sinkchat.engine.sections import Sections, decoder_layers, tensors_of


class Runs:
    """The three sections as a compiler would leave them: all tensors in one row, all results in another."""

    def __init__(self, model: nn.Module) -> None:
        model = deepcopy(model)
        owner, name = decoder_layers(model)
        layer = next(iter(getattr(owner, name)))
        self._sections = Sections(model)
        self._weights = len(tensors_of(layer)) * self._sections.group
        self._held = 2 * self._sections.group
        self.biases: list[Tensor] = []
        """the bias of each call of a group of layers, the very tensor"""

    def before(self, flat: list[Tensor]) -> Sequence[Tensor]:
        input_ids, position_ids, *outer = flat
        return self._sections.before(input_ids, position_ids, outer)

    def layers(self, flat: list[Tensor]) -> Sequence[Tensor]:
        held = flat[-self._held :]
        weights = flat[-self._held - self._weights : -self._held]
        *given, bias = flat[: -self._held - self._weights]
        self.biases.append(bias)
        return self._sections.layers(given, bias, weights, held)

    def after(self, flat: list[Tensor]) -> Sequence[Tensor]:
        hidden, *outer = flat
        return [self._sections.after(hidden, outer)]


def eager_step(model: nn.Module, ring: RingStorage, runs: Runs | None = None) -> SectionedStep:
    runs = runs if runs is not None else Runs(model)
    return SectionedStep(
        model, ring, before=runs.before, layers=runs.layers, after=runs.after, reach=lambda: ring.reach
    )


class Eager:
    """A source that has its step from the start."""

    runs_ahead = False

    def __init__(self, step: Step | None) -> None:
        self.step = step
        self.pauses = 0
        self.refusals: list[str] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        self.pauses += 1
        yield

    @property
    def state(self) -> str:
        return "compiled" if self.step is not None else f"not compiled: {self.refusals[-1]}"

    def wait(self) -> bool:
        return True

    def refuse(self, reason: str) -> None:
        self.step = None
        self.refusals.append(reason)


class Counted:
    """A step that counts its calls. `spoil` changes its logits."""

    def __init__(self, step: Step, spoil: Callable[[Tensor], Tensor] = lambda logits: logits) -> None:
        self._step, self._spoil = step, spoil
        self.calls = 0

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, list[KeysValues]]:
        self.calls += 1
        logits, new = self._step(input_ids, position_ids)
        return self._spoil(logits), new


class BothWays(Forward):
    """The plain forward, which for single tokens asks the step first and keeps what both say."""

    def __init__(self, model: nn.Module, ring: RingStorage, step: Step) -> None:
        super().__init__(model)
        self._ring, self._step = ring, step
        self.stepped: list[Tensor] = []
        self.plain: list[Tensor] = []
        """logits (V,) of each single token, with its new keys and values behind them, all in one row"""
        self.reaches: list[int] = []

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, cache: SinkCache, *, logits_to_keep: int = 1
    ) -> Tensor:
        if input_ids.shape[1] != 1:
            return super().__call__(input_ids, position_ids, cache, logits_to_keep=logits_to_keep)
        held = self._ring.held
        with torch.inference_mode():
            logits, new = self._step(input_ids, position_ids)
            plain = super().__call__(input_ids, position_ids, cache)
            self.stepped.append(_row(logits, new))
            self.plain.append(_row(plain, self._ring.read(held, held + 1)))
        self.reaches.append(self._ring.reach)
        return plain


def _row(logits: Tensor, tokens: Sequence[KeysValues]) -> Tensor:
    parts = [logits, *(part for each in tokens for part in (each.keys, each.values))]
    return torch.cat([part.flatten() for part in parts])


def ring_cache(
    model: nn.Module,
    policy: EvictionPolicy | None = None,
    *,
    capacity: int = 64,
    pinned: int = 4,
    moves_sinks: bool = True,
) -> tuple[SinkCache, RingStorage]:
    """A cache over a ring, and the ring. `moves_sinks=False` is the control: sinks stay where they were written."""
    layouts: Sequence[LayerLayout] = probe(model, position_limit=TRAINED)
    if not moves_sinks:
        layouts = [replace(layout, rotation=None) for layout in layouts]
    cache = SinkCache(layouts, policy or EvictTokens(), capacity=capacity, pinned=pinned, storage=RingStorage)
    assert isinstance(cache.storage, RingStorage)
    return cache, cache.storage


def accelerated_engine(
    model: nn.Module,
    policy: EvictionPolicy | None = None,
    *,
    source: Callable[[RingStorage], Eager] | None = None,
    capacity: int = 64,
    pinned: int = 4,
    moves_sinks: bool = True,
    chunk_size: int = 256,
) -> Engine:
    """An engine that decodes through sections, or through what `source` gives for its ring."""
    cache, ring = ring_cache(model, policy, capacity=capacity, pinned=pinned, moves_sinks=moves_sinks)
    given = source(ring) if source is not None else Eager(eager_step(model, ring))
    return Engine(model, cache, chunk_size=chunk_size, forward=AcceleratedForward(model, ring, given))


def ring_engine(
    model: nn.Module, policy: EvictionPolicy | None = None, *, capacity: int = 64, pinned: int = 4
) -> Engine:
    """The same without a step: the plain forward over the ring."""
    cache, _ = ring_cache(model, policy, capacity=capacity, pinned=pinned)
    return Engine(model, cache)
