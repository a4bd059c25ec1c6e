"""How the options of measurements are typed, and what they share with `run`.

Where options are read: beside each command. None that is listed here has a variable: a figure belongs to one command,
and what it was measured with stands there. Which model is measured and how it is loaded is another matter: that comes
from the same places as for `run`, variables and `config.toml` among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import typer

from sinkchat.errors import UsageError
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.config import Key, read_config
from sinkchat.terminal.asked.request import LOAD_OPTIONS, Chosen, load_options_for, settled
from sinkchat.terminal.environment import Environment

MEASURING = "Measuring"

_FROM_CONFIG = ("model", *LOAD_OPTIONS, "threads", "no_compile", "color")
"""options whose values in config.toml hold for measurements too; its `cache-size` is that of a chat"""


def measuring(names: str, metavar: str | None, meaning: str, **settings: Any) -> Any:
    """An option that only measurements take. `settings` are typer's own, such as `min`."""
    return typer.Option(
        *names.split("/"),
        metavar=metavar,
        rich_help_panel=MEASURING,
        help=meaning,
        show_default=False,
        show_envvar=False,
        **settings,
    )


Plot = measuring("--plot", "FILE", "Draw the figures into a .png, .pdf or .svg file.")
Text = measuring("--text", "FILE", "Read this text; - is stdin.")


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is measured: by which name, and what was chosen of how it is loaded."""

    model: str | None = None
    load: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What was named, else the default model."""
        from sinkchat.models.sources import DEFAULT_MODEL

        return DEFAULT_MODEL if self.model is None else self.model


class World(Protocol):
    """What a command is handed over: where it runs, and the keys that `config.toml` may have."""

    @property
    def environment(self) -> Environment: ...

    @property
    def keys(self) -> tuple[Key, ...]: ...


def environment_of(context: typer.Context) -> Environment:
    return cast(World, context.obj).environment


def chosen_for(context: typer.Context) -> dict[str, Chosen]:
    """What was given on the command line, in a variable or in config.toml, by the name of the parameter."""
    world = cast(World, context.obj)
    written = read_config(world.environment.config_folder, world.keys)
    known = {name: given for name, given in written.items() if name in _FROM_CONFIG and name in context.params}
    return settled(options.typed(context, world.environment.variables), known)


def subject_for(chosen: Mapping[str, Chosen]) -> Subject:
    return Subject(chosen["model"].value if "model" in chosen else None, load_options_for(chosen))


def whole_numbers(option: str, texts: list[str] | None, *, at_least: int, example: str) -> tuple[int, ...]:
    """`--sinks 0,1 --sinks 4` as numbers, each once, as they were given. Raises UsageError for anything else."""
    hint = f"{option} {example}"
    return tuple(_whole(option, word, at_least, hint) for word in words(texts))


def whole_number(option: str, word: str | None, *, at_least: int, hint: str = "") -> int | None:
    """The number that was typed, None where none was. Raises UsageError for anything else."""
    return None if word is None else _whole(option, word, at_least, hint)


def _whole(option: str, word: str, at_least: int, hint: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 16) or int(word) < at_least:
        raise UsageError(
            f"{option} {word or '(nothing)'} is not a whole number from {at_least} up",
            hint=hint or f"a whole number from {at_least} up",
        )
    return int(word)


def given(**values: Any) -> dict[str, Any]:
    """Those that were given: what stands for the others is written where the defaults live."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def words(texts: list[str] | None) -> tuple[str, ...]:
    """`a,b` and `c` as a, b and c, each once."""
    return tuple(dict.fromkeys(word.strip() for text in texts or () for word in text.split(",")))
