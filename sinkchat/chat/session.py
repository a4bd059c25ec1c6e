"""A conversation: text in, events out.

The template says what is fed before and after a message, once, as token ids; an answer stays in the cache as the
ids that were drawn and is never encoded again. So a conversation is one stream that only ever grows at its end,
and the engine can run it for ever. This file decides when a turn begins, ends or is taken back. It knows no screen.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from sinkchat.cache.policy import CacheState
from sinkchat.chat.detokenize import Detokenizer, StopText
from sinkchat.chat.events import Event, Finish, PromptProgress, PromptRead, TextDelta, TurnCancelled, TurnEnded
from sinkchat.chat.options import ChatOptions, ModelCard
from sinkchat.chat.template import ChatTemplate
from sinkchat.chat.turns import Beginning, Turn, TurnLedger
from sinkchat.engine.engine import Engine, Step
from sinkchat.engine.sampling import Greedy, Sampler, Sampling
from sinkchat.engine.segment import Segment
from sinkchat.errors import UsageError

SINKS = 4
"""first tokens that are always pinned: four suffice for released models (arXiv 2309.17453, table 2)"""


class ChatSession:
    """One endless conversation with a model.

    `sinks=None` pins the larger of 4 tokens and the opening, so that a system prompt is never forgotten. `stop_ids`
    end an answer, besides the template's own end of turn. `sources` says for each option where its value came from.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        card: ModelCard,
        options: ChatOptions | None = None,
        sources: Mapping[str, str] | None = None,
        system: str | None = None,
        sinks: int | None = None,
        stop_ids: Iterable[int] = (),
        notices: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.card = card
        self.sources = dict(sources or {})
        self._tokenizer = tokenizer
        self._sinks = sinks
        self._model_stop_ids = frozenset(stop_ids)
        self._notices = tuple(notices)
        self._clock = clock
        self._stop_requested = False
        self.options = options if options is not None else ChatOptions()
        self.set_system(system)

    @property
    def options(self) -> ChatOptions:
        """How answers are drawn; assign another value to change it."""
        return self._options

    @options.setter
    def options(self, options: ChatOptions) -> None:
        self._sampler = sampler_for(options)
        self._options = options
        if options.seed is not None:
            self.engine.generator.manual_seed(options.seed)
        else:
            self.engine.generator.seed()

    @property
    def state(self) -> CacheState:
        return self.engine.state

    @property
    def pinned(self) -> int:
        """How many tokens are pinned once they have been read."""
        return self.engine.cache.pinned

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of the conversation, oldest first; of forgotten ones the latest 1,000."""
        return self._ledger.turns(self.state)

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences that a person should read before the first turn."""
        return (*self._notices, *self.template.notices)

    def set_system(self, text: str | None) -> None:
        """Begins a fresh conversation under another system prompt. None: what the template itself says."""
        template = ChatTemplate.from_tokenizer(self._tokenizer, system=text)
        pinned = max(SINKS, len(template.opening)) if self._sinks is None else self._sinks
        capacity = self.state.capacity
        left = capacity - pinned
        if left < min(128, capacity // 8):
            raise UsageError(
                f"the system prompt is {len(template.opening):,} tokens and --cache-size is {capacity:,}: "
                f"only {max(0, left):,} would be left to talk in",
                hint="a shorter --system, or a larger --cache-size",
            )
        self.system = text
        self.template = template
        self.stop_ids = self._model_stop_ids | template.end_of_turn
        self.engine.cache.pinned = pinned
        self.clear()

    def clear(self) -> None:
        """Begins a fresh conversation under the same system prompt."""
        self.engine.reset()
        self._ledger = TurnLedger()

    def stop(self) -> None:
        """Asks the running turn to end at its next token. Only sets a flag: a signal handler may call it."""
        self._stop_requested = True

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        """One exchange: reads `text`, which may still be arriving in pieces, then answers; ends with `TurnEnded`.

        Closing the iterator stops the turn. Before the answer's first token, a stop or an error takes the turn back:
        memory is as it was (a stop raises `TurnCancelled`). After it, what was said is kept and the next turn closes
        it properly.
        """
        self._stop_requested = False
        started = self._clock()
        before = self._length
        yield from self._read_opening(started)
        with self._taken_back_on_error():
            yield from self._read_turn(text, (), started, before)
            prompt_tokens = self._length - before
            steps = self.engine.generate(
                self._sampler,
                stop_ids=self.stop_ids,
                max_tokens=self._options.max_tokens,
                stopped=lambda: self._stop_requested,
            )
            first = next(steps, None)
            if first is None:
                raise TurnCancelled
        ttft = self._clock() - started
        yield from self._answer(chain([first], steps), prompt_tokens, ttft)

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        """A past exchange enters memory, without a reply: all of it or, on a stop, none. Ends with `PromptRead`."""
        self._stop_requested = False
        started = self._clock()
        before = self._length
        yield from self._read_opening(started)
        with self._taken_back_on_error():
            yield from self._read_turn(user, self.template.answer(assistant), started, before)
            self._ledger.name(answer=assistant)

    def pinned_text(self) -> str:
        """What the pinned tokens say."""
        return self._decode(self.engine.held_ids[: self.state.pinned])

    def window_text(self) -> str:
        """What the window says."""
        return self._decode(self.engine.held_ids[self.state.pinned :])

    @property
    def _length(self) -> int:
        """Tokens of the stream, those that are still to be fed included."""
        return self.state.seen + len(self.engine.pending)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    @contextmanager
    def _taken_back_on_error(self) -> Iterator[None]:
        """Whatever leaves the block early puts memory back as it was before."""
        mark, turns = self.engine.mark(), self._ledger.count
        try:
            yield
        except BaseException:
            self.engine.rewind(mark)
            if self._ledger.count > turns:
                self._ledger.cancel()
            raise
        finally:
            self.engine.release()

    def _read_opening(self, started: float) -> Iterator[Event]:
        if self._length == 0 and self.template.opening:
            yield from self._read([Segment(self.template.opening)], started, len(self.template.opening))

    def _read_turn(
        self, text: str | Iterable[str], answer: tuple[int, ...], started: float, before: int
    ) -> Iterator[Event]:
        user = Beginning([text] if isinstance(text, str) else text)
        first = self._ledger.count == 0
        segments: Iterable[Segment] = self._opening_a_turn(self.template.user_turn(user, first=first))
        total = None
        if isinstance(text, str):
            segments = known = list(segments)
            total = sum(len(segment.ids) for segment in known) + len(answer)
        yield from self._read(chain(segments, [Segment(answer)]), started, total)
        self._ledger.name(user=user.text)
        yield PromptRead(self._ledger.count, self._length - before, self._clock() - started, self.state)

    def _opening_a_turn(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Passes `segments` on; the turn begins where the first message among them does."""
        begun = False
        length = self._length
        for segment in segments:
            if segment.opens_message and not begun:
                self._ledger.begin(length)
                begun = True
            length += len(segment.ids)
            yield segment

    def _read(self, segments: Iterable[Segment], started: float, total: int | None) -> Iterator[Event]:
        before = self.state.seen
        for step in self.engine.read(segments):
            yield from self._evictions(step)
            yield PromptProgress(step.state.seen - before, total, self._clock() - started, step.state)
            if self._stop_requested:
                raise TurnCancelled

    def _evictions(self, step: Step) -> Iterator[Event]:
        for span in step.evicted:
            yield self._ledger.evicted(span, step.state)

    def _answer(self, steps: Iterable[Step], prompt_tokens: int, ttft: float) -> Iterator[Event]:
        """Text as it is certain, then `TurnEnded`."""
        detokenizer, stop_text = Detokenizer(self._tokenizer), StopText(self._options.stop)
        pieces: list[str] = []
        finish: Finish = "interrupt"
        tokens = 0
        first = last = self._clock()
        try:
            for step in steps:
                yield from self._evictions(step)
                last = self._clock()
                if step.token is None or step.token in self.stop_ids:
                    finish = "stop"
                    break
                tokens += 1
                text = stop_text.push(detokenizer.push(step.token))
                if text:
                    pieces.append(text)
                    yield TextDelta(text, tokens, step.state)
                if stop_text.found:
                    finish = "stop"
                    break
            else:
                finish = "interrupt" if self._stop_requested else "length"
            text = stop_text.push(detokenizer.flush()) + stop_text.flush()
            if text:
                pieces.append(text)
                yield TextDelta(text, tokens, self.state)
        finally:
            self._ledger.name(answer="".join(pieces))
        rate = (tokens - 1) / (last - first) if tokens > 1 and last > first else 0.0
        yield TurnEnded(
            turn=self._ledger.count,
            text="".join(pieces),
            finish=finish,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            ttft_s=ttft,
            tokens_per_s=rate,
            state=self.state,
        )


def sampler_for(options: ChatOptions) -> Sampler:
    """The sampler that the options name. Raises `UsageError` where they cannot be drawn from."""
    if options.temperature == 0:
        return Greedy(options.repetition_penalty)
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
    )
