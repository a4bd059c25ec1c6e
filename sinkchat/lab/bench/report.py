"""What was measured, as a person or a program reads it: medians, ratios of pairs, and the target beside each.

A report is a function of samples, so one that was broken off is a report of what there was. No torch here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sinkchat.lab.bench.bench import Plan, Sample
from sinkchat.lab.bench.timing import Spread, percentile, ratios, spread

LATE_TO_FULL = 0.98
TAIL = 1.3
REACHED_ON_GPU = 0.8

OURS, DENSE, RECOMPUTED, LLAMA_CPP = "sinkchat", "dense", "recomputed", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and what one token of it reads."""

    model: str
    quant: str
    dtype: str
    device: str
    threads: int
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured of one stream; units as in `Sample`."""

    of: str
    measure: str
    value: Spread


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two figures against each other, taken in pairs, and where we want it to be."""

    what: str
    value: Spread
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Seconds of single tokens, each of which pushes one out."""

    count: int
    median: float
    ninety_ninth: float
    worst: float

    @property
    def tail(self) -> Spread:
        """How much longer the slow ones take."""
        tail = self.ninety_ninth / self.median
        return Spread(tail, tail, tail, 1)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The most that a bandwidth allows at a full cache; `reached` is the share of it, where that was measured."""

    nbytes: int
    """moved for one token"""
    tokens_per_s: float
    reached: Spread | None = None


@dataclass(frozen=True, slots=True)
class SizeReport:
    """Everything at one cache size."""

    cache_size: int
    figures: tuple[Figure, ...]
    ratios: tuple[Ratio, ...]
    token_times: TokenTimes | None
    roofline: Roofline | None
    resident_growth: int | None
    """bytes that the process grew by while windows rolled over"""

    def figure(self, of: str, measure: str) -> Spread | None:
        return next((one.value for one in self.figures if (one.of, one.measure) == (of, measure)), None)


@dataclass(frozen=True, slots=True)
class Report:
    subject: Subject
    plan: Plan
    copy_bandwidth: Spread | None
    """bytes a second"""
    sizes: tuple[SizeReport, ...]
    notes: tuple[str, ...] = ()


def report(subject: Subject, plan: Plan, samples: Sequence[Sample], notes: Iterable[str] = ()) -> Report:
    """What `samples` say, of those that `plan` would give."""
    by_size: dict[int, _Values] = {}
    for sample in samples:
        by_size.setdefault(sample.cache_size, _Values()).add(sample)
    copies = [sample.value for sample in samples if sample.measure == "copy"]
    return Report(
        subject,
        plan,
        spread(copies) if copies else None,
        tuple(_size_report(subject, size, values) for size, values in by_size.items()),
        tuple(notes),
    )


def roofline(subject: Subject, size: int, bandwidth: float) -> Roofline:
    """What is possible where a cache of `size` is full and `bandwidth` bytes a second are moved."""
    nbytes = subject.weight_bytes + size * subject.kv_bytes_per_token
    return Roofline(nbytes, bandwidth / nbytes)


class _Values:
    """All values of one cache size, by whose they are and what was measured."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, sample: Sample) -> None:
        self._found[sample.of, sample.measure].append(sample.value)

    def of(self, name: str, measure: str) -> list[float]:
        return self._found.get((name, measure), [])

    @property
    def names(self) -> list[str]:
        """Of the streams beside ours."""
        others = (name for name, measure in self._found if measure == "full" and name != OURS)
        return list(dict.fromkeys(others))

    def figures(self) -> Iterator[Figure]:
        for (name, measure), found in self._found.items():
            if not measure.endswith(" token"):
                yield Figure(name, measure, spread(found))


def _size_report(subject: Subject, size: int, values: _Values) -> SizeReport:
    before, after = values.of(OURS, "resident full"), values.of(OURS, "resident late")
    return SizeReport(
        cache_size=size,
        figures=tuple(values.figures()),
        ratios=tuple(_ratios(subject, size, values)),
        token_times=_token_times(values.of(OURS, "late token")),
        roofline=_reached(subject, size, values),
        resident_growth=round(after[0] - before[0]) if before and after else None,
    )


def _reached(subject: Subject, size: int, values: _Values) -> Roofline | None:
    """The roofline, and how near a full cache comes to it: each round by the copy that was timed in it."""
    copies, full = values.of("machine", "copy"), values.of(OURS, "full")
    if not copies:
        return None
    at_best = roofline(subject, size, median(copies))
    return replace(at_best, reached=ratios(full, [copy / at_best.nbytes for copy in copies]))


def _token_times(seconds: Sequence[float]) -> TokenTimes | None:
    if not seconds:
        return None
    return TokenTimes(len(seconds), median(seconds), percentile(seconds, 0.99), max(seconds))


def _ratios(subject: Subject, size: int, values: _Values) -> Iterator[Ratio]:
    on_cpu = subject.device == "cpu"
    in_four_bits = not on_cpu and subject.quant in ("nf4", "fp4")

    def pairs(what: str, measure: str, other: str, other_measure: str, at_least: float | None) -> Iterator[Ratio]:
        found = ratios(values.of(OURS, measure), values.of(other, other_measure))
        if found is not None:
            yield Ratio(what, found, at_least)

    # The paper's own figure against recomputation, at its largest cache; the others are ours.
    yield from pairs("later / full", "late", OURS, "full", LATE_TO_FULL)
    if times := _token_times(values.of(OURS, "late token")):
        yield Ratio("99th / median token", times.tail, at_most=TAIL)
    for name in values.names:  # what of it is the machine's
        if times := _token_times(values.of(name, "full token")):
            yield Ratio(f"99th / median, {name}", times.tail)
    targets = {
        (RECOMPUTED, "full"): 22.2 if size == 4096 else None,
        (DENSE, "full"): 5.0 if in_four_bits else None,
        (LLAMA_CPP, "full"): 1.25 if on_cpu else None,
        (LLAMA_CPP, "prefill"): 3.0 if on_cpu else None,
    }
    for measure, words in (("full", ""), ("prefill", "prefill ")):
        for name in values.names:
            yield from pairs(f"{words}/ {name}", measure, name, measure, targets.get((name, measure)))
