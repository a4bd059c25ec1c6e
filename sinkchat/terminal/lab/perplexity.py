"""`sinkchat perplexity`: its options, and the run of it. What is measured is in `lab/perplexity/`.

What only a measurement needs is imported where it runs, so that all other help pages stay as quick as they are.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import (
    Plot,
    Subject,
    Text,
    chosen_for,
    environment_of,
    given,
    measuring,
    subject_for,
    whole_number,
    whole_numbers,
    words,
)
from sinkchat.terminal.lab.running import Action, Dtype, Output, Tell, Watch, between_steps, run

if TYPE_CHECKING:
    from sinkchat.lab.perplexity.perplexity import Started
    from sinkchat.lab.perplexity.plan import Plan
    from sinkchat.lab.perplexity.scores import Result

Methods = measuring("--methods", "NAME,...", "dense, window, recompute, streaming (all four).")
CacheSizes = measuring("--cache-size", "N,N,...", "Tokens remembered, one size or several (1024).")
SinkCounts = measuring("--sinks", "N,N,...", "First tokens that streaming keeps, such as 0,1,2,4,8 (4).")
LineBreaks = measuring("--line-breaks", None, "Also with four line breaks in place of the first tokens.")
Tokens = measuring("--tokens", "N", "Read so many tokens of the text; 0 reads it all (4096).")
Every = measuring("--every", "N", "Compare on every N-th token; recompute reads a whole cache for each (16).")
Resume = measuring("--resume", "FILE", "Keep what was measured there, and go on with it.")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured, on which text."""

    text: str
    plan: "Plan"
    subject: Subject = field(default_factory=Subject)
    resume: Path | None = None
    output: Output = field(default_factory=Output)


Start: TypeAlias = Callable[[Asked, Environment, Tell], "Started"]


def start(asked: Asked, environment: Environment, tell: Tell) -> "Started":
    """Reads the text and loads the model. The first use of torch is here."""
    tell("starting")
    from sinkchat.lab.perplexity.text import TextSource

    source = TextSource(asked.text, environment.stdin)
    source.require()
    from sinkchat.lab.perplexity.perplexity import start_perplexity
    from sinkchat.models.loading import LoadOptions, load_model

    load = LoadOptions(**asked.subject.load, needs_template=False)
    loaded = load_model(asked.subject.name, load, progress=tell)
    return start_perplexity(loaded, source, asked.plan, resume=asked.resume, telling=tell, clock=environment.clock)


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

    if text is None:
        raise UsageError("there is no text to measure on", hint="--text FILE, such as a book")
    chosen = given(
        kinds=_kinds(methods),
        cache_sizes=whole_numbers("--cache-size", cache_size, at_least=2, example="256,1024"),
        sinks=whole_numbers("--sinks", sinks, at_least=0, example="0,1,2,4,8"),
        tokens=whole_number("--tokens", tokens, at_least=0),
        every=whole_number("--every", every, at_least=1),
    )
    plan = Plan(line_breaks=line_breaks, **chosen)
    if "streaming" not in plan.kinds and (sinks or line_breaks):
        option = "--sinks" if sinks else "--line-breaks"
        raise UsageError(f"{option} is for streaming, which --methods leaves out", hint=f"no {option}")
    plan.methods(plan.cache_sizes)  # a slip is told before a model is loaded
    subject = subject_for(chosen_for(context))
    asked = Asked(text, plan, subject, resume=resume, output=Output(as_json, plot))
    return lambda: measure(environment_of(context), asked)


def measure(environment: Environment, asked: Asked, start: Start = start) -> ExitStatus:
    """Measures, and writes what was measured, however it ends."""
    return run(Perplexities(environment, asked, start), asked.output, environment)


class Perplexities:
    """The methods one after the other; of the one under way, what it came to so far."""

    def __init__(self, environment: Environment, asked: Asked, start: Start) -> None:
        self._environment, self._asked, self._start = environment, asked, start
        self._started: Started | None = None
        self._ended: list[Result] = []
        self._latest: Result | None = None
        kept = "--resume FILE keeps what was measured"
        self.resumption = kept if asked.resume is None else f"--resume {asked.resume} goes on"

    def measure(self, watch: Watch) -> None:
        self._started = self._start(self._asked, self._environment, watch.tell)
        from sinkchat.lab.perplexity.scores import Result
        from sinkchat.terminal.lab.perplexity_table import in_progress

        watch.erase()
        for note in self._started.subject.notes:
            watch.note(note)
        with closing(between_steps(self._started.events, self._environment.clock)) as events:
            for event in events:
                if isinstance(event, Result):
                    self._ended.append(event)
                    self._latest = None
                else:
                    self._latest = event.so_far
                    watch.tell(*in_progress(event))

    @property
    def has_figures(self) -> bool:
        return bool(self._results)

    @property
    def _results(self) -> "list[Result]":
        return self._ended + ([] if self._latest is None else [replace(self._latest, ended="stopped")])

    def record(self) -> Any:
        subject = None if self._started is None else asdict(self._started.subject)
        return {"subject": subject, "results": [result.as_record() for result in self._results]}

    def write(self, environment: Environment) -> None:
        from sinkchat.terminal.lab.perplexity_table import write_results

        if self._started is not None:
            write_results(self._started.subject, self._results, environment)

    def draw(self, path: Path) -> None:
        from sinkchat.lab.perplexity.plot import draw

        if self._started is not None:
            draw(path, self._started.subject, self._results)


def _kinds(texts: list[str] | None) -> tuple[str, ...]:
    from sinkchat.lab.perplexity.plan import KINDS

    kinds = words(texts)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--methods {kind} is not known", hint=f"--methods {','.join(KINDS)}")
    return kinds
