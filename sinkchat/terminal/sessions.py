"""How `sessions list`, `show`, `export` and `rm` speak: what is kept of past conversations, and how it gets out.

No model is loaded for it. Of a damaged conversation, all that stands before the damage is shown and exported.
"""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sinkchat.chat.export import FORMS
from sinkchat.chat.journal import JournalDamaged
from sinkchat.chat.options import ModelCard
from sinkchat.chat.store import Store, Summary
from sinkchat.errors import ExitStatus, InputError, SinkchatError, UsageError
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.sanitize import one_line, visible
from sinkchat.terminal.screen import Beside, Screen
from sinkchat.terminal.table import write_json, write_table
from sinkchat.terminal.wording import memory_size, turn_numbers

if TYPE_CHECKING:
    from sinkchat.chat.past import Past
    from sinkchat.chat.transcript import Said

_LATEST_SHOWN = 3


def store_of(environment: Environment) -> Store:
    """The conversations that are kept in this environment."""
    return Store(environment.state_folder / "sessions")


def list_sessions(environment: Environment, *, as_json: bool) -> ExitStatus:
    """The conversations that are kept, a line each, the latest first."""
    summaries = store_of(environment).saved()
    if as_json:
        write_json([asdict(summary) for summary in summaries], environment.stdout)
    elif summaries:
        titles = ("conversation", "turns", "model", "last said", "on disk", "begins")
        write_table([titles, *map(_row, summaries)], environment.stdout, right=(1, 4))
    else:
        Beside.on(environment.stderr, environment).note("no conversation is saved yet: sinkchat run begins one")
    return ExitStatus.OK


def show_session(environment: Environment, name: str) -> ExitStatus:
    """What a conversation is, what it still remembers, and its latest turns."""
    store = store_of(environment)
    summary = store.summary(name)
    past = _past(store, name, Beside.on(environment.stderr, environment))
    write_table(_facts(summary, past), environment.stdout)
    conversation = _PastConversation(past)
    numbers = range(max(conversation.first, conversation.latest + 1 - _LATEST_SHOWN), conversation.latest + 1)
    for number in numbers:
        said = conversation.said(number)
        environment.stdout.write(f"\nturn {number}\n> {_short(said.user)}\n{_short(said.answer)}\n")
    return ExitStatus.OK


def export_session(environment: Environment, name: str, form: str) -> ExitStatus:
    """A conversation as `md`, `json` or `jsonl` on stdout, character by character, or visible on a terminal."""
    if (export := FORMS.get(f".{form}")) is None:
        raise UsageError(f"--format {one_line(form)}: use md, json or jsonl")
    past = _past(store_of(environment), name, Beside.on(environment.stderr, environment))
    stdout = environment.stdout
    is_seen = stdout.isatty()
    if isinstance(stdout, io.TextIOWrapper) and not is_seen:  # a file, which is read as UTF-8 everywhere
        stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    for piece in export(_PastConversation(past)):
        stdout.write(visible(piece) if is_seen else piece)
    return ExitStatus.OK


def remove_sessions(environment: Environment, names: Sequence[str]) -> ExitStatus:
    """Removes conversations, all or none where one of them is not there."""
    store, beside = store_of(environment), Beside.on(environment.stderr, environment)
    ids = list(dict.fromkeys(store.summary(name).id for name in names))
    for name in ids:
        store.remove(name)
        beside.note(f"{name} is removed")
    return ExitStatus.OK


def _past(store: Store, name: str, beside: Screen) -> "Past":
    """All that can be read of a conversation; what cannot is told."""
    from sinkchat.chat.past import read_past

    records = _UntilDamage(store.read(name))
    try:
        past = read_past(records)
    except SinkchatError as error:
        if (damage := records.damage) is None:
            raise
        hint = f"sinkchat sessions rm {name}"
        raise InputError(f"nothing can be read of {name}: {damage.message}", hint=hint) from error
    if records.damage is not None:
        beside.note(f"{records.damage.message}; what follows is left out")
    for note in past.notes:
        beside.note(note)
    return past


class _UntilDamage:
    """Records up to the first that cannot be read; `damage` says which that is."""

    def __init__(self, records: Iterator[dict[str, Any]]) -> None:
        self._records = records
        self.damage: JournalDamaged | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._records
        except JournalDamaged as damage:
            self.damage = damage


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int


@dataclass(frozen=True, slots=True)
class _PastConversation:
    """A conversation as an export sees it."""

    past: "Past"

    @property
    def card(self) -> ModelCard:
        header = self.past.header
        return ModelCard(header.model, header.quant, header.dtype, device="", max_length=None)

    @property
    def system(self) -> str | None:
        return self.past.system

    @property
    def first(self) -> int:
        return self.past.transcript.first

    @property
    def latest(self) -> int:
        transcript = self.past.transcript
        is_begun = transcript.count >= transcript.first
        last = transcript.said(transcript.count) if is_begun else None
        return transcript.count - (last is not None and not last.user and not last.answer)

    @property
    def held(self) -> "list[_Numbered]":
        """The turns of which the window holds something, and those that were not forgotten since."""
        outline = self.past.outline
        if outline is None:
            return []
        held = [turn.number for turn, after in pairwise(outline.turns) if after.start > outline.first]
        held += (turn.number for turn in outline.turns[-1:])
        return [_Numbered(number) for number in (*held, *range(outline.count + 1, self.latest + 1))]

    @property
    def pinned_turns(self) -> tuple[int, ...]:
        outline = self.past.outline
        return () if outline is None else tuple(turn.number for turn, _ in outline.pins)

    def said(self, turn: int) -> "Said":
        return self.past.transcript.said(turn)


def _row(summary: Summary) -> tuple[str, ...]:
    return (
        summary.id,
        f"{summary.turns:,}",
        summary.model or "?",
        _minute(summary.changed),
        memory_size(summary.nbytes),
        summary.title,
    )


def _minute(seconds: float) -> str:
    with suppress(OverflowError, OSError, ValueError):  # a clock that was never right
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    return "?"


def _facts(summary: Summary, past: "Past") -> list[tuple[str, ...]]:
    header, memory = past.header, past.header.memory
    conversation = _PastConversation(past)
    cache = "cache size not said" if memory.cache_size is None else f"cache {memory.cache_size:,} tokens"
    sinks = "sinks auto" if memory.sinks is None else f"{memory.sinks:,} sinks"
    remembered = sorted({*(turn.number for turn in conversation.held), *conversation.pinned_turns})
    lost = conversation.first - 1
    return [
        ("conversation", summary.id),
        ("model", f"{header.model}, {header.quant}, {header.dtype}"),
        ("memory", f"{cache}, {sinks}, evict {memory.evict}, policy {memory.policy}"),
        ("system", "what the model's template says" if past.system is None else _short(past.system)),
        ("begun", header.created),
        ("last said", _minute(summary.changed)),
        ("turns", f"{conversation.latest:,}" + (f", the first {lost:,} are not kept any more" if lost else "")),
        ("remembers", turn_numbers(remembered) if remembered else "nothing"),
        ("on disk", memory_size(summary.nbytes)),
    ]


def _short(text: str) -> str:
    line = one_line(text[:1000])
    return line if len(line) <= 200 else f"{line[:199]}…"
