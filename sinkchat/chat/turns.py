"""Which turns are still remembered: places in the stream, told in the words of the person's own turns.

A turn runs from its first token to the first of the next. It is gone when the window holds no token of it. A turn
that a person pins leaves the window's order and stands behind the opening, where nothing leaves.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import Evicted, TurnRest

PREVIEW = 80
"""characters of a message that are kept to name it by"""

FORGOTTEN_KEPT = 1_000
"""forgotten turns that are still listed: a chat that never ends must not grow by a list"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: `tokens` of its own, `left` of them still held.

    Tokens that are pinned as sinks do not count, and of a pinned turn all are held. `user` and `answer` are the
    beginnings of what was said, to name it by.
    """

    number: int
    user: str
    answer: str
    tokens: int
    left: int
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a turn began in the stream, and the beginnings of what was said in it."""

    number: int
    start: int
    user: str = ""
    answer: str = ""


class TurnLedger:
    """Where each turn began. What is left of it follows from the cache's state."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._pinned: dict[int, tuple[Entry, int]] = {}
        self.count = 0
        """turns since the conversation began"""

    @classmethod
    def of(cls, entries: Iterable[Entry], pinned: Iterable[tuple[Entry, int]], *, count: int) -> "TurnLedger":
        """A ledger of these turns, as `entries` and `pins` gave them."""
        ledger = cls()
        ledger._entries, ledger.count = list(entries), count
        ledger._pinned = {entry.number: (entry, tokens) for entry, tokens in pinned}
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The turns that are not pinned, oldest in the stream first."""
        return tuple(self._entries)

    @property
    def pins(self) -> tuple[tuple[Entry, int], ...]:
        """The pinned turns in their order in memory, each with its tokens."""
        return tuple(self._pinned.values())

    def begin(self, start: int) -> int:
        """A turn begins with token `start` of the stream; its number, from 1."""
        self.count += 1
        self._entries.append(Entry(self.count, start))
        return self.count

    def cancel(self) -> None:
        """Takes the latest turn back, which must be the last of the window."""
        self._entries.pop()
        self.count -= 1

    def cancel_from(self, number: int) -> None:
        """Takes that turn back and all after it, which are the last of the window."""
        self._entries = [entry for entry in self._entries if entry.number < number]
        self.count = number - 1

    def copy(self) -> "TurnLedger":
        """The same turns, to go back to."""
        return TurnLedger.of(self._entries, self._pinned.values(), count=self.count)

    def name(self, *, user: str = "", answer: str = "") -> None:
        """Names the latest turn by what was said in it; an empty word changes nothing."""
        entry = self._entries[-1]
        self._entries[-1] = replace(entry, user=shorten(user) or entry.user, answer=shorten(answer) or entry.answer)

    def turns(self, state: CacheState) -> list[Turn]:
        """All turns, oldest first, measured against what the cache holds."""
        turns = [_measured(entry, span, state) for entry, span in self._spans(state)]
        turns += (
            Turn(entry.number, entry.user, entry.answer, tokens, tokens, is_pinned=True)
            for entry, tokens in self._pinned.values()
        )
        return sorted(turns, key=lambda turn: turn.number)

    def held(self, state: CacheState) -> list[Turn]:
        """The turns of which the window holds something, in the window's order."""
        held: list[Turn] = []
        stop = state.seen
        for entry in reversed(self._entries):
            start = max(entry.start, state.pinned)
            turn = _measured(entry, Span(start, max(start, stop)), state)
            if not turn.left:
                break
            held.append(turn)
            stop = start
        return held[::-1]

    def pinned(self) -> dict[int, int]:
        """The numbers of the pinned turns, in their order in memory, each with its tokens."""
        return {number: tokens for number, (_, tokens) in self._pinned.items()}

    def spans(self, state: CacheState) -> dict[int, Span]:
        """Of each turn that is not pinned, oldest in the stream first, the tokens that can be forgotten."""
        return {entry.number: span for entry, span in self._spans(state)}

    def rearrange(self, window: Sequence[tuple[int, int]], pinned: Sequence[tuple[int, int]], *, stop: int) -> None:
        """Memory was laid out anew: turns and their tokens, oldest first; the last of the window ends at `stop`.

        The window's include those that it has forgotten. A turn that is in neither is no part of the conversation.
        """
        known = {entry.number: entry for entry in (*self._entries, *(entry for entry, _ in self._pinned.values()))}
        self._pinned = {number: (known[number], tokens) for number, tokens in pinned}
        self._entries = []
        for number, tokens in reversed(window):
            stop -= tokens
            self._entries.append(replace(known[number], start=stop))
        self._entries.reverse()

    def evicted(self, left: Span, state: CacheState) -> Evicted:
        """What it means for the turns that the tokens `left` have left; `state` is the one after it."""
        gone: list[int] = []
        partly: TurnRest | None = None
        for entry, turn in self._spans(state):
            if turn.start < left.stop and turn.stop > left.start:
                if held := held_of(turn, state):
                    partly = TurnRest(entry.number, len(turn), held)
                else:
                    gone.append(entry.number)
        self._drop_forgotten(state)
        return Evicted(left, tuple(gone), partly, state)

    def _spans(self, state: CacheState) -> Iterator[tuple[Entry, Span]]:
        """Each turn with its tokens that can be forgotten; the latest one reaches as far as was read."""
        starts = [max(entry.start, state.pinned) for entry in self._entries]
        for entry, start, stop in zip(self._entries, starts, [*starts, state.seen][1:], strict=True):
            yield entry, Span(start, max(start, stop))

    def _drop_forgotten(self, state: CacheState) -> None:
        forgotten = sum(turn.stop <= state.next_to_leave for _, turn in self._spans(state))
        del self._entries[: max(0, forgotten - FORGOTTEN_KEPT)]


class Beginning:
    """Passes pieces of a text on, which may be of any length, to `record` too, and remembers how it began."""

    def __init__(self, pieces: Iterable[str], record: Callable[[str], None]) -> None:
        self._pieces = pieces
        self._record = record
        self.text = ""

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self._record(piece)
            if len(self.text) < PREVIEW:
                self.text += piece[: 4 * PREVIEW]
            yield piece


def shorten(text: str) -> str:
    """The beginning of `text` on one line."""
    line = " ".join(text[: 4 * PREVIEW].split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def held_of(turn: Span, state: CacheState) -> int:
    """How many of a turn's tokens the window holds."""
    return max(0, min(turn.stop, state.seen) - max(turn.start, state.next_to_leave))


def _measured(entry: Entry, span: Span, state: CacheState) -> Turn:
    return Turn(entry.number, entry.user, entry.answer, len(span), held_of(span, state))
