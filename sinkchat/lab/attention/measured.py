"""How attention is measured: passages run through a model, and of each layer's weights only sums are kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictNothing
from sinkchat.cache.probe import layer_shapes
from sinkchat.engine.engine import CHUNK_SIZE, Engine
from sinkchat.engine.segment import Segment
from sinkchat.lab.attention.shares import MAPPED, ByHead, Shares, mean, require_room
from sinkchat.lab.inside.recorded import recorded


def measure(model: nn.Module, passages: Sequence[Sequence[int]], *, sinks: int = 4) -> Iterator[Shares]:
    """The averages so far, after each forward. All passages have the same length, at least twice the `sinks`.

    What is kept of a layer's weights is summed up as they are computed, `CHUNK_SIZE` queries at a time.
    """
    length = len(passages[0])
    require_room(sinks, length)
    totals: list[_Sums] = []
    finished = 0
    with recorded(model, _summed(sinks, length)) as recording:
        for count in _read(model, passages):
            layers = recording.by_layer()
            totals = [_added(*pair) for pair in zip(totals, layers, strict=True)] if totals else layers
            finished += count
            if finished:
                yield _shares(totals, sinks, length, finished)


def _read(model: nn.Module, passages: Sequence[Sequence[int]]) -> Iterator[int]:
    """Runs the model over all passages, several at once or one in chunks; how many each forward finished."""
    length = len(passages[0])
    if length <= CHUNK_SIZE:
        device = Forward(model).device
        at_once = CHUNK_SIZE // length
        for start in range(0, len(passages), at_once):
            batch = passages[start : start + at_once]
            with torch.inference_mode():
                model(input_ids=torch.tensor(batch, device=device), use_cache=False)
            yield len(batch)
        return
    cache = SinkCache(layer_shapes(model), EvictNothing(), capacity=length, pinned=0, position_limit=length)
    engine = Engine(model, cache)
    for ids in passages:
        engine.reset()
        for step in engine.read([Segment(tuple(ids))]):
            yield int(step.state.seen == length)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of one layer: by head (H,) what the first tokens, token 0 and all got; the map (T, K) of short passages."""

    first: Tensor
    token_0: Tensor
    everywhere: Tensor
    map: Tensor


def _summed(sinks: int, length: int) -> Callable[[Tensor], _Sums]:
    """What is kept of weights (B, H, T, K): sums over the passages, and over the queries of their second half."""

    def reduce(weights: Tensor) -> _Sums:
        count, keys = weights.shape[-2:]
        queries = weights[:, :, max(0, length // 2 - (keys - count)) :]
        first = queries[..., :sinks].sum((0, 2, 3), dtype=torch.float64)
        token_0 = queries[..., 0].sum((0, 2), dtype=torch.float64)
        everywhere = queries.sum((0, 2, 3), dtype=torch.float64)
        whole = weights.mean(1, dtype=torch.float32).sum(0) if length <= MAPPED else torch.zeros(0, 0)
        return _Sums(first.cpu(), token_0.cpu(), everywhere.cpu(), whole.cpu())

    return reduce


def _added(one: _Sums, other: _Sums) -> _Sums:
    return _Sums(
        one.first + other.first,
        one.token_0 + other.token_0,
        one.everywhere + other.everywhere,
        one.map + other.map,
    )


def _shares(totals: Sequence[_Sums], sinks: int, length: int, count: int) -> Shares:
    asked = range(length // 2, length)
    queries = count * len(asked)
    return Shares(
        sinks=sinks,
        length=length,
        passages=count,
        first=_by_head([layer.first / queries for layer in totals]),
        token_0=_by_head([layer.token_0 / queries for layer in totals]),
        learned=_by_head([(1 - layer.everywhere / queries).clamp(min=0) for layer in totals]),
        even=mean([sinks / (query + 1) for query in asked]),
        even_0=mean([1 / (query + 1) for query in asked]),
        maps=tuple(_by_head(list(layer.map / count)) for layer in totals) if length <= MAPPED else (),
    )


def _by_head(layers: Sequence[Tensor]) -> ByHead:
    return tuple(tuple(layer.tolist()) for layer in layers)
