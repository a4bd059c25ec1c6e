"""`sinkchat pretrain`: its options, and the run of it. What is trained is in `lab/training/`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from sinkchat.errors import ExitStatus
from sinkchat.lab.attention.passages import BUILT_IN, text_of
from sinkchat.lab.training.table import HARDLY, PAPER, SINKS, Plan, Row
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import Plot, environment_of, given, measuring, whole_number
from sinkchat.terminal.lab.perplexity_table import in_words
from sinkchat.terminal.lab.running import Action, Output, Pace, Watch, run
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.table import write_table

if TYPE_CHECKING:
    from sinkchat.lab.training.training import Event

Texts = measuring("--text", "FILE", "Train on this text, or several; - is stdin. (What Python's help() says.)")
Steps = measuring("--steps", "N", f"Steps of training, each of {Plan().batch} passages ({Plan().steps}).")
Length = measuring("--length", "N", f"Bytes of a passage, and tokens of the cache afterwards ({Plan().length}).")
Seed = measuring("--seed", "N", f"Other first weights, other passages ({Plan().seed}).")


_HARDLY_ANY = """\
That is hardly a sink. Models as small as these grow none in so few steps, so this shows how the three are trained and
measured, and not what sinks are worth. The paper's table 3, of models with 160 million parameters, by sinks kept:

"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be trained. A mapping holds only what was chosen."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    output: Output = field(default_factory=Output)


Compare: TypeAlias = Callable[[bytes, Plan], "Iterator[Event]"]


def compare(text: bytes, plan: Plan) -> "Iterator[Event]":
    """Trains the models. The first use of torch is here."""
    from sinkchat.lab.training import training

    return training.compare(text, plan)


def pretrain(
    context: typer.Context,
    text: Annotated[list[str] | None, Texts] = None,
    steps: Annotated[str | None, Steps] = None,
    length: Annotated[str | None, Length] = None,
    seed: Annotated[str | None, Seed] = None,
    plot: Annotated[Path | None, Plot] = None,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Train three tiny models, with softmax, with softmax plus one, with a learned sink: who needs how many sinks?"""
    asked = Asked(
        plan=given(
            steps=whole_number("--steps", steps, at_least=1),
            length=whole_number("--length", length, at_least=16),
            seed=whole_number("--seed", seed, at_least=0),
        ),
        texts=tuple(text or ()),
        output=Output(as_json, plot),
    )
    return lambda: train(environment_of(context), asked)


def train(environment: Environment, asked: Asked, compare: Compare = compare) -> ExitStatus:
    """Trains and measures, and writes the rows there are, however it ends."""
    return run(Comparison(environment, asked, compare), asked.output, environment)


class Comparison:
    """The rows so far."""

    resumption = ""

    def __init__(self, environment: Environment, asked: Asked, compare: Compare) -> None:
        self._environment, self._compare = environment, compare
        self._texts, self._plan = asked.texts, Plan(**asked.plan)
        self._rows: list[Row] = []

    def measure(self, watch: Watch) -> None:
        text = text_of(self._texts, self._environment.stdin)
        watch.tell("starting")
        pace = Pace(self._environment.clock)
        steps = self._plan.steps
        for event in self._compare(text.encode(), self._plan):
            if isinstance(event, Row):
                self._rows.append(event)
                continue
            place = f"{event.kind} ({event.number} of {event.kinds})"
            step = "measuring" if event.step == steps else f"step {event.step:,} of {steps:,}"
            left = pace.left((event.number - 1) * steps + event.step, event.kinds * steps)
            watch.tell(place, step, left, f"loss {event.loss:.2f}")

    @property
    def has_figures(self) -> bool:
        return bool(self._rows)

    @property
    def _source(self) -> str:
        return ", ".join("stdin" if name == "-" else name for name in self._texts) or BUILT_IN

    def record(self) -> Any:
        rows = [asdict(row) for row in self._rows]
        return {"text": self._source, "plan": asdict(self._plan), "sinks": SINKS, "rows": rows}

    def write(self, environment: Environment) -> None:
        stdout, length = environment.stdout, self._plan.length
        stdout.write(
            f"Perplexity of a byte, read past a cache of {length:,}, sinks + window; "
            f"{self._plan.steps:,} steps on {one_line(self._source)}\n\n"
        )
        caches = [f"{sinks} + {length - sinks}" for sinks in SINKS]
        numbers = [(row.kind, *(f"{value:.3f}" for value in row.perplexities)) for row in self._rows]
        write_table([("", *caches), *numbers], stdout, right=range(1, len(SINKS) + 1))
        worse = ", ".join(f"{row.kind} {row.loss_without:+.1%}" for row in self._rows)
        stdout.write(f"\nWithout sinks, from with {SINKS[-1]}: {worse}.\n")
        if max(row.loss_without for row in self._rows) < HARDLY:
            stdout.write(_HARDLY_ANY)
            paper = [(kind, *map(in_words, found)) for kind, found in PAPER.items()]
            write_table([("", *map(str, SINKS)), *paper], stdout, right=range(1, len(SINKS) + 1))

    def draw(self, path: Path) -> None:
        from sinkchat.lab.training.plot import draw

        draw(self._plan, self._rows, path)
