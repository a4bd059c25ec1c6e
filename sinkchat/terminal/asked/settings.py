"""The names and the limits of what a person sets about an answer.

One table, used by the command line, by the environment variables and by `/set`, so that a value means the
same wherever it was typed. Defaults are not here: they are those of `ChatOptions`.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sinkchat.chat.options import ChatOptions
from sinkchat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of `ChatOptions`: how it is typed, and what it may be."""

    field: str
    meaning: str
    parse: Callable[[str], Any]
    allows: Callable[[Any], bool]
    range: str

    @property
    def name(self) -> str:
        """As typed: `top-p`."""
        return self.field.replace("_", "-")

    def value_of(self, text: str, *, typed: str | None = None) -> Any:
        """The value that `text` stands for. `typed` is how the name was typed. Raises UsageError."""
        refused = UsageError(f"{typed or self.name} is {text or 'empty'}; use {self.range}")
        try:
            value = self.parse(text)
        except ValueError:
            raise refused from None
        if not self.allows(value):
            raise refused
        return value


def _finite(test: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: math.isfinite(value) and test(value)


def _seed(text: str) -> int | None:
    return None if text == "none" else int(text)


def _stop_texts(text: str) -> tuple[str, ...]:
    return () if text == "none" else (text,)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "temperature", "how freely words are drawn; 0 is greedy", float,
        _finite(lambda value: value >= 0), "a number from 0 up",
    ),
    Setting(
        "top_p", "draw from the likeliest words with this probability in all", float,
        _finite(lambda value: 0 < value <= 1), "a number above 0, up to 1",
    ),
    Setting(
        "top_k", "draw from this many likeliest words; 0 is off", int,
        lambda value: value >= 0, "a whole number from 0 up",
    ),
    Setting(
        "min_p", "drop words less likely than this share of the likeliest", float,
        _finite(lambda value: 0 <= value <= 1), "a number from 0 to 1",
    ),
    Setting(
        "repetition_penalty", "above 1 makes repeating less likely", float,
        _finite(lambda value: value > 0), "a number above 0",
    ),
    Setting(
        "seed", "the same seed draws the same words; none is a new one each time", _seed,
        lambda value: value is None or 0 <= value < 2**63, "a whole number from 0 up, or none",
    ),
    Setting(
        "max_tokens", "longest answer; 0 sets no limit", int,
        lambda value: value >= 0, "a whole number from 0 up",
    ),
    Setting(
        "stop", "end the answer before this text; none is off", _stop_texts,
        lambda value: all(value), "a text that is not empty, or none",
    ),
)  # fmt: skip


def setting(name: str) -> Setting:
    """The setting of that name, typed with hyphens or underscores."""
    wanted = name.lower().replace("_", "-")
    for candidate in SETTINGS:
        if candidate.name == wanted:
            return candidate
    names = [candidate.name for candidate in SETTINGS]
    near = difflib.get_close_matches(wanted, names, n=1)
    instead = f", did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
    raise UsageError(f"unknown setting {name}{instead}")


def changed(options: ChatOptions, name: str, text: str) -> ChatOptions:
    """The options with one value typed anew."""
    chosen = setting(name)
    return replace(options, **{chosen.field: chosen.value_of(text)})


def listed(options: ChatOptions, sources: Mapping[str, str]) -> list[str]:
    """A line for each setting: its name, its value, where that came from."""
    return [
        f"{one.name:<20}{shown(getattr(options, one.field)):<12}  {sources.get(one.field, 'built-in')}"
        for one in SETTINGS
    ]


def shown(value: object) -> str:
    """A value as it would be typed."""
    if isinstance(value, tuple):
        return ", ".join(repr(text) for text in value) or "none"
    return "none" if value is None else str(value)
