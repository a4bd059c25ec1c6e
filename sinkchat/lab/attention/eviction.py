"""What evicting the sinks does to attention: one query over one cache, with the sinks and without.

A text is read until the window has rolled. Then the next token asks twice: the cache as it is, and the same cache
without its sinks, every other key untouched at the place it had. Softmax spends all of its weight either way, so
what lay on the sinks falls on tokens that were written for less of it. In the first layer, where the query is the
same, that is plain arithmetic: in each head, every share is divided by what the sinks had left over. In the others
the query has changed too: the damage adds up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sinkchat.cache.moments import Snapshot
from sinkchat.engine.engine import Engine, Image
from sinkchat.errors import UsageError
from sinkchat.lab.attention.shares import Distribution, SinksEvicted
from sinkchat.lab.inside.recorded import recorded


def evict_sinks(
    engine: Engine, ids: Sequence[int], *, sinks: int = 4, decode: Callable[[Sequence[int]], str] = str
) -> SinksEvicted:
    """Reads `ids`, which must be more than the cache holds; the last one asks. `decode` gives a token's letters."""
    *past, query = ids
    capacity = engine.cache.capacity
    if len(past) < capacity:
        raise UsageError(
            f"{len(ids):,} tokens do not roll the window of a cache of {capacity:,}",
            hint="a longer text, or a smaller --cache-size",
        )
    engine.cache.pinned = sinks
    engine.reset()
    engine.feed(past)
    whole = engine.image()
    gone = sinks + len(engine.cache.foresee(1))  # what leaves for the query is in neither window
    without = replace(whole, cache=_without_first(whole.cache, gone), held_ids=whole.held_ids[gone:])
    kept, logits = _ask(engine, whole, query, sinks)
    evicted, others = _ask(engine, without, query, 0)
    divergence = (logits.exp() * (logits - others)).sum().item()
    words = decode([kept.likeliest]), decode([evicted.likeliest])
    return SinksEvicted(len(past), capacity, kept, evicted, words, divergence)


def _without_first(cache: Snapshot, count: int) -> Snapshot:
    """The same cache without the first `count` tokens that it holds; nothing is pinned, nothing else moves."""
    held = tuple(
        replace(tokens, keys=tokens.keys[:, :, count:], values=tokens.values[:, :, count:]) for tokens in cache.held
    )
    return replace(cache, evicted=cache.evicted + count, pinned=0, held=held, pristine=None)


def _ask(engine: Engine, image: Image, query: int, sinks: int) -> tuple[Distribution, Tensor]:
    """Where `query` looks, and the log-probabilities (V,) of what would follow it."""
    engine.restore(image)
    with recorded(engine.model, lambda weights: weights[0, :, -1].mean(0, dtype=torch.float32).tolist()) as recording:
        engine.feed([query])
        layers = recording.by_layer()
    assert engine.logits is not None  # a token was fed
    logits = engine.logits.double().log_softmax(-1)
    distribution = Distribution(
        sinks=tuple(tuple(layer[:sinks]) for layer in layers),
        window=tuple(tuple(layer[sinks:]) for layer in layers),
        learned=tuple(max(0.0, 1 - sum(layer)) for layer in layers),
        likeliest=int(logits.argmax()),
        probability=logits.max().exp().item(),
    )
    return distribution, logits
