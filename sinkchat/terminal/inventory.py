"""How `list`, `show` and `pull` speak: stdout carries the data, in columns or as JSON, without colour."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sinkchat.errors import ExitStatus
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.sanitize import one_line, visible
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.table import write_json, write_table
from sinkchat.terminal.wording import memory_size

if TYPE_CHECKING:
    from sinkchat.models.description import Cost, Description, Way
    from sinkchat.models.inventory import KeptModel

_FITS = {True: "fits", False: "too much", None: "not known"}


def list_models(environment: Environment, *, as_json: bool) -> ExitStatus:
    """The models on this machine, a line each."""
    from sinkchat.models.inventory import kept_models

    models = kept_models()
    if as_json:
        write_json([asdict(model) for model in models], environment.stdout)
    elif models:
        titles = ("model", "family", "parameters", "on disk", "quant", "template", "last used")
        write_table([titles, *map(_model_row, models)], environment.stdout, right=(2, 3))
    else:
        Beside.on(environment.stderr, environment).note("no chat model is here yet: sinkchat run fetches one")
    return ExitStatus.OK


def pull_model(environment: Environment, name: str, fetching: Mapping[str, Any]) -> ExitStatus:
    """Fetches a model if need be, and writes where it lies. `fetching` has the fields of `Fetching`."""
    from sinkchat.models.sources import Fetching, find_source

    with _progress(environment) as progress:
        located = find_source(name).locate(Fetching(**fetching), progress=progress)
    environment.stdout.write(f"{visible(str(located.path))}\n")
    return ExitStatus.OK


def show_model(environment: Environment, name: str, load: Mapping[str, Any], *, as_json: bool) -> ExitStatus:
    """What a model is, how it is spoken to, what it costs. `load` has the fields of `LoadOptions` that were given."""
    from sinkchat.chat.options import DEFAULT_CACHE_SIZE
    from sinkchat.chat.template_report import template_report
    from sinkchat.models.description import describe
    from sinkchat.models.loading import LoadOptions

    with _progress(environment) as progress:
        model, tokenizer = describe(name, LoadOptions(**load), cache_size=DEFAULT_CACHE_SIZE, progress=progress)
        template, notices = template_report(tokenizer)
    if as_json:
        write_json(asdict(model) | {"template": template, "notices": notices}, environment.stdout)
    else:
        _describe(model, template, notices, environment.stdout)
    return ExitStatus.OK


@contextmanager
def _progress(environment: Environment) -> Iterator[Callable[[str], None]]:
    """Sentences on stderr that take each other's place, and are gone at the end."""
    beside = Beside.on(environment.stderr, environment)
    try:
        yield beside.status
    finally:
        beside.erase_status()


def _model_row(model: "KeptModel") -> tuple[str, ...]:
    return (
        _home_as_tilde(model.name),
        model.family,
        "?" if model.parameters is None else _count(model.parameters),
        memory_size(model.nbytes),
        model.quantization,
        "yes" if model.has_template else "no",
        time.strftime("%Y-%m-%d", time.localtime(model.last_used)),
    )


def _home_as_tilde(name: str) -> str:
    home = f"{Path.home()}/"
    return f"~/{name.removeprefix(home)}" if name.startswith(home) else name


def _count(number: int) -> str:
    """`135 M`, `6.74 B`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _describe(model: "Description", template: str, notices: Iterable[str], stdout: TextIO) -> None:
    write_table(_facts(model, template), stdout)
    for notice in notices:
        stdout.write(f"note: {one_line(notice)}\n")
    free = "" if model.free is None else f", {memory_size(model.free)} free"
    stdout.write(f"\nweights on {model.device}{free}, with keys and values of {model.cache_size:,} tokens\n")
    write_table(_ways(model.weights), stdout, right=(1, 2, 4, 5))
    if model.measured_on:
        stdout.write(f"speeds as multiples of bfloat16's, measured with {model.measured_on}\n")
    for places in dict.fromkeys(way.places for way in model.weights if len(way.places) > 1 and not way.obstacle):
        stdout.write(f"spread: --device auto fills {', '.join(places[:-1])}, then {places[-1]}\n")
    for way in model.weights:
        if way.obstacle:
            stdout.write(f"note: {one_line(way.obstacle)}\n")
    beside = model.weights[0].choice
    weights = "whole weights" if beside == "none" else f"{beside} weights"
    stdout.write(f"\ncache in {model.dtype}, beside {weights}\n")
    write_table([_cost_row("--cache-size", cost) for cost in model.caches], stdout, right=(1,))


def _ways(ways: Sequence["Way"]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "weights", "cache", "here", "writes", "reads", "")]
    for way in ways:
        here = "not here" if way.obstacle else "spread" if len(way.places) > 1 else _FITS[way.fits]
        sizes = ("?" if size is None else memory_size(size) for size in (way.nbytes, way.kv_nbytes))
        speeds = ("" if speed is None else f"{speed:.1f}" for speed in (way.writes, way.reads))
        rows.append((f"--quant {way.choice}", *sizes, here, *speeds, "auto" if way.is_auto else ""))
    return rows


def _facts(model: "Description", template: str) -> list[tuple[str, ...]]:
    kv = model.kv_bytes_per_token
    heads = [f"{model.layers} layers"]
    if model.heads is not None:
        heads.append(f"{model.heads} heads")
    if model.kv_heads:
        heads.append(f"{_each(model.kv_heads)} KV heads of {_each(model.head_dim)}")
    return [
        ("model", model.name),
        ("path", _home_as_tilde(str(model.path))),
        ("family", f"{model.family}, {_count(model.parameters)} parameters"),
        ("attention", ", ".join(heads)),
        ("trained on", "not said" if model.trained is None else f"{model.trained:,} positions"),
        ("window", "none: every layer sees all" if model.window is None else f"{model.window:,} in every layer"),
        ("processes", _processes(model.processes)),
        ("stored", "whole weights" if model.stored == "none" else f"{model.stored} weights"),
        ("template", template),
        ("KV per token", "not known before it is loaded" if kv is None else f"{kv:,} bytes in {model.dtype}"),
    ]


def _processes(counts: Sequence[int] | None) -> str:
    """What `--processes` may be."""
    if counts is None:
        return "any number can share it (--processes)"
    if len(counts) == 1:
        return "one: it cannot be shared"
    *several, last = counts[1:]
    return f"{', '.join(map(str, several))}{' or ' if several else ''}{last} can share it (--processes)"


def _each(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


def _cost_row(option: str, cost: "Cost") -> tuple[str, ...]:
    size = "?" if cost.nbytes is None else memory_size(cost.nbytes)
    return f"{option} {cost.choice}", size, _FITS[cost.fits]
