"""Perplexity of one long text, by every way to go on past the cache: the paper's language modelling.

*Dense* keeps everything, *window* the latest tokens, *recompute* reads the latest afresh for every token, *streaming*
keeps sinks and the latest. All are scored on the same tokens: those that come once the largest cache is full, every
`every`-th of them. arXiv 2309.17453, tables 1 to 3 and figures 3, 5 and 10.

Everything is a generator. Leaving it stops the work, and a measurement file then holds all that was done.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import LayerLayout, probe
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_cache
from sinkchat.engine.engine import Engine
from sinkchat.errors import CannotStream
from sinkchat.lab.inside.banded import BandedStream
from sinkchat.lab.inside.banding import why_not_banded
from sinkchat.lab.perplexity.file import MeasurementFile, Nowhere, identity_of
from sinkchat.lab.perplexity.plan import Plan
from sinkchat.lab.perplexity.reading import (
    DenseReading,
    Reading,
    ReadingEnded,
    RecomputeReading,
    SteppedStream,
    Stream,
    StreamReading,
    with_line_breaks,
)
from sinkchat.lab.perplexity.scores import Method, Progress, Result, Scores, Subject
from sinkchat.lab.perplexity.text import TextSource, line_break_id
from sinkchat.models.families import limits_of
from sinkchat.models.loading import LoadedModel
from sinkchat.models.progress import Progress as Telling
from sinkchat.models.progress import quiet_libraries, silent

SAVE_SECONDS = 60.0
"""between two times that the method under way is saved"""


class Keeper(Protocol):
    """Where a measurement is kept."""

    def result_of(self, method: Method) -> Result | None: ...
    def left_at(self, method: Method) -> tuple[Scores, Mapping[str, Tensor]] | None: ...
    def keep(self, result: Result) -> None: ...
    def leave(self, method: Method, scores: Scores, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    """A measurement about to begin: what it is of, and the events of it."""

    subject: Subject
    events: Generator[Progress | Result, None, None]


def start_perplexity(
    loaded: LoadedModel,
    source: TextSource,
    plan: Plan,
    *,
    resume: Path | None = None,
    telling: Telling = silent,
    clock: Callable[[], float] = time.monotonic,
) -> Started:
    """Reads the text and looks at the model; whatever can be refused is refused here."""
    telling("reading the text")
    sizes = plan.sizes(limits_of(loaded.model.config).capacity)
    methods = plan.methods(sizes)
    first = max(sizes) if any(method.cache_size for method in methods) else 1
    ids = source.ids(loaded.tokenizer, most=plan.tokens)
    source.long_enough(ids, cache_size=first, most=plan.tokens)
    telling("finding out how its keys move")
    readings = Readings(loaded, ids, first=first, every=plan.every)
    with quiet_libraries():
        notes = readings.prepare(methods)
    keeper: Keeper = Nowhere()
    if resume is not None:
        keeper = MeasurementFile(resume, identity_of(loaded, ids, first=first, every=plan.every))
    subject = Subject(
        model=loaded.name,
        quant=loaded.quant,
        dtype=loaded.dtype,
        device=loaded.device,
        trained=loaded.max_length,
        text=source.shown,
        tokens=len(ids),
        first=first,
        every=plan.every,
        notes=(*loaded.notes, *notes),
    )
    return Started(subject, measured(methods, readings, subject, keeper=keeper, clock=clock))


def measured(
    methods: Sequence[Method],
    readings: "Readings",
    subject: Subject,
    *,
    keeper: Keeper,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Progress | Result, None, None]:
    """How far each method is, and in the end what it came to, one method after the other."""
    for number, method in enumerate(methods, 1):
        result = keeper.result_of(method)
        if result is None:
            result = yield from _measured(method, number, len(methods), readings, subject, keeper, clock)
            keeper.keep(result)
        yield result


def _measured(
    method: Method,
    number: int,
    methods: int,
    readings: "Readings",
    subject: Subject,
    keeper: Keeper,
    clock: Callable[[], float],
) -> Generator[Progress, None, Result]:
    scores, state = keeper.left_at(method) or (Scores(subject.tokens, subject.first, subject.every), {})
    reading = readings.of(method)
    if state:
        reading.restore(state)
    first, seconds_before = scores.next, scores.seconds
    began = saved = clock()
    ended = ""
    try:
        for losses in reading.losses(scores.next):
            scores.add(losses)
            now = clock()
            scores.seconds = seconds_before + now - began
            pace = (now - began) / (scores.next - first) if scores.next > first else None
            left = None if pace is None else pace * (subject.tokens - scores.next)
            yield Progress(Result.of(method, scores), number, methods, subject.tokens, left)
            if now - saved >= SAVE_SECONDS:
                keeper.leave(method, scores, reading.state())
                saved = now
        scores.next = subject.tokens
    except GeneratorExit:  # the loop was left, between two forwards
        keeper.leave(method, scores, reading.state())
        raise
    except ReadingEnded as reason:
        ended = str(reason)
    except (torch.OutOfMemoryError, MemoryError):
        ended = "out of memory"
    except RuntimeError as error:  # torch says it in words only, on a CPU
        if "DefaultCPUAllocator" not in str(error):
            raise
        ended = "out of memory"
    return Result.of(method, scores, ended=ended)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How the model is read through a cache of one size."""

    layouts: tuple[LayerLayout, ...]
    position_limit: int
    why_not_banded: str


class Readings:
    """The ways in which one model reads one text."""

    def __init__(self, loaded: LoadedModel, ids: Sequence[int], *, first: int, every: int) -> None:
        self._loaded, self._ids, self._first, self._every = loaded, ids, first, every
        self._fits: dict[int, _Fit] = {}
        self._line_break = 0

    def prepare(self, methods: Sequence[Method]) -> list[str]:
        """Finds out what the methods need; what is worth saying of it. Raises where one cannot be."""
        try:
            for size in {method.cache_size for method in methods if method.cache_size is not None}:
                self._fits[size] = self._fit(size)
        except CannotStream as error:
            hint = "a model with rotary positions, or --methods dense"
            raise CannotStream(error.message, hint=hint) from error
        if any(method.line_breaks for method in methods):
            self._line_break = line_break_id(self._loaded.tokenizer)
        slow = {fit.why_not_banded for fit in self._fits.values()} - {""}
        return [f"one token at a time, which is slow: {reason}" for reason in sorted(slow)]

    def of(self, method: Method) -> Reading:
        """The method at the beginning of the text."""
        model, ids, size = self._loaded.model, self._ids, method.cache_size
        if size is None:
            return DenseReading(model, ids, limit=self._positions())
        if method.kind == "recompute":
            return RecomputeReading(model, ids, cache_size=size, first=self._first, every=self._every)
        if method.line_breaks:
            ids = with_line_breaks(ids, method.sinks, self._line_break)
        return StreamReading(self._stream(size, method.sinks), ids)

    def _stream(self, size: int, sinks: int) -> Stream:
        model, fit = self._loaded.model, self._fits[size]
        if fit.why_not_banded:
            cache = SinkCache(
                fit.layouts, EvictTokens(1), capacity=size, pinned=sinks, position_limit=fit.position_limit
            )
            return SteppedStream(Engine(model, cache))
        return BandedStream(model, fit.layouts, capacity=size, pinned=sinks, position_limit=fit.position_limit)

    def _fit(self, size: int) -> _Fit:
        cache = build_cache(self._loaded, MemoryOptions(cache_size=size, evict="token"))
        limit = cache.position_limit
        reason = why_not_banded(self._loaded.model, cache.layouts, capacity=size, position_limit=limit)
        return _Fit(cache.layouts, limit, reason)

    def _positions(self) -> int | None:
        """The positions that there are; None where keys turn, so that there is one for every token."""
        trained = limits_of(self._loaded.model.config).trained
        try:
            probe(self._loaded.model, position_limit=trained or 2, name=self._loaded.name)
        except CannotStream:
            return trained
        return None
