"""A real session whose every turn and change becomes records, as the program keeps them."""

from collections.abc import Callable, Iterator
from typing import Any

from test_session import ended, stop_at

from sinkchat.chat.events import Event, TextDelta
from sinkchat.chat.outline import Outline
from sinkchat.chat.past import Past, read_past
from sinkchat.chat.session import ChatSession
from sinkchat.chat.snapshot import SavedMemory, Unusable

NONE = Unusable("there is no saved memory")


class Kept:
    """A session with its records, written by hand where the program has a recorder."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session
        card = session.card
        self.records: list[dict[str, Any]] = [
            {
                "op": "begin",
                "format": 1,
                "id": "test",
                "created": "2026-11-29T21:30:00Z",
                "model": {"name": card.name, "quant": card.quant, "dtype": card.dtype},
                "memory": {"cache_size": session.state.capacity, "sinks": None, "evict": "turn", "policy": "sink"},
                "system": session.system,
            }
        ]
        self._settled = Outline()

    def send(self, text: str, *, stopped_after: int | None = None) -> None:
        if stopped_after is None:
            ended(self.session, text)
        else:
            stop_at(self.session, text, TextDelta, stopped_after)
        said = self.session.said(self.session.latest)
        self.add("turn", number=self.session.latest)
        self.add("user", text=said.user)
        self.add("answer", text=said.answer)
        self.settle()

    def proceed(self) -> None:
        added = list(self.session.proceed())[-1].text
        self.add("answer", text=added)
        self.settle()

    def undo(self, turn: int | None = None) -> None:
        had_cleared = turn is None and self.records[-2]["op"] == "clear"
        list(self.session.undo(turn).events)
        if had_cleared:
            self.add("unclear")
        else:
            self.add("keep", count=self.session.latest)
        self.settle()

    def clear(self) -> None:
        self.session.clear()
        self.add("clear")
        self.settle()

    def change(self, change: Any) -> None:
        list(change.events)
        self.settle()

    def system(self, text: str | None) -> None:
        list(self.session.change_system(text).events)
        self.add("system", text=text)
        self.settle()

    def add(self, op: str, **fields: Any) -> None:
        self.records.append({"op": op, **fields})

    def settle(self) -> None:
        outline = self.session.outline
        self.add("settled", **outline.difference(self._settled))
        self._settled = outline

    @property
    def past(self) -> Past:
        return read_past(self.records)


def resumed(past: Past, session: ChatSession, saved: SavedMemory | Unusable = NONE) -> list[Event]:
    return list(session.resume(past, saved))


def talked(make: Callable[[], ChatSession], count: int) -> Kept:
    kept = Kept(make())
    for index in range(1, count + 1):
        kept.send(f"message {index}")
    return kept


def all_said(session: ChatSession) -> Iterator[tuple[str, str]]:
    for number in range(1, session.latest + 1):
        said = session.said(number)
        yield said.user, said.answer
