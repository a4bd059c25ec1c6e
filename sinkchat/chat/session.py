"""A conversation: text in, events out.

The template says what is fed before and after a message, once, as token ids; an answer stays in the cache as the
ids that were drawn and is never encoded again. So a conversation is one stream that only ever grows at its end,
and the engine can run it for ever. This file decides how a turn goes; what it leaves behind, and how that is taken
back or arranged anew, is in `memory` and `changes`. It knows no screen.
"""

import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sinkchat.chat.answer import sampler_for
from sinkchat.chat.changes import Change, Changes
from sinkchat.chat.detokenize import Detokenizer
from sinkchat.chat.events import Event, Notice
from sinkchat.chat.exchange import Drawing, Exchanges
from sinkchat.chat.memory import Memory
from sinkchat.chat.options import ChatOptions, ModelCard, Weight
from sinkchat.chat.outline import Outline
from sinkchat.chat.past import Past
from sinkchat.chat.recorder import Recorder
from sinkchat.chat.remembered import Remembered
from sinkchat.chat.resuming import Resumption, is_stronger, options_that_hold
from sinkchat.chat.room import sink_count
from sinkchat.chat.snapshot import SavedMemory, Unusable
from sinkchat.chat.template import ChatTemplate
from sinkchat.chat.transcript import Said
from sinkchat.engine.engine import Engine
from sinkchat.errors import UsageError


class ChatSession(Remembered):
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
        super().__init__(Memory(engine))
        self.card = card
        self.sources = dict(sources or {})
        self._tokenizer = tokenizer
        self._sinks = sinks
        self._model_stop_ids = frozenset(stop_ids)
        self._notices = tuple(notices)
        self.taken_up: tuple[str, ...] = ()
        """sentences about what became of a conversation that was left, for a person in any case"""
        self._clock = clock
        self.kept_as: str | None = None
        """the name under which this conversation can be resumed, if it is kept"""
        self.leave: Callable[[], str] = str
        """makes what is kept ready to be resumed"""
        self._going_on: Callable[[], Generator[Event] | None] = lambda: None
        self._options = ChatOptions()
        self.options = options if options is not None else ChatOptions()
        self.set_system(system)

    @property
    def options(self) -> ChatOptions:
        """How answers are drawn; assign another value to change it."""
        return self._options

    @options.setter
    def options(self, options: ChatOptions) -> None:
        self._sampler = sampler_for(options)
        before, self._options = self._options, options
        is_new = {name: value for name, value in asdict(options).items() if value != getattr(before, name)}
        self.recorder.options(is_new)
        if options.seed is not None:
            self.engine.generator.manual_seed(options.seed)
        else:
            self.engine.generator.seed()

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._exchanges.stop_ids

    @property
    def recorder(self) -> Recorder:
        """Who writes this conversation down; assign another to begin."""
        return self._memory.transcript.recorder

    @recorder.setter
    def recorder(self, recorder: Recorder) -> None:
        self._memory.transcript.recorder = recorder
        recorder.settled(lambda: self.outline)

    @property
    def outline(self) -> Outline:
        """What memory holds, without its keys: to be recorded after each turn and change."""
        answer = self._exchanges.answer
        return Outline.of(self._memory, finish=None if answer is None else answer.finish)

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences that a person should read before the first turn."""
        return (*self._notices, *self.taken_up, *self.template.notices)

    def set_system(self, text: str | None) -> None:
        """Begins a fresh conversation under another system prompt. None: what the template itself says."""
        template = ChatTemplate.from_tokenizer(self._tokenizer, system=text)
        sinks = sink_count(template, self._sinks, capacity=self.state.capacity)
        self._speak_under(text, template)
        self._memory.clear(sinks=sinks, for_good=True)
        self.recorder.settled(lambda: self.outline)

    def change_system(self, text: str | None) -> Change:
        """Another system prompt for the conversation as it is held. What is remembered is read again behind it."""
        template = ChatTemplate.from_tokenizer(self._tokenizer, system=text)
        sinks = sink_count(template, self._sinks, capacity=self.state.capacity)
        before = len(self.template.opening)
        if not self.latest or self.engine.cache.pinned < before or sinks < len(template.opening):
            raise UsageError(
                "this system prompt is not pinned as a whole, so another cannot take its place",
                hint="/clear, or a larger --sinks",
            )
        change = self._changes(template).after_opening_of(before)
        return self._recorded_change(change, then=lambda: self._speak_under(text, template))

    def clear(self) -> None:
        """Begins a fresh conversation under the same system prompt. Until something is said, `undo` takes it back."""
        self._memory.clear(sinks=sink_count(self.template, self._sinks, capacity=self.state.capacity))
        self.recorder.settled(lambda: self.outline)

    def close(self) -> str:
        """Nothing more is said for now: what is kept is made ready to be resumed. What a person should hear of it."""
        if (going_on := self._going_on()) is not None:
            going_on.close()  # a signal left it in the middle: here it ends, and is recorded
        leave, self.leave = self.leave, str
        return leave()

    def stop(self) -> None:
        """Asks the running turn to end at its next token. Only sets a flag: a signal handler may call it."""
        self._exchanges.stop_requested = True

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        """One exchange: reads `text`, which may still be arriving in pieces, then answers; ends with `TurnEnded`.

        Closing the iterator stops the turn. Before the answer's first token, a stop or an error takes the turn back:
        memory is as it was (a stop raises `TurnCancelled`). After it, what was said is kept, and closed by the next.
        """
        return self._recorded(self._exchanges.converse(text, self._drawing()))

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        """A past exchange enters memory, without a reply: all of it or, on a stop, none. Ends with `PromptRead`."""
        return self._recorded(self._exchanges.remember(user, assistant))

    def resume(self, past: Past, saved: SavedMemory | Unusable) -> Iterator[Event]:
        """A past conversation goes on here, where nothing was said yet, under its system prompt, with its options.

        What was typed now stays. `saved` is put back to the bit; without it, what was remembered is read again.
        """
        if past.system != self.system:
            self.set_system(past.system)
        kept = options_that_hold(past, self.sources)
        self.sources |= dict.fromkeys(kept, "conversation")
        self.options = replace(self._options, **kept)
        if isinstance(saved, SavedMemory) and not is_stronger(self.sources.get("seed")):
            self.engine.generator.set_state(saved.draws)
        self._exchanges.begin()
        taking_up = Resumption(self._memory, self._exchanges, self._changes(), model=self.card.name)
        yield from taking_up.events(past, saved, detokenizer=Detokenizer(self._tokenizer))

    @property
    def can_proceed(self) -> bool:
        """Whether the latest answer was cut, and can go on."""
        return self._exchanges.can_proceed

    def proceed(self) -> Iterator[Event]:
        """The latest answer goes on where it was cut; ends with `TurnEnded`, whose text is what was added.

        Raises UsageError where it ended by itself.
        """
        return self._recorded(self._exchanges.proceed(self._drawing()))

    def undo(self, turn: int | None = None) -> Change:
        """Takes back `turn` and all after it; None: the latest, or after `clear` that."""
        return self._recorded_change(self._changes().undo(turn), then=self._exchanges.forget_answer)

    def pin(self, turn: int) -> Change:
        """Keeps a turn for ever: it is pinned behind the opening."""
        return self._recorded_change(self._changes().pin(turn))

    def unpin(self, turn: int) -> Change:
        """Lets a pinned turn leave again."""
        return self._recorded_change(self._changes().unpin(turn))

    def said(self, turn: int) -> Said:
        """What was said in a turn, word for word, also when memory has forgotten it."""
        if not 1 <= turn <= self.latest:
            raise UsageError(f"there is no turn {turn}", hint=f"/turns lists them, up to {self.latest}")
        return self._memory.transcript.said(turn)

    def weigh(self, text: str) -> Weight:
        """What sending `text` now would cost."""
        return self._exchanges.weigh(text)

    def pinned_text(self) -> str:
        """What the pinned tokens say."""
        return self._decode(self.engine.held_ids[: self.state.pinned])

    def window_text(self) -> str:
        """What the window says."""
        return self._decode(self.engine.held_ids[self.state.pinned :])

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _speak_under(self, system: str | None, template: ChatTemplate) -> None:
        self.system = system
        self.recorder.system(system)
        self.template = template
        self._exchanges = Exchanges(
            self._memory, template, stop_ids=self._model_stop_ids | template.end_of_turn, clock=self._clock
        )

    def _drawing(self) -> Drawing:
        return Drawing(self._sampler, self._options.max_tokens, self._options.stop, Detokenizer(self._tokenizer))

    def _recorded(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events, after which what has become of memory is recorded."""
        going_on = self._recording(events)
        self._going_on = weakref.ref(going_on)  # whoever drops it ends it
        return going_on

    def _recording(self, events: Iterator[Event]) -> Generator[Event]:
        try:
            yield from events
        finally:
            self.recorder.settled(lambda: self.outline)
        if news := self.recorder.news():
            yield Notice(news)

    def _recorded_change(self, change: Change, *, then: Callable[[], None] = lambda: None) -> Change:
        return Change(change.tokens, self._recorded(change.between(self._exchanges.begin, then).events))

    def _changes(self, template: ChatTemplate | None = None) -> Changes:
        template = template if template is not None else self.template
        return Changes(
            self._memory,
            template,
            sinks=sink_count(template, self._sinks, capacity=self.state.capacity),
            is_auto=self._sinks is None,
            stopped=self._exchanges.stopped,
            clock=self._clock,
        )
