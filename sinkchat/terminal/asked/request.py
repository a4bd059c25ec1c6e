"""What was asked for: options that were given, each in its range, with where it was typed.

Only what was given is handed on. What stands for the rest is decided where the defaults live: with the
model and in the option dataclasses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from sinkchat.chat.kept import Kept
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.past import Past
from sinkchat.chat.store import Store
from sinkchat.errors import UsageError
from sinkchat.terminal.app import RunOptions
from sinkchat.terminal.asked.settings import SETTINGS
from sinkchat.terminal.sanitize import visible

if TYPE_CHECKING:
    from sinkchat.parallel.link import Followers

QuantName: TypeAlias = Literal["auto", "none", "nf4", "nf4-dq", "fp4", "int8", "int4"]

LOAD_OPTIONS = ("quant", "dtype", "device", "revision", "offline", "trust_remote_code")
LOOKS = ("prompt", "fit", "interactive", "color", "panel", "markdown", "ascii", "vi", "stats", "raw")

RESUMED = "conversation"
"""the source of what the conversation that goes on was begun with"""

_RIVALS = (("system", "system_file"), ("quiet", "verbose"))
"""options of which only one can hold"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A value that was given.

    `typed` is the name it was given by, `source` where: `flag`, the variable, or `config.toml`.
    """

    value: Any
    typed: str
    source: str

    @property
    def rank(self) -> int:
        """The lower beats the higher: what was typed, a variable, the conversation that is resumed, a file."""
        if self.source.startswith("SINKCHAT_"):
            return 1
        return {"flag": 0, RESUMED: 2}.get(self.source, 3)


def settled(*layers: Mapping[str, Chosen]) -> dict[str, Chosen]:
    """What holds where several places chose: of one option, and of two that exclude each other, the first layer's."""
    chosen: dict[str, Chosen] = {}
    for layer in reversed(layers):
        chosen |= layer
    for one, other in _RIVALS:
        if one in chosen and other in chosen and chosen[one].rank != chosen[other].rank:
            del chosen[max(one, other, key=lambda name: chosen[name].rank)]
    return chosen


@dataclass(frozen=True, slots=True)
class Keeping:
    """Which conversation goes on, and whether it is kept; `session` names it."""

    session: str | None = None
    continues: bool = False
    keeps: bool = True

    def place(self, store: Store, *, is_talk: bool) -> Kept | None:
        """Where it is kept. What is no talk at the keyboard is kept only if it was named or goes on."""
        if self.session is not None:
            return Kept.resumed(store, self.session) if self.session in store else Kept.begun(store, self.session)
        if self.continues:
            return Kept.resumed(store)
        return Kept.begun(store) if is_talk and self.keeps else None


def keeping_for(chosen: Mapping[str, Chosen]) -> Keeping:
    """Which conversation was asked for. Raises UsageError for contradictions."""
    session, continues = _value(chosen, "session"), bool(_value(chosen, "continue_"))
    keeps = not _value(chosen, "no_save")
    if session is not None and continues:
        raise UsageError("--continue and --session are both given", hint="--session alone goes on with that one")
    if not keeps and (session is not None or continues):
        typed = "--session" if session is not None else "--continue"
        raise UsageError(f"{typed} goes on with what is saved, and --no-save saves nothing", hint="one of them")
    return Keeping(session, continues, keeps)


def resumed(past: Past | None) -> dict[str, Chosen]:
    """What the conversation that goes on was begun with."""
    if past is None:
        return {}
    memory = past.header.memory
    values: dict[str, Any] = {
        "model": past.header.source,
        "dtype": past.header.dtype,
        "evict": memory.evict,
        "policy": memory.policy,
        "sinks": "auto" if memory.sinks is None else str(memory.sinks),
    }
    if past.header.quant in get_args(QuantName):
        values["quant"] = past.header.quant
    if memory.cache_size is not None:
        values["cache_size"] = str(memory.cache_size)
    return {name: Chosen(value, f"the conversation's {name}", RESUMED) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Request:
    """The conversation that was asked for. A mapping holds only what was chosen; `sources` says by whom."""

    model: str | None
    load: Mapping[str, Any]
    memory: MemoryOptions
    chat: Mapping[str, Any]
    sources: Mapping[str, str]
    system: str | None
    kept: Kept | None = None
    followers: "Followers | None" = None
    """other processes that share the model"""


def request_for(chosen: Mapping[str, Chosen], *, kept: Kept | None = None) -> Request:
    """The conversation that these options ask for. Raises UsageError where one is out of its range."""
    answers = _answer_options(chosen)
    return Request(
        model=_model(_value(chosen, "model")),
        load=load_options_for(chosen),
        memory=MemoryOptions(**_memory_options(chosen)),
        chat=answers,
        sources={name: chosen[name].source for name in answers},
        system=_system_prompt(_value(chosen, "system"), _value(chosen, "system_file")),
        kept=kept,
    )


def run_options_for(chosen: Mapping[str, Chosen], *, accessible: bool) -> RunOptions:
    """How a person or a program wants to be spoken to; `accessible` where nothing of ours says so."""
    looks = _picked(chosen, LOOKS)
    for name, parameter in (("input", "input_form"), ("format", "output_form")):
        if parameter in chosen:
            looks[name] = chosen[parameter].value
    return RunOptions(
        **looks,
        history=not _value(chosen, "no_history"),
        verbosity="quiet" if _value(chosen, "quiet") else "verbose" if _value(chosen, "verbose") else "normal",
        accessible=bool(_value(chosen, "accessible")) if "accessible" in chosen else accessible,
    )


def processes_for(chosen: Mapping[str, Chosen]) -> int:
    """Among how many processes the model is to be shared. Raises UsageError for no such number."""
    given = chosen.get("processes")
    return 1 if given is None else _whole_number(given, at_least=1)


def load_options_for(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """The fields of `LoadOptions` that were given."""
    options = _picked(chosen, LOAD_OPTIONS)
    if (threads := chosen.get("threads")) is not None:
        options["threads"] = _whole_number(threads, at_least=1)
    if _value(chosen, "no_compile"):
        options["compile"] = False
    if (template := chosen.get("chat_template")) is not None:
        options["chat_template"] = Path(template.value)
    return options


def _value(chosen: Mapping[str, Chosen], name: str) -> Any:
    return chosen[name].value if name in chosen else None


def _picked(chosen: Mapping[str, Chosen], names: Sequence[str]) -> dict[str, Any]:
    return {name: chosen[name].value for name in names if name in chosen}


def _answer_options(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """The fields of `ChatOptions` that were given, each in its range."""
    options: dict[str, Any] = {}
    for one in SETTINGS:
        if (given := chosen.get(one.field)) is None:
            continue
        if one.field == "stop":
            options["stop"] = tuple(text for item in given.value for text in one.value_of(item, typed=given.typed))
        else:
            options[one.field] = one.value_of(given.value, typed=given.typed)
    return options


def _memory_options(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """The fields of `MemoryOptions` that were given."""
    options = _picked(chosen, ("evict", "policy"))
    if (size := chosen.get("cache_size")) is not None:
        options["cache_size"] = _whole_number(size, at_least=1)
    if (sinks := chosen.get("sinks")) is not None:
        options["sinks"] = None if sinks.value == "auto" else _whole_number(sinks, at_least=0, instead="auto or ")
    return options


def _whole_number(chosen: Chosen, *, at_least: int, instead: str = "") -> int:
    text = chosen.value
    if not (text.isascii() and text.isdecimal()) or int(text) < at_least:
        raise UsageError(f"{chosen.typed} is {chosen.value}; use {instead}a whole number from {at_least} up")
    return int(text)


def _model(name: str | None) -> str | None:
    """The name itself. Raises UsageError for a question that stands where the model belongs."""
    if name is not None and any(map(str.isspace, name)) and not Path(name).exists():
        raise UsageError(
            f"MODEL comes before PROMPT, and {visible(name)!r} is no model", hint=f'sinkchat run smollm2 "{name}"'
        )
    return name


def _system_prompt(text: str | None, file: str | None) -> str | None:
    if text is not None and file is not None:
        raise UsageError("--system and --system-file are both given", hint="one of them")
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise UsageError(f"--system-file {file}: {(error.strerror or str(error)).lower()}") from error
    return None if text is None else visible(text)
