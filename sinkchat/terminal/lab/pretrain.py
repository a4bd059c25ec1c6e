"""`sinkchat pretrain`: its options, and the run of it. What is trained is in `lab/training/`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, cast

import typer

from sinkchat.errors import ExitStatus
from sinkchat.lab.attention.passages import BUILT_IN, text_of
from sinkchat.lab.training.table import SINKS, Plan, Row
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import measuring
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.table import write_json, write_table

if TYPE_CHECKING:
    from sinkchat.lab.training.training import Event

Action: TypeAlias = Callable[[], ExitStatus]

Texts = measuring("--text", "FILE", "Train on this text, or several; - is stdin. (What Python's help() says.)")
Steps = measuring("--steps", "N", f"Steps of training, each of {Plan().batch} passages ({Plan().steps}).", min=1)
Length = measuring(
    "--length", "N", f"Bytes of a passage, and tokens of the cache afterwards ({Plan().length}).", min=16
)
Seed = measuring("--seed", "N", f"Other first weights, other passages ({Plan().seed}).")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be trained. A mapping holds only what was chosen."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    as_json: bool = False


class Lab(Protocol):
    """Where models are trained: what `lab/training/` gives."""

    def compare(self, text: bytes, plan: Plan) -> Iterator["Event"]: ...


class RealLab:
    """Loads torch, at the first use."""

    def compare(self, text: bytes, plan: Plan) -> Iterator["Event"]:
        from sinkchat.lab.training.training import compare

        return compare(text, plan)


REAL = RealLab()


def pretrain(
    context: typer.Context,
    text: Annotated[list[str] | None, Texts] = None,
    steps: Annotated[int | None, Steps] = None,
    length: Annotated[int | None, Length] = None,
    seed: Annotated[int | None, Seed] = None,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Train three tiny models, with softmax, with softmax plus one, with a learned sink: who needs how many sinks?"""
    chosen = {"steps": steps, "length": length, "seed": seed}
    asked = Asked(
        plan={name: value for name, value in chosen.items() if value is not None},
        texts=tuple(text or ()),
        as_json=as_json,
    )
    return lambda: train(cast(Environment, context.obj.environment), asked)


def train(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Trains and measures, and writes the rows there are, however it ends."""
    plan = Plan(**asked.plan)
    text = text_of(asked.texts, environment.stdin)
    beside = Beside.on(environment.stderr, environment)
    rows: list[Row] = []
    try:
        beside.status("starting")
        for event in lab.compare(text.encode(), plan):
            if isinstance(event, Row):
                rows.append(event)
            else:
                measuring = ", measuring" if event.step == plan.steps else ""
                beside.status(
                    f"{event.kind}: step {event.step:,} of {plan.steps:,}, loss {event.loss:.2f}{measuring}"
                )
    finally:
        beside.erase_status()
        if rows:
            _tell(environment, asked, plan, rows)
    return ExitStatus.OK


def _tell(environment: Environment, asked: Asked, plan: Plan, rows: list[Row]) -> None:
    source = ", ".join(asked.texts) or BUILT_IN
    if asked.as_json:
        told = {"text": source, "plan": asdict(plan), "sinks": SINKS, "rows": [asdict(row) for row in rows]}
        write_json(told, environment.stdout)
        return
    stdout = environment.stdout
    stdout.write(
        f"Perplexity of a byte, read past a cache of {plan.length:,}, sinks + window; "
        f"{plan.steps:,} steps on {one_line(source)}\n\n"
    )
    caches = [f"{sinks} + {plan.length - sinks}" for sinks in SINKS]
    numbers = [(row.kind, *(f"{value:.3f}" for value in row.perplexities)) for row in rows]
    write_table([("", *caches), *numbers], stdout, right=range(1, len(SINKS) + 1))
