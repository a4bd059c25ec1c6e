"""`sinkchat perplexity`: its options, and the run of it. What is measured is in `lab/perplexity/`.

What only a measurement needs is imported where it runs, so that all other help pages stay as quick as they are.
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, cast

import typer

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.request import load_options_for
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import Plot, Text, measuring
from sinkchat.terminal.screen import Beside, Screen
from sinkchat.terminal.signals import Interrupts, leaving_on_signals
from sinkchat.terminal.table import write_json

if TYPE_CHECKING:
    from sinkchat.lab.perplexity.perplexity import Started
    from sinkchat.lab.perplexity.plan import Plan
    from sinkchat.lab.perplexity.scores import Progress, Result, Subject

Action: TypeAlias = Callable[[], ExitStatus]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

Methods = measuring("--methods", "NAME,...", "dense, window, recompute, streaming (all four).")
CacheSizes = measuring("--cache-size", "N,N,...", "Tokens remembered, one size or several (1024).")
SinkCounts = measuring("--sinks", "N,N,...", "First tokens that streaming keeps, such as 0,1,2,4,8 (4).")
LineBreaks = measuring("--line-breaks", None, "Also with four line breaks in place of the first tokens.")
Tokens = measuring("--tokens", "N", "Read so many tokens of the text; 0 reads it all (4096).")
Every = measuring("--every", "N", "Compare on every N-th token; recompute reads a whole cache for each (16).")
Resume = measuring("--resume", "FILE", "Keep what was measured there, and go on with it.")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured. `load` holds only what was chosen."""

    model: str | None
    text: str
    plan: "Plan"
    load: Mapping[str, Any] = field(default_factory=dict)
    resume: Path | None = None
    plot: Path | None = None
    as_json: bool = False


class Lab(Protocol):
    """Where models are."""

    def start(self, asked: Asked, environment: Environment, telling: Callable[[str], None]) -> "Started": ...


class RealLab:
    """Loads torch, at the first use."""

    def start(self, asked: Asked, environment: Environment, telling: Callable[[str], None]) -> "Started":
        telling("starting")
        from sinkchat.lab.perplexity.text import TextSource

        source = TextSource(asked.text, environment.stdin)
        source.require()
        from sinkchat.lab.perplexity.perplexity import start_perplexity
        from sinkchat.models.loading import DEFAULT_MODEL, LoadOptions, load_model

        load = LoadOptions(**asked.load, needs_template=False)
        loaded = load_model(DEFAULT_MODEL if asked.model is None else asked.model, load, progress=telling)
        return start_perplexity(
            loaded, source, asked.plan, resume=asked.resume, telling=telling, clock=environment.clock
        )


REAL = RealLab()


def perplexity(
    context: typer.Context,
    model: Annotated[str | None, options.Model] = None,
    text: Annotated[str | None, Text] = None,
    methods: Annotated[list[str] | None, Methods] = None,
    cache_size: Annotated[list[str] | None, CacheSizes] = None,
    sinks: Annotated[list[str] | None, SinkCounts] = None,
    line_breaks: Annotated[bool, LineBreaks] = False,
    tokens: Annotated[str | None, Tokens] = None,
    every: Annotated[str | None, Every] = None,
    resume: Annotated[Path | None, Resume] = None,
    plot: Annotated[Path | None, Plot] = None,
    quant: Annotated[options.QuantName | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Measure how well a long text is foreseen: with everything kept, with a window, read afresh, with sinks."""
    from sinkchat.lab.perplexity.plan import Plan

    environment = cast(Environment, context.obj.environment)
    if text is None:
        raise UsageError("there is no text to measure on", hint="--text FILE, such as a book")
    chosen: dict[str, Any] = {
        "kinds": _kinds(methods),
        "cache_sizes": _numbers("--cache-size", cache_size, at_least=2, example="256,1024"),
        "sinks": _numbers("--sinks", sinks, at_least=0, example="0,1,2,4,8"),
        "tokens": _number("--tokens", tokens, at_least=0),
        "every": _number("--every", every, at_least=1),
    }
    plan = Plan(line_breaks=line_breaks, **{name: given for name, given in chosen.items() if given is not None})
    if "streaming" not in plan.kinds and (sinks or line_breaks):
        given = "--sinks" if sinks else "--line-breaks"
        raise UsageError(f"{given} is for streaming, which --methods leaves out", hint=f"no {given}")
    plan.methods(plan.cache_sizes)  # a slip is told before a model is loaded
    load = load_options_for(options.typed(context, environment.variables))
    asked = Asked(model, text, plan=plan, load=load, resume=resume, plot=plot, as_json=as_json)
    return lambda: measure(environment, asked)


def measure(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Measures, and writes what was measured, however it ends."""
    if asked.plot is not None:
        from sinkchat.lab.plotting import check_plot

        check_plot(asked.plot)
    beside = Beside.on(environment.stderr, environment)
    try:
        started = lab.start(asked, environment, beside.status)
    finally:
        beside.erase_status()
    for note in started.subject.notes:
        beside.note(note)
    results: list[Result] = []
    try:
        was_stopped = _follow(started, results, beside, environment)
    finally:
        beside.erase_status()
        if results:
            _tell(environment, asked, started.subject, results)
    if not was_stopped:
        return ExitStatus.OK
    where = "--resume FILE keeps what was measured" if asked.resume is None else f"--resume {asked.resume} goes on"
    beside.note(f"stopped: the figures are of what was read; {where}")
    return ExitStatus.INTERRUPTED


def _follow(started: "Started", results: "list[Result]", beside: Screen, environment: Environment) -> bool:
    """Adds what comes to `results`, of the method under way what it came to so far; whether Ctrl-C stopped it."""
    from sinkchat.lab.perplexity.scores import Result
    from sinkchat.terminal.lab.perplexity_table import in_progress

    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    latest: Result | None = None
    events = cast("Generator[Progress | Result, None, None]", started.events)
    try:
        with leaving_on_signals(), Interrupts(stop, clock=environment.clock) as interrupts, closing(events):
            for event in interrupts.steps(events):
                if isinstance(event, Result):
                    results.append(event)
                    latest = None
                else:
                    latest = event.so_far
                    beside.status(in_progress(event))
                if is_stopped:
                    break
    finally:
        if latest is not None:
            results.append(replace(latest, ended="stopped"))
    return is_stopped


def _tell(environment: Environment, asked: Asked, subject: "Subject", results: "list[Result]") -> None:
    try:
        if asked.plot is not None:
            from sinkchat.lab.perplexity.plot import draw

            draw(asked.plot, subject, results)
    finally:
        if asked.as_json:
            record = {"subject": asdict(subject), "results": [result.as_record() for result in results]}
            write_json(_finite(record), environment.stdout)
        else:
            from sinkchat.terminal.lab.perplexity_table import write_results

            write_results(subject, results, environment)


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kinds(texts: list[str] | None) -> tuple[str, ...] | None:
    from sinkchat.lab.perplexity.plan import KINDS

    if not texts:
        return None
    words = _words(texts)
    for word in words:
        if word not in KINDS:
            raise UsageError(f"--methods {word} is not known", hint=f"--methods {','.join(KINDS)}")
    return words


def _numbers(name: str, texts: list[str] | None, *, at_least: int, example: str) -> tuple[int, ...] | None:
    """`--sinks 0,1 --sinks 4` as numbers, each once."""
    if not texts:
        return None
    return tuple(_whole(name, word, at_least=at_least, hint=f"{name} {example}") for word in _words(texts))


def _number(name: str, text: str | None, *, at_least: int) -> int | None:
    return None if text is None else _whole(name, text, at_least=at_least, hint=f"a whole number from {at_least} up")


def _words(texts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",")))


def _whole(name: str, word: str, *, at_least: int, hint: str) -> int:
    if not (word.isascii() and word.isdecimal()) or int(word) < at_least:
        raise UsageError(f"{name} {word or '(nothing)'} is not a whole number from {at_least} up", hint=hint)
    return int(word)
