"""A conversation as its records tell it: what was said, and what memory held after the last whole turn.

Records are what happened, in its order; here they happen again, without a model. The last thing may have been cut
off: a turn whose answer never ended, a change that was not finished. What was said then is kept, and told apart.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from sinkchat.chat.journal import FORMAT
from sinkchat.chat.options import ChatOptions, MemoryOptions
from sinkchat.chat.outline import Outline, OutlineMismatch
from sinkchat.chat.transcript import Transcript
from sinkchat.errors import SinkchatError

_MOST_LOST = 100_000
"""turns that may be missing between two records: more is no gap but a mistake"""

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Header:
    """How a conversation began."""

    id: str
    created: str
    model: str
    source: str
    """what stands for the model when it is to be loaded"""
    quant: str
    dtype: str
    memory: MemoryOptions


@dataclass(frozen=True, slots=True)
class Past:
    """A conversation up to its last record."""

    header: Header
    system: str | None
    options: Mapping[str, Any]
    """fields of `ChatOptions` that were changed"""
    transcript: Transcript
    """all that was said; turns after `whole` were cut"""
    whole: int
    """the number of the latest turn whose end is recorded"""
    outline: Outline | None
    """what memory held when that was recorded; None: it cannot be known"""
    added: str
    """what was said since in a whole turn's answer, which went on and was cut"""
    notes: tuple[str, ...]
    """sentences about records that could not be used"""


@dataclass(slots=True)
class _Story:
    """What can be cleared, and be had back."""

    system: str | None = None
    transcript: Transcript | None = None
    outline: Outline | None = field(default_factory=Outline)
    whole: int = 0
    added: str = ""


class _Replay:
    """Lets records happen again. One method for each kind, named as that is."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.options: dict[str, Any] = {}
        self.notes: dict[str, None] = {}
        self.story = _Story()
        self.new_system: str | None = None
        self._cleared: _Story | None = None
        self._written: Outline | None = None  # what the next difference starts from
        self._kinds: dict[str, Callable[[Record], None]] = {
            "begin": self._begin,
            "turn": self._turn,
            "user": self._user,
            "answer": self._answer,
            "keep": self._keep,
            "clear": self._clear,
            "unclear": self._unclear,
            "system": self._system,
            "options": self._options,
            "settled": self._settled,
        }

    def happen(self, record: Record) -> None:
        kind = record.get("op")
        if kind not in self._kinds:
            self.notes[f"records of an unknown kind, {str(kind)[:40]!r}, were passed over"] = None
            return
        try:
            self._kinds[kind](record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self.notes[f"a record of the kind {kind!r} does not say what it must, and was passed over"] = None

    @property
    def transcript(self) -> Transcript:
        if self.story.transcript is None:
            self.story.transcript = Transcript()
        return self.story.transcript

    def _begin(self, record: Record) -> None:
        if record["format"] > FORMAT:
            raise SinkchatError(
                f"this conversation was kept by a newer sinkchat: its format is {record['format']}, "
                f"and this one reads {FORMAT}",
                hint="pip install --upgrade sinkchat",
            )
        model, memory = record["model"], record["memory"]
        known = {each.name: memory[each.name] for each in fields(MemoryOptions) if each.name in memory}
        is_first = self.header is None
        self.header = Header(
            id=record["id"],
            created=str(record["created"]),
            model=model["name"],
            source=str(model.get("source", model["name"])),
            quant=model["quant"],
            dtype=model["dtype"],
            memory=MemoryOptions(**known),
        )
        self.new_system = record["system"]
        if is_first:
            self.story.system = self.new_system
            if before := int(record.get("turns", 0)):  # told by parts of the journal that are not kept any more
                self.story.transcript, self.story.whole = Transcript(first=before + 1), before
        self._written = None  # the part of a journal that begins here can be read alone

    def _turn(self, record: Record) -> None:
        number = int(record["number"])
        if number < 1:
            raise ValueError(number)
        if self.story.transcript is None:
            self.story.whole = number - 1
        else:
            self._take_back(number - 1)
        self._reach(number - 1)
        self.transcript.begin()
        self._cleared = None

    def _user(self, record: Record) -> None:
        text = str(record["text"])
        if self._is_open:
            self.transcript.add_user(text)

    def _answer(self, record: Record) -> None:
        text = str(record["text"])
        if self.transcript.count >= self.transcript.first:
            self.transcript.add_answer(text)
            self.story.added += "" if self._is_open else text

    @property
    def _is_open(self) -> bool:
        """Whether a turn has begun since the last whole one."""
        return self.transcript.count > max(self.story.whole, self.transcript.first - 1)

    def _keep(self, record: Record) -> None:
        self._take_back(max(0, int(record["count"])))

    def _take_back(self, count: int) -> None:
        if count < self.transcript.count:
            self.transcript.keep(count)
            self.story.added = ""
        self.story.whole = min(self.story.whole, count)

    def _clear(self, _: Record) -> None:
        self._cleared = self.story
        self.story = _Story(system=self.story.system, transcript=Transcript())

    def _unclear(self, _: Record) -> None:
        if self._cleared is not None:
            self.story, self._cleared = self._cleared, None
            self.new_system = self.story.system

    def _system(self, record: Record) -> None:
        text = record["text"]
        if text is not None and not isinstance(text, str):
            raise TypeError(text)
        self.new_system = text
        if self.story.outline is not None and not self.story.outline.count:
            self.story.system = text

    def _options(self, record: Record) -> None:
        names = {each.name for each in fields(ChatOptions)} & record.keys()
        changed = {name: record[name] for name in names}
        if "stop" in changed:
            changed["stop"] = tuple(changed["stop"])
        self.options |= changed

    def _settled(self, record: Record) -> None:
        story, before = self.story, self.story.outline
        try:
            story.outline = self._written = Outline.from_difference(record, self._written)
        except OutlineMismatch:
            story.outline = self._written = None
        story.system = self.new_system
        if story.outline is None:
            story.whole = self.transcript.count
        elif story.outline != before:  # else it repeats, at the beginning of a part, what was so before
            story.whole = story.outline.count
            story.added = ""
            self._reach(story.whole)

    def _reach(self, count: int) -> None:
        """Makes the transcript hold so many turns: of those that no record tells of, nothing is known."""
        if self.story.transcript is None or count > self.transcript.count + _MOST_LOST:
            self.story.transcript = Transcript(first=count + 1)
        while self.transcript.count < count:
            self.transcript.begin()


def read_past(records: Iterable[Record]) -> Past:
    """Lets all records happen again. Raises SinkchatError where their beginning is missing, or too new."""
    replay = _Replay()
    for record in records:
        replay.happen(record)
    if replay.header is None:
        raise SinkchatError(
            "this conversation has no beginning: its first record is missing", hint="sinkchat sessions list"
        )
    story = replay.story
    return Past(
        header=replay.header,
        system=story.system,
        options=replay.options,
        transcript=replay.transcript,
        whole=story.whole,
        outline=story.outline,
        added=story.added,
        notes=tuple(replay.notes),
    )
