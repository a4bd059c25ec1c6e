"""What a conversation remembers, in three forms that always go together: keys, turns, words.

The engine holds what the model sees, the ledger knows whose tokens those are, the transcript what was said. A turn
changes all three or none: whatever breaks into it before its answer begins, or takes it back later, puts all three
back, and the cache to the bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sinkchat.chat.outline import Outline
from sinkchat.chat.transcript import Transcript
from sinkchat.chat.turns import TurnLedger
from sinkchat.engine.engine import Engine, Image, Mark
from sinkchat.errors import DeviceLost


@dataclass(frozen=True, slots=True)
class _BeforeTurn:
    """The moment before the latest turn; the cache keeps what leaves since."""

    mark: Mark
    turns: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class _Moment:
    """All of it, copied."""

    image: Image
    ledger: TurnLedger
    transcript: Transcript
    is_closed: bool


class Memory:
    """The engine's stream, the turns in it and their texts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ledger = TurnLedger()
        self.transcript = Transcript()
        self.is_closed = True
        """whether the latest answer has been ended as the template ends it, or there is none"""
        self._before_turn: _BeforeTurn | None = None
        self._before_clearing: _Moment | None = None

    @property
    def length(self) -> int:
        """Tokens of the stream, those that are still to be fed included."""
        return self.engine.state.seen + len(self.engine.pending)

    @property
    def can_take_back(self) -> bool:
        """Whether the latest turn can be taken back exactly, whatever it pushed out."""
        return self._before_turn is not None and self._before_turn.turns == self.ledger.count - 1

    @property
    def can_unclear(self) -> bool:
        """Whether a conversation was cleared, and nothing was said since."""
        return self._before_clearing is not None

    def clear(self, *, sinks: int, for_good: bool = False) -> None:
        """Begins a fresh conversation, whose first `sinks` tokens will stay.

        Unless `for_good`, the old one can be had back until something is said.
        """
        self._before_clearing = self._moment() if self.ledger.count and not for_good else None
        self.forget_turn()
        self.engine.cache.pinned = sinks
        self.engine.reset()
        recorder = self.transcript.recorder
        self.ledger, self.transcript, self.is_closed = TurnLedger(), Transcript(recorder=recorder), True
        recorder.clear()

    def unclear(self) -> None:
        """Brings back what was cleared."""
        if self._before_clearing is not None:
            self._restore(self._before_clearing)
            self._before_clearing = None
            self.transcript.recorder.unclear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within this context a turn begins. Whatever leaves it early puts everything back as it was before.

        What happened within and afterwards can be taken back until the next turn begins.
        """
        self._before_clearing = None
        self._before_turn = _BeforeTurn(self.engine.mark(), self.ledger.count, self.is_closed)
        try:
            yield
        except DeviceLost:
            raise  # with all that was on the device: there is nothing to put back
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Puts everything back as it was before the latest turn, to the bit."""
        before = self._before_turn
        if before is None:
            raise ValueError("there is no turn to take back")
        self.engine.rewind(before.mark)
        if self.ledger.count > before.turns:
            self.ledger.cancel()
        self.transcript.keep(before.turns)
        self.is_closed = before.is_closed
        self.forget_turn()

    def forget_turn(self) -> None:
        """Gives up the way back to before the latest turn, and what was kept for it."""
        self._before_turn = None
        self.engine.release()

    def wake(self, outline: Outline, image: Image) -> None:
        """Puts back what another process remembered, to the bit. `image` is of the moment that `outline` is of."""
        self.forget_turn()
        self.engine.restore(image)
        self.ledger = TurnLedger.of(outline.turns, outline.pins, count=outline.count)
        self.is_closed = outline.is_closed

    @contextmanager
    def change(self) -> Iterator[None]:
        """Within this context anything may be done to memory. Whatever leaves it early puts everything back.

        Only what is dropped from the transcript is gone: that comes last.
        """
        moment = self._moment()
        self.forget_turn()
        try:
            yield
        except BaseException:
            self._restore(moment)
            raise

    def _moment(self) -> _Moment:
        return _Moment(self.engine.image(), self.ledger.copy(), self.transcript, self.is_closed)

    def _restore(self, moment: _Moment) -> None:
        self.forget_turn()
        self.engine.restore(moment.image)
        self.ledger, self.transcript, self.is_closed = moment.ledger, moment.transcript, moment.is_closed
