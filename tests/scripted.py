"""A conversation that follows a script: real events and exact counts, no model.

A word is a token. It keeps the promises of the session: whole turns leave a full window oldest first, a
long one in pieces, `pinned + window + evicted == seen`, and a stop is heard at the next token.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import (
    Event,
    Evicted,
    Finish,
    PromptProgress,
    PromptRead,
    TextDelta,
    TurnCancelled,
    TurnEnded,
    TurnRest,
)
from sinkchat.chat.options import ChatOptions, ModelCard, Weight
from sinkchat.errors import SinkchatError, UsageError

CHUNK = 64


@dataclass
class ScriptedTurn:
    number: int
    user: str
    answer: str
    start: int
    tokens: int
    left: int
    is_pinned: bool = False


@dataclass(frozen=True)
class ScriptedExchange:
    user: str
    answer: str


@dataclass
class ScriptedChange:
    tokens: int
    events: Iterator[Event]


def echo(text: str) -> str:
    return f"you said: {text}"


class ScriptedConversation:
    """Answers with `reply(text)`, one piece a token. `token_seconds` slows it, so that one can press Ctrl-C."""

    def __init__(
        self,
        reply: Callable[[str], str | list[str]] = echo,
        *,
        capacity: int = 100,
        opening: str = "you are a helpful assistant",
        token_seconds: float = 0.0,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.reply = reply
        self.capacity = capacity
        self.token_seconds = token_seconds
        self.card = ModelCard("Echo-1", "none", "float32", "cpu", 4096)
        self.options = ChatOptions()
        self.sources = {"temperature": "model", "top_p": "flag"}
        self.notices = notices
        self.taken_up: tuple[str, ...] = ()
        self.system: str | None = None
        self.heard: list[str] = []
        """texts of the turns that got a reply"""
        self.past: list[tuple[str, str]] = []
        self.fails: list[SinkchatError] = []
        """errors that the next turns raise"""
        self._opening = opening
        self._stopped = False
        self.clear()

    @property
    def pinned(self) -> int:
        return max(4, len(self._opening.split()))

    @property
    def state(self) -> CacheState:
        pinned = min(self.pinned, self._seen)
        return CacheState(self._seen, self._evicted, pinned, self.capacity, nbytes=self.capacity * 1024)

    def clear(self) -> None:
        self._seen = self._evicted = 0
        self.turns: list[ScriptedTurn] = []
        self._words: list[str] = []
        self._texts: list[ScriptedExchange] = []
        self._finish: Finish = "stop"
        self.changes: list[tuple[str, object]] = []
        """what was asked to be changed"""

    kept_as: str | None = None
    first = 1

    def close(self) -> str:
        return ""

    @property
    def latest(self) -> int:
        return len(self.turns)

    @property
    def held(self) -> list[ScriptedTurn]:
        return [replace(turn) for turn in self.turns if turn.left and not turn.is_pinned]

    @property
    def pinned_turns(self) -> tuple[int, ...]:
        return tuple(turn.number for turn in self.turns if turn.is_pinned)

    @property
    def forgets(self) -> bool:
        return True

    @property
    def decoding(self) -> str:
        return "compiled"

    @property
    def device_bytes(self) -> int | None:
        return None

    @property
    def can_proceed(self) -> bool:
        return self._finish != "stop"

    def said(self, turn: int) -> ScriptedExchange:
        if not 1 <= turn <= len(self._texts):
            raise UsageError(f"there is no turn {turn}")
        return self._texts[turn - 1]

    def weigh(self, text: str) -> Weight:
        words = len(text.split())
        excess = self._seen - self._evicted + words - self.capacity
        pushed: list[int] = []
        for turn in self.held:
            if excess > 0:
                pushed.append(turn.number)
                excess -= turn.left
        return Weight(words, tuple(pushed))

    def undo(self, turn: int | None = None) -> ScriptedChange:
        first = self.latest if turn is None else turn
        if not 1 <= first <= self.latest:
            raise UsageError("nothing was said yet" if not self.latest else f"there is no turn {first}")

        def act() -> Iterator[Event]:
            start = self.turns[first - 1].start
            del self.turns[first - 1 :], self._texts[first - 1 :], self._words[start:]
            self._seen = start
            self._evicted = min(self._evicted, max(0, start - self.pinned))
            self.changes.append(("undo", first))
            yield from ()

        return ScriptedChange(0 if first == self.latest else self._seen, act())

    def pin(self, turn: int) -> ScriptedChange:
        return self._marked("pin", turn, is_pinned=True)

    def unpin(self, turn: int) -> ScriptedChange:
        return self._marked("unpin", turn, is_pinned=False)

    def change_system(self, text: str | None) -> ScriptedChange:
        def act() -> Iterator[Event]:
            self.system = text
            self.changes.append(("system", text))
            yield from ()

        return ScriptedChange(self._seen - self._evicted, act())

    def proceed(self) -> Iterator[Event]:
        if not self.can_proceed:
            raise UsageError(
                "the latest answer is complete: there is nothing to continue", hint="/retry draws another"
            )
        self._stopped = False
        yield from self._answer(["and ", "so ", "on"])

    def _marked(self, name: str, turn: int, *, is_pinned: bool) -> ScriptedChange:
        self.said(turn)

        def act() -> Iterator[Event]:
            self.turns[turn - 1].is_pinned = is_pinned
            self.changes.append((name, turn))
            yield from ()

        return ScriptedChange(self._seen - self._evicted, act())

    def set_system(self, text: str | None) -> None:
        self.system = text
        self._opening = text or ""
        self.clear()

    def stop(self) -> None:
        self._stopped = True

    def pinned_text(self) -> str:
        return " ".join(self._words[: self.state.pinned])

    def window_text(self) -> str:
        return " ".join(self._words[self.state.next_to_leave :])

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        self._stopped = False
        words: list[str] = []
        yield from self._read(text, words)
        said = "".join(words)
        if self.fails:
            raise self.fails.pop(0)
        self.heard.append(said)
        reply = self.reply(said)
        pieces = [word + " " for word in reply.split(" ")] if isinstance(reply, str) else reply
        if isinstance(reply, str) and pieces:
            pieces[-1] = pieces[-1][:-1]
        yield from self._answer(pieces)

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        self._stopped = False
        self.past.append((user, assistant))
        yield from self._read(f"{user} {assistant}", [])
        self._texts[-1] = ScriptedExchange(user, assistant)
        self._finish = "stop"

    def _read(self, text: str | Iterable[str], words: list[str]) -> Iterator[Event]:
        before = self._seen, self._evicted, len(self.turns), len(self._words)
        if not self._seen:
            self._words += self._opening.split()
            self._seen = len(self._words)
        start = self._seen
        self.turns.append(ScriptedTurn(len(self.turns) + 1, "", "", start, 0, 0))
        tail = ""
        for piece in [text] if isinstance(text, str) else text:
            words.append(piece)
            *whole, tail = (tail + piece).split(" ")
            for chunk in range(0, len(whole), CHUNK):
                yield from self._feed(whole[chunk : chunk + CHUNK])
                yield PromptProgress(self._seen - start, None, 1.0, self.state)
                time.sleep(self.token_seconds)
                if self._stopped:
                    self._seen, self._evicted = before[:2]
                    del self.turns[before[2] :], self._words[before[3] :]
                    raise TurnCancelled
        yield from self._feed(tail.split())
        self.turns[-1].user = "".join(words)[:80]
        self._texts.append(ScriptedExchange("".join(words), ""))
        yield PromptRead(len(self.turns), self._seen - before[0], 1.0, self.state)

    def _answer(self, pieces: list[str]) -> Iterator[Event]:
        limit = self.options.max_tokens or len(pieces) + 1
        said: list[str] = []
        finish: Finish = "stop"
        for piece in pieces:
            if len(said) == limit:
                finish = "length"
                break
            if self._stopped:
                finish = "interrupt"
                break
            yield from self._feed([piece])
            said.append(piece)
            if piece:
                yield TextDelta(piece, len(said), self.state)
            time.sleep(self.token_seconds)
        turn = self.turns[-1]
        turn.answer = "".join(said)[:80]
        self._texts[-1] = ScriptedExchange(self._texts[-1].user, self._texts[-1].answer + "".join(said))
        self._finish = finish
        yield TurnEnded(
            turn.number, "".join(said), finish, self._seen - turn.start - len(said), len(said), 0.42, 31.4, self.state
        )

    def _feed(self, words: list[str]) -> Iterator[Event]:
        for word in words:
            if self._seen - self._evicted == self.capacity:
                yield self._make_room()
            self._words.append(word)
            self._seen += 1
        turn = self.turns[-1]
        turn.tokens = self._seen - turn.start
        turn.left = self._seen - max(turn.start, self.state.next_to_leave)

    def _make_room(self) -> Evicted:
        start = self.state.next_to_leave
        holder = next(turn for turn in reversed(self.turns) if turn.start <= start)
        ends = self._seen if holder is self.turns[-1] else holder.start + holder.tokens
        stop = min(ends, start + max(1, (self.capacity - self.pinned) // 8))
        self._evicted += stop - start
        holder.left = ends - stop
        gone = (holder.number,) if not holder.left else ()
        partly = TurnRest(holder.number, ends - holder.start, holder.left) if holder.left else None
        return Evicted(Span(start, stop), gone, partly, self.state)
