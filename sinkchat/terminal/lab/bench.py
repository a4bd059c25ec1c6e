"""`sinkchat bench`: its options, and the run of it. What is measured is in `lab/bench/`.

Whatever only a bench needs is imported where it runs, so that all other help pages stay as quick as they are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import Plot, chosen_for, environment_of, measuring, subject_for
from sinkchat.terminal.lab.running import Action, Dtype, Output, Tell, Watch, run
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.table import write_json

if TYPE_CHECKING:
    from sinkchat.lab.bench.bench import Sample
    from sinkchat.lab.bench.report import Report
    from sinkchat.lab.bench.start import Expected, Started

ROUNDS_OF_COPIES = 5

CacheSizes = measuring("--cache-size", "N,N,...", "Tokens remembered, one size or several (256,1024,4096).")
Rounds = measuring("--rounds", "N", "How often everything is measured, in turns (5).", min=1)
Tokens = measuring("--tokens", "N", "Tokens drawn in each measurement (32).", min=1)
Windows = measuring("--windows", "N", "How often the window rolls over before the late figures (4).", min=1)
Turns = measuring("--turns", "N", "Turns of the conversation whose first and last answers are timed (100).", min=2)
Peers = measuring("--peers", None, "Beside it: llama.cpp on the same GGUF file, a static cache of transformers.")
DryRun = measuring("--dry-run", None, "Load no weights: what the bandwidth allows, and nothing else.")
Bandwidth = measuring("--bandwidth", "GB/S", "With --dry-run: of a device that need not be here.", min=0.001)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured. A mapping holds only what was chosen."""

    model: str | None = None
    load: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    peers: bool = False
    bandwidth: float | None = None
    """bytes a second"""
    as_json: bool = False
    plot: Path | None = None


class Lab(Protocol):
    """Where models are: what `lab/bench/start.py` gives."""

    def start(self, asked: Asked, progress: Tell) -> "Started": ...

    def expect(self, asked: Asked, progress: Tell) -> "Expected": ...

    def bandwidth(self, device: str, rounds: int) -> Iterator[float]: ...


class RealLab:
    """Loads torch, at the first use."""

    def start(self, asked: Asked, progress: Tell) -> "Started":
        progress("starting")
        from sinkchat.lab.bench.start import start_bench

        return start_bench(_model(asked), asked.load, asked.plan, peers=asked.peers, progress=progress)

    def expect(self, asked: Asked, progress: Tell) -> "Expected":
        from sinkchat.lab.bench.start import expected, expected_elsewhere

        look = expected if asked.bandwidth is None else expected_elsewhere
        return look(_model(asked), asked.load, progress=progress)

    def bandwidth(self, device: str, rounds: int) -> Iterator[float]:
        from sinkchat.lab.bench.start import measured_bandwidth

        return measured_bandwidth(device, rounds)


REAL = RealLab()


def bench(
    context: typer.Context,
    model: Annotated[str | None, options.Model] = None,
    cache_size: Annotated[list[str] | None, CacheSizes] = None,
    rounds: Annotated[int | None, Rounds] = None,
    tokens: Annotated[int | None, Tokens] = None,
    windows: Annotated[int | None, Windows] = None,
    turns: Annotated[int | None, Turns] = None,
    peers: Annotated[bool, Peers] = False,
    dry_run: Annotated[bool, DryRun] = False,
    bandwidth: Annotated[float | None, Bandwidth] = None,
    plot: Annotated[Path | None, Plot] = None,
    quant: Annotated[options.QuantName | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    no_compile: Annotated[bool, options.NoCompile] = False,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Measure speed and memory: empty, full, long after the first eviction, and against other ways to go on."""
    environment = environment_of(context)
    sizes = _sizes(cache_size)
    chosen = {"cache_sizes": sizes, "rounds": rounds, "tokens": tokens, "windows": windows, "turns": turns}
    subject = subject_for(chosen_for(context))
    asked = Asked(
        model=subject.model,
        load=subject.load,
        plan={name: value for name, value in chosen.items() if value is not None},
        peers=peers,
        bandwidth=None if bandwidth is None else bandwidth * 1e9,
        as_json=as_json,
        plot=plot,
    )
    if not dry_run:
        if bandwidth is not None:
            raise UsageError("--bandwidth states what --dry-run would measure", hint="--dry-run, or no --bandwidth")
        return lambda: measure(environment, asked)
    if plot is not None or peers:
        raise UsageError(f"--dry-run measures nothing for {'--peers' if peers else '--plot'}", hint="one of them")
    return lambda: expect(environment, asked)


def measure(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Measures, and writes what was measured, however it ends."""
    return run(Bench(asked, lab), Output(asked.as_json, asked.plot), environment)


class Bench:
    """The samples so far."""

    resumption = ""

    def __init__(self, asked: Asked, lab: Lab) -> None:
        self._asked, self._lab = asked, lab
        self._started: Started | None = None
        self._samples: list[Sample] = []

    def measure(self, watch: Watch) -> None:
        self._started = self._lab.start(self._asked, watch.tell)
        for sample in self._started.samples:
            self._samples.append(sample)

    @property
    def has_figures(self) -> bool:
        return bool(self._samples)

    @property
    def _report(self) -> "Report":
        from sinkchat.lab.bench.report import report

        assert self._started is not None  # there are figures
        return report(self._started.subject, self._started.plan, self._samples, self._started.notes)

    def record(self) -> Any:
        return asdict(self._report)

    def write(self, environment: Environment) -> None:
        from sinkchat.terminal.lab.bench_table import write_report

        write_report(self._report, environment)

    def draw(self, path: Path) -> None:
        from sinkchat.lab.bench.plot import draw

        draw(self._report, path)


def expect(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Writes what a bandwidth allows: the one that was stated, else this machine's."""
    from sinkchat.lab.bench.report import roofline
    from sinkchat.lab.bench.timing import spread
    from sinkchat.terminal.lab.bench_table import write_expected

    beside = Beside.on(environment.stderr, environment)
    try:
        found = lab.expect(asked, beside.status)
        measured = [asked.bandwidth] if asked.bandwidth is not None else []
        if not measured:
            beside.status("copying")
            measured = list(lab.bandwidth(found.subject.device, ROUNDS_OF_COPIES))
    finally:
        beside.erase_status()
    bandwidth = spread(measured)
    sizes = asked.plan.get("cache_sizes", found.cache_sizes)
    rooflines = {size: roofline(found.subject, size, bandwidth.median) for size in sizes}
    if asked.as_json:
        told = [{"cache_size": size, **asdict(one)} for size, one in rooflines.items()]
        told_of = {"subject": asdict(found.subject), "copy_bandwidth": asdict(bandwidth)}
        write_json(told_of | {"sizes": told}, environment.stdout)
    else:
        write_expected(found.subject, bandwidth, rooflines, environment)
    return ExitStatus.OK


def _model(asked: Asked) -> str:
    from sinkchat.models.sources import DEFAULT_MODEL

    return DEFAULT_MODEL if asked.model is None else asked.model


def _sizes(texts: list[str] | None) -> tuple[int, ...] | None:
    """`--cache-size 256,1024 --cache-size 4096` as numbers, each once, ascending."""
    if not texts:
        return None
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdecimal()) or int(word) < 1:
            raise UsageError(f"--cache-size {word} is no number of tokens", hint="--cache-size 256,1024")
    return tuple(sorted({int(word) for word in words}))
