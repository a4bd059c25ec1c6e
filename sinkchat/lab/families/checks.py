"""Whether a tiny model of a family streams: each claim of the method against a second computation.

In one layer a key depends on its own token only, so streaming must equal reading afresh what is kept. In more layers
keys remember what was forgotten, and a plain reference says what is right. The rest are equalities of the stream
with itself: however it was handed over, wherever its positions begin, however long it has lasted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import POSITION_LIMIT, SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import LayerLayout, probe, shift_test
from sinkchat.cache.reference import reference_logits
from sinkchat.engine.engine import Engine
from sinkchat.lab.families.table import CAPACITY, LONG_CAPACITY, LONG_TOKENS, PINNED, Streams
from sinkchat.models.families import limits_of, make_bias_for, refuse_unmovable
from sinkchat.models.untrained import VOCABULARY_SIZE

Build = Callable[[int, torch.dtype], nn.Module]
"""Makes the same model of so many layers, in such numbers, at each call."""

_BLOCK = 128
"""tokens that leave at once in the long run"""
_SAMPLES = 2
"""blocks of the long run that are compared, early and late"""


def measure(family: str, build: Build) -> Streams:
    """All figures of a family. Raises `CannotStream` where its keys cannot be moved."""
    one, three = build(1, torch.float32), build(3, torch.float32)
    refuse_unmovable(three.config, name=family)
    layouts = layouts_of(three)
    shift_test(three, last_position=limits_of(three.config).positions(CAPACITY) - 1)
    in_blocks = blocks_one_by_one(three)
    early, late = errors_of_long_run(one, build(1, torch.bfloat16))
    return Streams(
        family=family,
        layout=in_words(layouts),
        one_layer=one_layer_error(one),
        reference=reference_error(three, build(3, torch.float64)),
        chunks=max(distance(in_chunks(three, size), in_blocks[-1]) for size in CHUNK_SIZES),
        rebase=distance(blocks_one_by_one(three, position_limit=CAPACITY + 24), in_blocks),
        control=control_error(one),
        early=early,
        late=late,
    )


def layouts_of(model: nn.Module) -> tuple[LayerLayout, ...]:
    """What the probe finds, shown no position that the model does not take."""
    limits = limits_of(model.config)
    trained = limits.trained or LONG_CAPACITY
    return probe(model, position_limit=min(trained, limits.positions(trained)))


def in_words(layouts: Sequence[LayerLayout]) -> str:
    """How keys turn: "half-split, 16 of 16", each way once."""
    ways: dict[str, None] = {}
    for layout in layouts:
        found = [
            f"{'half-split' if turn.pairing == 'half' else turn.pairing}, {turn.width} of {width}{where}"
            for turn, width, where in (
                (layout.rotation, layout.key_width, ""),
                (layout.value_rotation, layout.value_width, " in the values"),
            )
            if turn is not None
        ]
        ways.setdefault(found[0] if found else "not turned")
    rates = {id(turn) for layout in layouts for turn in (layout.rotation, layout.value_rotation) if turn is not None}
    turning = [way for way in ways if way != "not turned"]
    return "; ".join(ways) + (f"; {len(rates)} sets of rates" if len(rates) > len(turning) else "")


def one_layer_error(model: nn.Module) -> float:
    """Streaming one layer against a fresh forward over what is kept."""
    return _one_layer(model, layouts_of(model), pinned=PINNED)


def control_error(model: nn.Module) -> float:
    """The same where the sinks are not moved; where no key turns, where they are forgotten. This must be large."""
    layouts = layouts_of(model)
    if any(layout.rotation or layout.value_rotation for layout in layouts):
        return _one_layer(model, [replace(one, rotation=None, value_rotation=None) for one in layouts], pinned=PINNED)
    return _one_layer(model, layouts, pinned=0)


def _one_layer(model: nn.Module, layouts: Sequence[LayerLayout], *, pinned: int) -> float:
    ids = random_ids(4 * CAPACITY)
    cache = SinkCache(layouts, EvictTokens(), capacity=CAPACITY, pinned=pinned)
    streamed = _one_by_one(Engine(model, cache), ids)[CAPACITY - 1 :]
    window = CAPACITY - PINNED
    kept = [[*ids[:PINNED], *ids[stop - window : stop]] for stop in range(CAPACITY, len(ids) + 1)]
    return distance(streamed, read_afresh(model, kept)[:, -1])


def reference_error(model: nn.Module, exact: nn.Module) -> float:
    """Streaming three layers against the plain reference on the same model in float64."""
    ids = random_ids(3 * CAPACITY)
    cache = SinkCache(layouts_of(model), EvictTokens(), capacity=CAPACITY, pinned=PINNED)
    expected = reference_logits(exact, ids, EvictTokens(), capacity=CAPACITY, pinned=PINNED)
    return distance(_one_by_one(Engine(model, cache), ids), expected)


CHUNK_SIZES = (7, CAPACITY - PINNED - 1, CAPACITY - PINNED, CAPACITY - PINNED + 1, 10 * (CAPACITY - PINNED))


def blocks_one_by_one(model: nn.Module, *, position_limit: int = POSITION_LIMIT) -> Tensor:
    """Logits (T, V), a token at a time, where five leave at once."""
    return _one_by_one(_blocks_engine(model, position_limit), random_ids(5 * CAPACITY))


def in_chunks(model: nn.Module, size: int) -> Tensor:
    """Logits (V,) of the last token of the same, handed over in chunks of `size`."""
    engine, ids = _blocks_engine(model, POSITION_LIMIT), random_ids(5 * CAPACITY)
    for start in range(0, len(ids), size):
        engine.feed(ids[start : start + size])
    return _logits(engine)


def _blocks_engine(model: nn.Module, position_limit: int) -> Engine:
    cache = SinkCache(
        layouts_of(model), EvictTokens(5), capacity=CAPACITY, pinned=PINNED, position_limit=position_limit
    )
    return Engine(model, cache)


def errors_of_long_run(exact: nn.Module, rounded: nn.Module, *, tokens: int = LONG_TOKENS) -> tuple[float, float]:
    """Errors of `rounded` against `exact`, read afresh: after some 300 tokens, and after all of them.

    Both are the same single layer. Root mean square in standard deviations of the logits, median of a few blocks of
    tokens: where experts are chosen, rounding chooses another one now and then. On the way positions are rebased.
    """
    limits = limits_of(exact.config)
    capacity = min(LONG_CAPACITY, limits.capacity or LONG_CAPACITY)
    for model in (exact, rounded):
        make_bias_for(model, capacity)
    cache = SinkCache(
        layouts_of(rounded),
        EvictTokens(_BLOCK),
        capacity=capacity,
        pinned=PINNED,
        position_limit=limits.positions(capacity),
    )
    forward, ids = Forward(rounded), random_ids(tokens)
    held: list[int] = []
    errors: dict[int, Tensor] = {}
    starts = range(0, tokens - _BLOCK + 1, _BLOCK)
    first_full = -(-capacity // _BLOCK) + 1
    early, late = starts[first_full : first_full + _SAMPLES], starts[-_SAMPLES:]
    for start in starts:
        block = ids[start : start + _BLOCK]
        if (span := cache.make_room()) is not None:
            del held[PINNED : PINNED + len(span)]
        held += block
        streamed = forward(torch.tensor([block]), cache.positions(_BLOCK), cache, logits_to_keep=_BLOCK)[0].double()
        cache.commit(_BLOCK)
        if start in early or start in late:
            fresh = read_afresh(exact, [held])[0, -_BLOCK:].double()
            errors[start] = (streamed - fresh).square().mean(-1).sqrt() / fresh.std()
    before, after = (float(torch.cat([errors[start] for start in those]).median()) for those in (early, late))
    return before, after


def random_ids(count: int) -> list[int]:
    """The same for every model."""
    drawn: list[int] = torch.randint(
        4, VOCABULARY_SIZE, (count,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return drawn


def read_afresh(model: nn.Module, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits (B, T, V) of `texts` of one length, read at positions 0 to T - 1 with no cache at all."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor(texts), use_cache=False).logits
    return logits


def distance(logits: Tensor, reference: Tensor) -> float:
    """Largest difference, in standard deviations of the reference."""
    return float((logits.double() - reference.double()).abs().max() / reference.double().std())


def _one_by_one(engine: Engine, ids: Sequence[int]) -> Tensor:
    """Logits (T, V) of every token."""
    rows = []
    for token in ids:
        engine.feed([token])
        rows.append(_logits(engine))
    return torch.stack(rows)


def _logits(engine: Engine) -> Tensor:
    if engine.logits is None:
        raise ValueError("nothing was fed")
    return engine.logits
