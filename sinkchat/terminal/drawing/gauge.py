"""What the panel shows, as one value, measured from the events that pass by.

The gauge hears the events of a turn and reads a clock that is handed to it. It draws nothing and remembers no text.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import Event, Evicted, PromptProgress, PromptRead, TextDelta, TurnEnded
from sinkchat.terminal.conversation import TurnLike

RATE_SECONDS = 5.0
"""how far back a running rate looks"""

EVICTION_SECONDS = 1.0
"""how long an eviction is news"""


class Remembered(Protocol):
    """What the gauge needs of a conversation."""

    @property
    def state(self) -> CacheState: ...
    @property
    def held(self) -> Sequence[TurnLike]:
        """Turns with something left in the window, oldest token first; their tokens end the window."""
        ...

    @property
    def latest(self) -> int: ...
    @property
    def pinned_turns(self) -> tuple[int, ...]: ...
    @property
    def forgets(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """A turn's input is being read.

    `rate` is all tokens read for this turn over the seconds since it was sent; the time left is at that rate.
    """

    read: int
    total: int | None
    rate: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Answering:
    """An answer is being written.

    `rate` is tokens over seconds between two of its tokens: the latest, and the first or the last one that is 5
    seconds older. So it is what `TurnEnded.tokens_per_s` says of an answer that ends now, if it is short.
    `first_s` runs from the sending to the first token.
    """

    tokens: int = 0
    rate: float | None = None
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is going on. The numbers are those of the last answer, over its whole length."""

    tokens: int = 0
    rate: float | None = None
    first_s: float | None = None


Activity: TypeAlias = Reading | Answering | Idle


@dataclass(frozen=True, slots=True)
class Loss:
    """What has left within the last second. `turns` lost their first or their last token with it."""

    span: Span
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PanelFacts:
    """Everything that a panel shows, at one moment. `prefill_rate` is of the last input that was read whole."""

    state: CacheState
    held: tuple[TurnLike, ...] = ()
    latest: int = 0
    pinned_turns: tuple[int, ...] = ()
    activity: Activity = Idle()
    prefill_rate: float | None = None
    device_bytes: int | None = None
    loss: Loss | None = None
    forgets: bool = True
    """whether something leaves when memory is full"""

    @property
    def unowned(self) -> int:
        """Tokens of the window that belong to no turn: the rest of the opening, where only sinks are pinned."""
        return max(0, self.state.window - sum(turn.left for turn in self.held))

    @property
    def partly(self) -> TurnLike | None:
        """The turn that is forgotten in part: only the oldest can be."""
        return self.held[0] if self.held and self.held[0].left < self.held[0].tokens else None

    @property
    def next_to_go(self) -> TurnLike | None:
        """The turn that leaves next, or goes on leaving; None where the rest of the opening does, or nothing."""
        return self.held[0] if self.held and not self.unowned and self.forgets else None

    @property
    def forgotten(self) -> list[range]:
        """The numbers of the turns that are gone, in runs: 1 to the latest, without those kept."""
        kept = sorted({turn.number for turn in self.held}.union(self.pinned_turns))
        stops = [*kept, self.latest + 1]
        starts = [1, *(number + 1 for number in kept)]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]

    @property
    def first_fill(self) -> float:
        """How full memory is, from 0 to 1, while nothing was forgotten yet; 0 from then on."""
        return self.state.occupied / self.state.capacity if self.state.evicted == 0 and self.forgets else 0.0


def unknown() -> None:
    """The memory of a device that does not tell."""


class Gauge:
    """Hears events, gives facts. `device_bytes` says how much of its memory the device has given to the model."""

    def __init__(self, *, clock: Callable[[], float], device_bytes: Callable[[], int | None] = unknown) -> None:
        self._clock = clock
        self._device_bytes = device_bytes
        self._activity: Activity = Idle()
        self._last = Idle()
        self._prefill_rate: float | None = None
        self._sent_at = 0.0
        self._seen_before: int | None = None
        """tokens of the stream when the turn was sent; None between two turns"""
        self._samples: deque[tuple[float, int]] = deque()
        """when which token of the answer came, for as long as a rate looks back"""
        self._evictions: deque[tuple[float, Evicted]] = deque()

    def show(self, event: Event) -> None:
        """Takes an event in."""
        now = self._clock()
        match event:
            case PromptProgress():
                self._reading(event)
            case PromptRead(tokens=tokens, seconds=seconds):
                self._sent_at = now - seconds
                self._prefill_rate = _over(tokens, seconds)
                self._activity = Answering()
                self._samples.clear()
            case TextDelta(token=token):
                self._answering(token, now)
            case Evicted():
                self._evictions.append((now, event))
            case TurnEnded():
                self._last = Idle(event.completion_tokens, event.tokens_per_s or None, event.ttft_s)
                self.break_off()

    def break_off(self) -> None:
        """Nothing more comes of this turn: it ended, was taken back, or was read without an answer."""
        self._activity = self._last
        self._seen_before = None
        self._samples.clear()

    def facts(self, conversation: Remembered) -> PanelFacts:
        """What is so now. A panel is a function of it."""
        return PanelFacts(
            state=conversation.state,
            held=tuple(conversation.held),
            latest=conversation.latest,
            pinned_turns=conversation.pinned_turns,
            activity=self._activity,
            prefill_rate=self._prefill_rate,
            device_bytes=self._device_bytes(),
            loss=self._loss(),
            forgets=conversation.forgets,
        )

    def _reading(self, progress: PromptProgress) -> None:
        if self._seen_before is None:  # what was read counts from 0 again after the opening
            self._seen_before = progress.state.seen - progress.read
        rate = _over(progress.state.seen - self._seen_before, progress.seconds)
        left = (progress.total - progress.read) / rate if progress.total is not None and rate else None
        self._activity = Reading(progress.read, progress.total, rate, left)

    def _answering(self, token: int, now: float) -> None:
        before = self._activity
        first = before.first_s if isinstance(before, Answering) else None
        self._samples.append((now, token))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_SECONDS:
            self._samples.popleft()
        then, token_then = self._samples[0]
        self._activity = Answering(
            token, _over(token - token_then, now - then), now - self._sent_at if first is None else first
        )

    def _loss(self) -> Loss | None:
        while self._evictions and self._clock() - self._evictions[0][0] >= EVICTION_SECONDS:
            self._evictions.popleft()
        if not self._evictions:
            return None
        evictions = [eviction for _, eviction in self._evictions]
        turns = {number for eviction in evictions for number in (*eviction.gone, *_begun(eviction))}
        return Loss(Span(evictions[0].span.start, evictions[-1].span.stop), tuple(sorted(turns)))


def _begun(eviction: Evicted) -> tuple[int, ...]:
    """The turn whose first tokens were among those that left, and not its last."""
    rest = eviction.partly
    return (rest.turn,) if rest and rest.tokens - rest.left <= len(eviction.span) else ()


def _over(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None
