"""`sinkchat attention`: its options, and the run of it. What is measured is in `lab/attention/`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, cast

import typer

from sinkchat.errors import CannotStream, ExitStatus, InputError
from sinkchat.lab.attention.passages import BUILT_IN, text_of
from sinkchat.lab.attention.shares import Report, Shares, SinksEvicted
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.request import load_options_for
from sinkchat.terminal.environment import ColorChoice, Environment
from sinkchat.terminal.lab.options import Plot, measuring
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.table import write_json

if TYPE_CHECKING:
    from sinkchat.lab.attention.start import Started

Action: TypeAlias = Callable[[], ExitStatus]
Progress: TypeAlias = Callable[[str], None]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

Texts = measuring("--text", "FILE", "Read this text, or several; - is stdin. (What Python's help() says.)")
Length = measuring("--length", "N", "Tokens of a passage (16).", min=2)
Passages = measuring("--passages", "N", "How many passages are averaged (256).", min=1)
Sinks = measuring("--sinks", "N", "How many of the first tokens are counted as sinks (4).", min=1)
CacheSize = measuring("--cache-size", "N", "Size of the cache whose sinks are evicted (256).", min=8)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be looked at. A mapping holds only what was chosen."""

    model: str | None = None
    load: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, int] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    as_json: bool = False
    plot: Path | None = None
    color: ColorChoice = "auto"


class Lab(Protocol):
    """Where models are."""

    def start(self, asked: Asked, text: str, progress: Progress) -> "Started": ...


class RealLab:
    """Loads torch, at the first use."""

    def start(self, asked: Asked, text: str, progress: Progress) -> "Started":
        progress("starting")
        from sinkchat.lab.attention.start import Plan, start_attention
        from sinkchat.models.sources import DEFAULT_MODEL

        name = DEFAULT_MODEL if asked.model is None else asked.model
        return start_attention(name, asked.load, Plan(**asked.plan), text, progress=progress)


REAL = RealLab()


def attention(
    context: typer.Context,
    model: Annotated[str | None, options.Model] = None,
    text: Annotated[list[str] | None, Texts] = None,
    length: Annotated[int | None, Length] = None,
    passages: Annotated[int | None, Passages] = None,
    sinks: Annotated[int | None, Sinks] = None,
    cache_size: Annotated[int | None, CacheSize] = None,
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
    environment = cast(Environment, context.obj.environment)
    chosen = {"length": length, "passages": passages, "sinks": sinks, "cache_size": cache_size}
    asked = Asked(
        model=model,
        load=load_options_for(options.typed(context, environment.variables)),
        plan={name: value for name, value in chosen.items() if value is not None},
        texts=tuple(text or ()),
        as_json=as_json,
        plot=plot,
        color=color or "auto",
    )
    return lambda: look(environment, asked)


def look(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Measures, and writes what was measured, however it ends."""
    if asked.plot is not None:
        from sinkchat.lab.plotting import check_plot

        check_plot(asked.plot)
    text = text_of(asked.texts, environment.stdin)
    beside = Beside.on(environment.stderr, environment)
    shares: Shares | None = None
    eviction: SinksEvicted | None = None
    notes: list[str] = []
    try:
        started = lab.start(asked, text, beside.status)
        for shares in started.shares:
            beside.status(f"{shares.passages:,} of {started.total:,} passages")
        beside.status("evicting the sinks")
        try:
            eviction = started.evict()
        except (CannotStream, InputError) as error:
            notes.append(f"no sinks were evicted: {error.message}")
    finally:
        beside.erase_status()
        if shares is not None:
            source = ", ".join(asked.texts) or BUILT_IN
            _tell(environment, asked, Report(started.model, source, shares, eviction, tuple(notes)))
    return ExitStatus.OK


def _tell(environment: Environment, asked: Asked, report: Report) -> None:
    if asked.as_json:
        write_json(asdict(report), environment.stdout)
    else:
        from sinkchat.terminal.lab.attention_map import write_report

        write_report(report, environment, asked.color)
    if asked.plot is not None:
        from sinkchat.lab.attention.plot import draw

        draw(report, asked.plot)
