"""One exchange after the other: a message is read into memory, an answer is drawn from it.

Here the template's segments, the engine's steps and the words meet. When a turn may begin, how it is taken back and
what a person can ask for is the session's matter.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from sinkchat.cache.policy import Span
from sinkchat.chat.answer import Answer
from sinkchat.chat.detokenize import Detokenizer
from sinkchat.chat.events import Event, Finish, PromptProgress, PromptRead, TurnCancelled
from sinkchat.chat.memory import Memory
from sinkchat.chat.options import Weight
from sinkchat.chat.template import ChatTemplate
from sinkchat.chat.transcript import Said
from sinkchat.chat.turns import Beginning
from sinkchat.engine.engine import Step
from sinkchat.engine.sampling import Sampler
from sinkchat.engine.segment import Segment
from sinkchat.errors import CacheFull, UsageError

_CHARACTER = 4
"""bytes, and so tokens, that the longest character takes"""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How an answer is drawn, and how its tokens are read."""

    sampler: Sampler
    max_tokens: int
    stop_texts: tuple[str, ...]
    detokenizer: Detokenizer


class Exchanges:
    """Reads and answers, in one memory under one template. `stop_requested` ends what is going on."""

    def __init__(
        self, memory: Memory, template: ChatTemplate, *, stop_ids: frozenset[int], clock: Callable[[], float]
    ) -> None:
        self.memory = memory
        self.template = template
        self.stop_ids = stop_ids
        self.stop_requested = False
        self.answer: Answer | None = None
        """the latest one"""
        self._clock = clock

    def stopped(self) -> bool:
        """Whether what is going on is to end."""
        return self.stop_requested

    def begin(self) -> float:
        """The time, as something begins that can be stopped; stops asked for before are forgotten."""
        self.stop_requested = False
        return self._clock()

    def converse(self, text: str | Iterable[str], drawing: Drawing) -> Iterator[Event]:
        """A message, which may still be arriving, and its answer; before its first token, all is taken back."""
        memory, started = self.memory, self.begin()
        before = memory.length
        yield from self._read_opening(started)
        with memory.turn():
            yield from self._read_turn(text, started=started, before=before)
            prompt_tokens = memory.length - before
            steps = self._drawn(drawing)
            first = next(steps, None)
            if first is None:
                raise TurnCancelled
        ttft = self._clock() - started
        yield from self._speak(chain([first], steps), drawing, prompt_tokens=prompt_tokens, ttft=ttft)

    def remember(self, user: str, assistant: str) -> Iterator[Event]:
        """A past exchange enters memory whole or, on a stop, not at all."""
        memory, started = self.memory, self.begin()
        before = memory.length
        yield from self._read_opening(started)
        with memory.turn():
            answer = self.template.answer(assistant)
            yield from self._read_turn(user, answer=answer, started=started, before=before)
            memory.ledger.name(answer=assistant)
            memory.transcript.add_answer(assistant)
            self.answer = None

    def forget_answer(self) -> None:
        """The latest answer was taken back."""
        self.answer = None

    @property
    def can_proceed(self) -> bool:
        """Whether the latest answer was cut, and can go on."""
        return self.answer is not None and self.answer.finish != "stop" and not self.memory.is_closed

    def proceed(self, drawing: Drawing) -> Iterator[Event]:
        """The latest answer goes on. Raises UsageError where it ended by itself."""
        if self.answer is None or not self.can_proceed:
            raise UsageError(
                "the latest answer is complete: there is nothing to continue", hint="/retry draws another"
            )
        started = self.begin()
        for step in self.memory.engine.read(()):
            yield from self._evictions(step)
        drawing = replace(drawing, detokenizer=self.answer.detokenizer)
        yield from self._speak(self._drawn(drawing), drawing, prompt_tokens=0, ttft=self._clock() - started)

    def _read_opening(self, started: float) -> Iterator[Event]:
        """The opening enters an empty memory."""
        if self.memory.length == 0 and self.template.opening:
            yield from self._read([Segment(self.template.opening)], started, len(self.template.opening))

    def _read_turn(
        self, text: str | Iterable[str], *, answer: tuple[int, ...] = (), started: float, before: int
    ) -> Iterator[Event]:
        """A message, and the ids of its answer where that is given, enter memory; ends with `PromptRead`.

        `before` is the length of the stream when the turn was asked for: the opening may have been read since.
        """
        memory = self.memory
        memory.transcript.begin()
        user = Beginning([text] if isinstance(text, str) else text, memory.transcript.add_user)
        segments: Iterable[Segment] = self._opening_a_turn(self._user_turn(user))
        total = None
        if isinstance(text, str):
            segments = known = list(segments)
            total = sum(len(segment.ids) for segment in known) + len(answer)
        yield from self._read(chain(segments, [Segment(answer)]), started, total)
        memory.ledger.name(user=user.text)
        memory.is_closed = False
        yield PromptRead(memory.ledger.count, memory.length - before, self._clock() - started, memory.engine.state)

    def read_cut_turn(self, said: Said) -> Iterator[Event]:
        """The latest turn of the transcript, which was cut in its answer or before, enters memory."""
        memory, started = self.memory, self._clock()
        yield from self._read_opening(started)
        segments = list(self._opening_a_turn(self._user_turn(said.user)))
        yield from self._read_answer(segments, said.answer, started)
        memory.ledger.name(user=said.user, answer=said.answer)
        memory.is_closed = False

    def read_more(self, answer: str) -> Iterator[Event]:
        """More of the latest answer, as it was drawn, enters memory."""
        yield from self._read_answer([], answer, self._clock())

    def take_up(self, detokenizer: Detokenizer, finish: Finish) -> None:
        """The latest answer of the stream is one that ended so: it may go on where it was cut."""
        memory = self.memory
        for token in (*memory.engine.held_ids, *memory.engine.pending)[-_CHARACTER:]:
            detokenizer.push(token)
        self.answer = self._fresh_answer(detokenizer, ())
        self.answer.finish = finish

    def _drawn(self, drawing: Drawing) -> Iterator[Step]:
        """Tokens of an answer, until it ends, is long enough or is stopped."""
        return self.memory.engine.generate(
            drawing.sampler, stop_ids=self.stop_ids, max_tokens=drawing.max_tokens, stopped=self.stopped
        )

    def _speak(self, steps: Iterable[Step], drawing: Drawing, *, prompt_tokens: int, ttft: float) -> Iterator[Event]:
        """The text of an answer, then `TurnEnded`."""
        memory = self.memory
        self.answer = answer = self._fresh_answer(drawing.detokenizer, drawing.stop_texts)
        try:
            yield from answer.events(steps, evictions=self._evictions, stopped=self.stopped)
        finally:
            memory.ledger.name(answer=answer.text)
        yield answer.ended(memory.ledger.count, prompt_tokens=prompt_tokens, ttft=ttft, state=memory.engine.state)

    def weigh(self, text: str) -> Weight:
        """What sending `text` now would cost."""
        memory, state = self.memory, self.memory.engine.state
        opening = 0 if memory.length else len(self.template.opening)
        tokens = sum(len(segment.ids) for segment in self._user_turn(text))
        try:
            leaving = memory.engine.cache.foresee(opening + len(memory.engine.pending) + tokens)
        except CacheFull:
            leaving = Span(0, 0)
        spans = memory.ledger.spans(state)
        held = [turn.number for turn in memory.ledger.held(state)]
        return Weight(tokens, tuple(number for number in held if spans[number].start < leaving.stop))

    def _fresh_answer(self, detokenizer: Detokenizer, stop_texts: tuple[str, ...]) -> Answer:
        return Answer(
            detokenizer,
            stop_ids=self.stop_ids,
            stop_texts=stop_texts,
            record=self.memory.transcript.add_answer,
            clock=self._clock,
        )

    def _user_turn(self, text: str | Iterable[str]) -> Iterator[Segment]:
        first = self.memory.length <= len(self.template.opening)
        return self.template.user_turn(text, first=first, closed=self.memory.is_closed)

    def _opening_a_turn(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Passes `segments` on; the turn begins where the first message among them does."""
        memory = self.memory
        begun = False
        length = memory.length
        for segment in segments:
            if segment.opens_message and not begun:
                memory.ledger.begin(length)
                begun = True
            length += len(segment.ids)
            yield segment

    def _read_answer(self, before: list[Segment], answer: str, started: float) -> Iterator[Event]:
        segments = [*before, Segment(self.template.cut_answer(answer))]
        total = sum(len(segment.ids) for segment in segments) + len(self.memory.engine.pending)
        yield from self._read(segments, started, total)

    def _read(self, segments: Iterable[Segment], started: float, total: int | None) -> Iterator[Event]:
        before = self.memory.engine.state.seen
        for step in self.memory.engine.read(segments):
            yield from self._evictions(step)
            yield PromptProgress(step.state.seen - before, total, self._clock() - started, step.state)
            if self.stop_requested:
                raise TurnCancelled

    def _evictions(self, step: Step) -> Iterator[Event]:
        for span in step.evicted:
            yield self.memory.ledger.evicted(span, step.state)
