"""`sinkchat attention`: its options, and the run of it. What is measured is in `lab/attention/`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from sinkchat.errors import CannotStream, ExitStatus, InputError
from sinkchat.lab.attention.passages import BUILT_IN, text_of
from sinkchat.lab.attention.shares import Report, Shares, SinksEvicted
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import ColorChoice, Environment
from sinkchat.terminal.lab.options import (
    Plot,
    Subject,
    chosen_for,
    environment_of,
    given,
    measuring,
    subject_for,
    whole_number,
)
from sinkchat.terminal.lab.running import Action, Dtype, Output, Pace, Tell, Watch, run

if TYPE_CHECKING:
    from sinkchat.lab.attention.start import Started

Texts = measuring("--text", "FILE", "Read this text, or several; - is stdin. (What Python's help() says.)")
Length = measuring("--length", "N", "Tokens of a passage (16).")
Passages = measuring("--passages", "N", "How many passages are averaged (256).")
Sinks = measuring("--sinks", "N", "How many of the first tokens are counted as sinks (4).")
CacheSize = measuring("--cache-size", "N", "Size of the cache whose sinks are evicted (256).")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be looked at. A mapping holds only what was chosen."""

    subject: Subject = field(default_factory=Subject)
    plan: Mapping[str, int] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    color: ColorChoice = "auto"
    output: Output = field(default_factory=Output)


Start: TypeAlias = Callable[[Asked, str, Tell], "Started"]


def start(asked: Asked, text: str, tell: Tell) -> "Started":
    """Loads the model. The first use of torch is here."""
    tell("starting")
    from sinkchat.lab.attention.start import Plan, start_attention

    return start_attention(asked.subject.name, asked.subject.load, Plan(**asked.plan), text, progress=tell)


def attention(
    context: typer.Context,
    model: Annotated[str | None, options.Model] = None,
    text: Annotated[list[str] | None, Texts] = None,
    length: Annotated[str | None, Length] = None,
    passages: Annotated[str | None, Passages] = None,
    sinks: Annotated[str | None, Sinks] = None,
    cache_size: Annotated[str | None, CacheSize] = None,
    plot: Annotated[Path | None, Plot] = None,
    quant: Annotated[options.QuantName | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    as_json: Annotated[bool, options.Json] = False,
    color: Annotated[ColorChoice | None, options.Color] = None,
) -> Action:
    """See where attention goes: the share of the first tokens in each head, and what evicting them does."""
    chosen = chosen_for(context)
    asked = Asked(
        subject=subject_for(chosen),
        plan=given(
            length=whole_number("--length", length, at_least=2),
            passages=whole_number("--passages", passages, at_least=1),
            sinks=whole_number("--sinks", sinks, at_least=1),
            cache_size=whole_number("--cache-size", cache_size, at_least=8),
        ),
        texts=tuple(text or ()),
        color=chosen["color"].value if "color" in chosen else "auto",
        output=Output(as_json, plot),
    )
    return lambda: look(environment_of(context), asked)


def look(environment: Environment, asked: Asked, start: Start = start) -> ExitStatus:
    """Measures, and writes what was measured, however it ends."""
    return run(Look(environment, asked, start), asked.output, environment)


class Look:
    """The shares of the passages so far, and what evicting the sinks did."""

    resumption = ""

    def __init__(self, environment: Environment, asked: Asked, start: Start) -> None:
        self._environment, self._asked, self._start = environment, asked, start
        self._model = ""
        self._shares: Shares | None = None
        self._eviction: SinksEvicted | None = None
        self._notes: list[str] = []

    def measure(self, watch: Watch) -> None:
        text = text_of(self._asked.texts, self._environment.stdin)
        started = self._start(self._asked, text, watch.tell)
        self._model = started.model
        pace = Pace(self._environment.clock)
        for shares in started.shares:
            self._shares = shares
            done = f"{shares.passages:,} of {started.total:,} passages"
            watch.tell(done, pace.left(shares.passages, started.total))
        watch.tell("evicting the sinks")
        try:
            self._eviction = started.evict()
        except (CannotStream, InputError) as error:
            self._notes.append(f"no sinks were evicted: {error.message}")

    @property
    def has_figures(self) -> bool:
        return self._shares is not None

    @property
    def _report(self) -> Report:
        assert self._shares is not None  # there are figures
        source = ", ".join("stdin" if name == "-" else name for name in self._asked.texts)
        return Report(self._model, source or BUILT_IN, self._shares, self._eviction, tuple(self._notes))

    def record(self) -> Any:
        return asdict(self._report)

    def write(self, environment: Environment) -> None:
        from sinkchat.terminal.lab.attention_map import write_report

        write_report(self._report, environment, self._asked.color)

    def draw(self, path: Path) -> None:
        from sinkchat.lab.attention.plot import draw

        draw(self._report, path)
