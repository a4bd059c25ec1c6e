"""Ways to feed a stream and to look at what is left of it, for the tests of cache and engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.layers import ContiguousStorage
from sinkchat.cache.policy import EvictionPolicy, EvictTokens
from sinkchat.cache.probe import LayerLayout, probe
from sinkchat.cache.storage import KeysValues, Storage
from sinkchat.engine.engine import Engine
from sinkchat.engine.segment import Segment

TRAINED = 2048

Layout = Callable[[Sequence[LayerLayout], int], Storage]
_LAYOUT: ContextVar[Layout] = ContextVar("layout", default=ContiguousStorage)


@contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """Engines that are made meanwhile keep their tokens in `layout`."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def engine_for(
    model: nn.Module,
    policy: EvictionPolicy | None = None,
    *,
    capacity: int = 16,
    pinned: int = 4,
    moves_sinks: bool = True,
    **options: int,
) -> Engine:
    """An engine with a small cache. `moves_sinks=False` is the control: sinks stay where they were written."""
    layouts: Sequence[LayerLayout] = probe(model, position_limit=TRAINED)
    if not moves_sinks:
        layouts = [replace(layout, rotation=None) for layout in layouts]
    chunk_size = options.pop("chunk_size", 256)
    cache = SinkCache(
        layouts, policy or EvictTokens(), capacity=capacity, pinned=pinned, storage=_LAYOUT.get(), **options
    )
    return Engine(model, cache, chunk_size=chunk_size)


def held_by(engine: Engine) -> list[KeysValues]:
    """A copy of all that the cache holds, pinned tokens first."""
    return engine.cache.storage.read(0, engine.state.occupied)


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(4, 260, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits_one_by_one(engine: Engine, ids: Iterable[int]) -> Tensor:
    """Logits (T, V) of every token."""
    rows = []
    for token in ids:
        engine.feed([token])
        rows.append(engine.logits)
    return torch.stack(rows)


def logits_in_chunks(engine: Engine, ids: Sequence[int], size: int, borders: Sequence[int] = ()) -> Tensor:
    """Logits (V,) of the last token; messages begin at `borders`."""
    cuts = sorted({0, len(ids), *borders, *range(0, len(ids), size)})
    for start, stop in pairwise(cuts):
        if start in borders:
            engine.cache.open_message(start)
        engine.feed(ids[start:stop])
    return engine.logits


def logits_in_one_read(engine: Engine, ids: Sequence[int], borders: Sequence[int] = ()) -> Tensor:
    """Logits (V,) of the last token of one long paste, whose messages begin at `borders`."""
    cuts = sorted({0, len(ids), *borders})
    segments = [Segment(tuple(ids[a:b]), a in borders) for a, b in pairwise(cuts)]
    for _ in engine.read(segments):
        pass
    return engine.logits


def held_after(count: int, capacity: int, pinned: int) -> list[int]:
    """Stream indices that the paper's rule keeps after `count` tokens."""
    if count <= capacity:
        return list(range(count))
    return [*range(pinned), *range(count - (capacity - pinned), count)]


def distance(logits: Tensor, reference: Tensor) -> float:
    """Largest difference, in standard deviations of the reference."""
    return ((logits.double() - reference.double()).abs().max() / reference.double().std()).item()
