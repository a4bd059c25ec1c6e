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
from sinkchat.terminal.lab.options import (
    Plot,
    Subject,
    chosen_for,
    environment_of,
    given,
    measuring,
    subject_for,
    whole_numbers,
)
from sinkchat.terminal.lab.running import Action, Dtype, Output, Tell, Watch, run

if TYPE_CHECKING:
    from sinkchat.lab.bench.bench import Sample
    from sinkchat.lab.bench.report import Report, Roofline
    from sinkchat.lab.bench.report import Subject as Measured
    from sinkchat.lab.bench.start import Expected, Started
    from sinkchat.lab.bench.timing import Spread

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

    subject: Subject = field(default_factory=Subject)
    plan: Mapping[str, Any] = field(default_factory=dict)
    peers: bool = False
    bandwidth: float | None = None
    """bytes a second"""
    output: Output = field(default_factory=Output)


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

        name, load = asked.subject.name, asked.subject.load
        return start_bench(name, load, asked.plan, peers=asked.peers, progress=progress)

    def expect(self, asked: Asked, progress: Tell) -> "Expected":
        from sinkchat.lab.bench.start import expected, expected_elsewhere

        look = expected if asked.bandwidth is None else expected_elsewhere
        return look(asked.subject.name, asked.subject.load, progress=progress)

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
    threads: Annotated[str | None, options.Threads] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    no_compile: Annotated[bool, options.NoCompile] = False,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Measure speed and memory: empty, full, long after the first eviction, and against other ways to go on."""
    environment = environment_of(context)
    sizes = whole_numbers("--cache-size", cache_size, at_least=1, example="256,1024")
    asked = Asked(
        subject=subject_for(chosen_for(context)),
        plan=given(cache_sizes=tuple(sorted(sizes)), rounds=rounds, tokens=tokens, windows=windows, turns=turns),
        peers=peers,
        bandwidth=None if bandwidth is None else bandwidth * 1e9,
        output=Output(as_json, plot),
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
    return run(Bench(asked, lab), asked.output, environment)


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
    return run(Expectation(asked, lab), asked.output, environment)


class Expectation:
    """The copies so far, and what they allow."""

    resumption = ""

    def __init__(self, asked: Asked, lab: Lab) -> None:
        self._asked, self._lab = asked, lab
        self._found: Expected | None = None
        self._bandwidths = [] if asked.bandwidth is None else [asked.bandwidth]

    def measure(self, watch: Watch) -> None:
        self._found = self._lab.expect(self._asked, watch.tell)
        if not self._bandwidths:
            watch.tell("copying")
            self._bandwidths.extend(self._lab.bandwidth(self._found.subject.device, ROUNDS_OF_COPIES))

    @property
    def has_figures(self) -> bool:
        return self._found is not None and bool(self._bandwidths)

    @property
    def _figures(self) -> "tuple[Measured, Spread, dict[int, Roofline]]":
        from sinkchat.lab.bench.report import roofline
        from sinkchat.lab.bench.timing import spread

        assert self._found is not None  # there are figures
        subject, bandwidth = self._found.subject, spread(self._bandwidths)
        sizes = self._asked.plan.get("cache_sizes", self._found.cache_sizes)
        return subject, bandwidth, {size: roofline(subject, size, bandwidth.median) for size in sizes}

    def record(self) -> Any:
        subject, bandwidth, rooflines = self._figures
        sizes = [{"cache_size": size, **asdict(one)} for size, one in rooflines.items()]
        return {"subject": asdict(subject), "copy_bandwidth": asdict(bandwidth), "sizes": sizes}

    def write(self, environment: Environment) -> None:
        from sinkchat.terminal.lab.bench_table import write_expected

        write_expected(*self._figures, environment)

    def draw(self, path: Path) -> None:
        """There is nothing to draw: `--dry-run` takes no --plot."""
