"""A conversation is written down while it happens, so that it outlasts the process.

What is said goes to the journal word by word, an answer once a second; what has become of memory follows when a
turn or a change is complete, and from then on it is certain. Nothing here decides what a conversation is: transcript
and session tell what happens, the keeper knows where it is kept, and where keeping fails the conversation goes on.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sinkchat.chat.journal import FORMAT
from sinkchat.chat.options import MemoryOptions, ModelCard

if TYPE_CHECKING:
    from sinkchat.chat.outline import Outline
    from sinkchat.chat.saved import Keeper

ANSWER_SECONDS = 1.0
"""how much of an answer may be lost with the process"""


class Recorder(Protocol):
    """Hears what happens in a conversation."""

    def turn(self, number: int) -> None: ...
    def user(self, text: str) -> None: ...
    def answer(self, text: str) -> None: ...
    def keep(self, count: int) -> None:
        """The turns after the first `count` were taken back."""
        ...

    def clear(self) -> None: ...
    def unclear(self) -> None: ...
    def system(self, text: str | None) -> None: ...
    def options(self, changed: Mapping[str, Any]) -> None: ...
    def settled(self, outline: "Callable[[], Outline]") -> None:
        """A turn or a change is complete, and memory is as the outline says."""
        ...

    def news(self) -> str:
        """What a person should hear about the keeping, once."""
        ...


class NoRecorder:
    """Nobody writes anything down."""

    def turn(self, number: int) -> None: ...
    def user(self, text: str) -> None: ...
    def answer(self, text: str) -> None: ...
    def keep(self, count: int) -> None: ...
    def clear(self) -> None: ...
    def unclear(self) -> None: ...
    def system(self, text: str | None) -> None: ...
    def options(self, changed: Mapping[str, Any]) -> None: ...
    def settled(self, outline: "Callable[[], Outline]") -> None: ...

    def news(self) -> str:
        return ""


NOBODY = NoRecorder()


class JournalRecorder:
    """Writes to `keeper`. `begin` is the record that a part of the journal begins with."""

    def __init__(self, keeper: "Keeper", begin: Mapping[str, Any], *, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._begin = dict(begin)
        self._clock = clock
        self._said = ""
        self._said_at = clock()
        self._outline: Outline | None = None
        self._told: str | None = None
        keeper.append(self._begin)

    def turn(self, number: int) -> None:
        self._append({"op": "turn", "number": number})

    def user(self, text: str) -> None:
        self._append({"op": "user", "text": text})

    def answer(self, text: str) -> None:
        self._said += text
        if self._clock() - self._said_at >= ANSWER_SECONDS:
            self._write_answer()

    def keep(self, count: int) -> None:
        self._append({"op": "keep", "count": count})

    def clear(self) -> None:
        self._append({"op": "clear"})

    def unclear(self) -> None:
        self._append({"op": "unclear"})

    def system(self, text: str | None) -> None:
        self._begin["system"] = text
        self._append({"op": "system", "text": text})

    def options(self, changed: Mapping[str, Any]) -> None:
        if changed:
            self._append({"op": "options", **changed})

    def settled(self, outline: "Callable[[], Outline]") -> None:
        now = outline()
        self._append({"op": "settled", **now.difference(self._outline)})
        self._outline = now
        if self._keeper.is_part_due:
            self._keeper.begin_part(self._begin, {"op": "settled", **now.difference()})
        self._keeper.settle()

    def news(self) -> str:
        """That keeping fails, or works again: when it changes."""
        failure = self._keeper.failure
        if failure == self._told:
            return ""
        self._told = failure
        return f"this conversation is not being saved: {failure}" if failure else "this conversation is saved again"

    def _append(self, record: Mapping[str, Any]) -> None:
        self._write_answer()
        self._keeper.append(record)

    def _write_answer(self) -> None:
        if self._said:
            self._keeper.append({"op": "answer", "text": self._said})
        self._said, self._said_at = "", self._clock()


def beginning(
    name: str, card: ModelCard, memory: MemoryOptions, *, system: str | None, source: str, now: str
) -> dict[str, Any]:
    """The record that a journal begins with. `source` is what stands for the model when it is loaded again."""
    return {
        "op": "begin",
        "format": FORMAT,
        "id": name,
        "created": now,
        "model": {"name": card.name, "source": source, "quant": card.quant, "dtype": card.dtype},
        "memory": {
            "cache_size": memory.cache_size,
            "sinks": memory.sinks,
            "evict": memory.evict,
            "policy": memory.policy,
        },
        "system": system,
    }
