"""`config.toml`: options that a person wants to be given each time.

A flat TOML file in the platform's folder for configuration. Its keys are the names of the options of `run`, with
hyphens or underscores; what each may be is asked of the command itself, so there is no second list of options to
keep. The values go the way of those that were typed, and are refused in the same words.
"""

import difflib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sinkchat.errors import UsageError
from sinkchat.terminal.asked.request import Chosen

CONFIG_FILE = "config.toml"

_PER_CALL = {
    "prompt": "PROMPT",
    "input": "--input",
    "format": "--format",
    "interactive": "--interactive",
    "continue": "--continue",
    "session": "--session",
}
"""what belongs to one call, as a key and as it is typed"""

_FILES = ("system-file", "chat-template")
"""keys whose value is a path: a relative one is looked for beside config.toml"""


@dataclass(frozen=True, slots=True)
class Key:
    """One option of a command as a key of the file."""

    name: str
    """with hyphens"""
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    is_list: bool = False

    @property
    def parameter(self) -> str:
        return self.name.replace("-", "_")

    @property
    def typed(self) -> str:
        """How the key is named in an error."""
        return f"{CONFIG_FILE}: {self.name}"


def keys_of(command: Callable[..., Any]) -> tuple[Key, ...]:
    """The keys that the parameters of `command` make; what belongs to one call is none of them."""
    hints = {name: hint for name, hint in get_type_hints(command).items() if name not in ("context", "return")}
    keys = (_key(name.strip("_").replace("_", "-"), hint) for name, hint in hints.items())
    return tuple(key for key in keys if key.name not in _PER_CALL and not key.name.endswith("-form"))


def _key(name: str, hint: Any) -> Key:
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return Key(name, choices=get_args(hint))
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return Key(name, choices, is_flag=hint is bool, is_list=any(get_origin(kind) is list for kind in kinds))


def read_config(folder: Path, keys: Iterable[Key]) -> dict[str, Chosen]:
    """What the file in `folder` chooses, by the name of the parameter; nothing where there is no file.

    Raises UsageError for a file that cannot be read, is not TOML, or has a key or a kind of value that cannot be
    meant. Numbers are not looked at: they are checked with those that were typed.
    """
    path = folder / CONFIG_FILE
    known = {key.name: key for key in keys}
    chosen: dict[str, Chosen] = {}
    for word, value in _table(path).items():
        key = _known(path, word, value, known)
        if key.parameter in chosen:
            raise UsageError(f"{path}: {key.name} is given twice", hint="one of the two")
        chosen[key.parameter] = Chosen(_value(key, value, folder), key.typed, CONFIG_FILE)
    return chosen


def _table(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}", hint=f"chmod u+r {path}"
        ) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text, {_place(content[: error.start].decode('utf-8'))}", hint="save it as UTF-8"
        ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).rpartition(" (at ")
        place = where.rstrip(")") if where.startswith("line") else _place(text)
        raise UsageError(
            f"{path} is not TOML, {place}: {what[:1].lower()}{what[1:]}", hint="lines such as cache-size = 512"
        ) from error


def _place(before: str) -> str:
    """The line and column that come after this text."""
    lines = before.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"


def _known(path: Path, word: str, value: object, known: dict[str, Key]) -> Key:
    name = word.replace("_", "-")
    if name in _PER_CALL or name.endswith("-form"):
        typed = _PER_CALL.get(name) or _PER_CALL["format" if name.startswith("output") else "input"]
        raise UsageError(
            f"{path}: {word} belongs to one call, not into {CONFIG_FILE}", hint=f"{typed} where it is meant"
        )
    if name in known:
        return known[name]
    if isinstance(value, dict):
        raise UsageError(f"{path}: [{word}] is a table, and options stand at the top", hint="cache-size = 512")
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"{path}: there is no option {word}" + (f", did you mean {near[0]}?" if near else ""),
        hint="sinkchat run --help lists the names",
    )


def _value(key: Key, value: object, folder: Path) -> Any:
    """The value as the parser of the command line would have handed it on."""
    if key.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{key.typed} is {_shown(value)}; use true or false")
        return value
    if key.is_list:
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{key.typed} is {_shown(value)}; use a text or a list of texts")
        return texts
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"{key.typed} is {_shown(value)}; use one number or one text")
    text = str(value)
    if key.choices and text not in key.choices:
        raise UsageError(
            f"invalid value for '{key.typed}': {text!r} is not one of {', '.join(map(repr, key.choices))}",
            hint="sinkchat run --help",
        )
    return str(folder / Path(text).expanduser()) if key.name in _FILES else text


def _shown(value: object) -> str:
    """A value about as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    return re.sub(r"\s+", " ", repr(value)) if isinstance(value, (str, list)) else str(value)
