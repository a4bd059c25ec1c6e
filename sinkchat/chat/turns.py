"""Which turns are still remembered: places in the stream, told in the words of the person's own turns.

A turn runs from its first token to the first of the next. It is gone when the window holds no token of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import Evicted, TurnRest

PREVIEW = 80
"""characters of a message that are kept to name it by"""

FORGOTTEN_KEPT = 1_000
"""forgotten turns that are still listed: a chat that never ends must not grow by a list"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: `tokens` that can be forgotten (those pinned cannot), `left` of them still held.

    `user` and `answer` are the beginnings of what was said, to name it by.
    """

    number: int
    user: str
    answer: str
    tokens: int
    left: int


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    start: int
    user: str = ""
    answer: str = ""


class TurnLedger:
    """Where each turn began. What is left of it follows from the cache's state."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self.count = 0
        """turns since the conversation began"""

    def begin(self, start: int) -> int:
        """A turn begins with token `start` of the stream; its number, from 1."""
        self.count += 1
        self._entries.append(_Entry(self.count, start))
        return self.count

    def cancel(self) -> None:
        """Takes the latest turn back."""
        self._entries.pop()
        self.count -= 1

    def name(self, *, user: str = "", answer: str = "") -> None:
        """Names the latest turn by what was said in it; an empty word changes nothing."""
        entry = self._entries[-1]
        self._entries[-1] = replace(entry, user=shorten(user) or entry.user, answer=shorten(answer) or entry.answer)

    def turns(self, state: CacheState) -> list[Turn]:
        """All turns, oldest first, measured against what the cache holds."""
        return [
            Turn(entry.number, entry.user, entry.answer, len(span), _held(span, state))
            for entry, span in self._spans(state)
        ]

    def evicted(self, left: Span, state: CacheState) -> Evicted:
        """What it means for the turns that the tokens `left` have left; `state` is the one after it."""
        gone: list[int] = []
        partly: TurnRest | None = None
        for entry, turn in self._spans(state):
            if turn.start < left.stop and turn.stop > left.start:
                if held := _held(turn, state):
                    partly = TurnRest(entry.number, len(turn), held)
                else:
                    gone.append(entry.number)
        self._drop_forgotten(state)
        return Evicted(left, tuple(gone), partly, state)

    def _spans(self, state: CacheState) -> Iterator[tuple[_Entry, Span]]:
        """Each turn with its tokens that can be forgotten; the latest one reaches as far as was read."""
        starts = [max(entry.start, state.pinned) for entry in self._entries]
        for entry, start, stop in zip(self._entries, starts, [*starts, state.seen][1:], strict=True):
            yield entry, Span(start, max(start, stop))

    def _drop_forgotten(self, state: CacheState) -> None:
        forgotten = sum(turn.stop <= state.next_to_leave for _, turn in self._spans(state))
        del self._entries[: max(0, forgotten - FORGOTTEN_KEPT)]


class Beginning:
    """Passes pieces of a text on, which may be of any length, and remembers how it began."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = pieces
        self.text = ""

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            if len(self.text) < PREVIEW:
                self.text += piece[: 4 * PREVIEW]
            yield piece


def shorten(text: str) -> str:
    """The beginning of `text` on one line."""
    line = " ".join(text[: 4 * PREVIEW].split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _held(turn: Span, state: CacheState) -> int:
    """How many of a turn's tokens the window holds."""
    return max(0, min(turn.stop, state.seen) - max(turn.start, state.next_to_leave))
