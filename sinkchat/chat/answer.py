"""An answer while it is drawn: tokens become text, and text becomes events as soon as it is certain."""

from collections.abc import Callable, Iterable, Iterator

from sinkchat.cache.policy import CacheState
from sinkchat.chat.detokenize import Detokenizer, StopText
from sinkchat.chat.events import Event, Finish, TextDelta, TurnEnded
from sinkchat.chat.options import ChatOptions
from sinkchat.engine.engine import Step
from sinkchat.engine.sampling import Greedy, Sampler, Sampling


class Answer:
    """One answer. `text` and `finish` are those so far; an answer that nobody drew to its end was interrupted."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_ids: frozenset[int],
        stop_texts: tuple[str, ...],
        record: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.detokenizer = detokenizer
        self.text = ""
        self.tokens = 0
        self.finish: Finish = "interrupt"
        self._stop_ids = stop_ids
        self._stop_text = StopText(stop_texts)
        self._record = record
        self._clock = clock

    def events(
        self, steps: Iterable[Step], *, evictions: Callable[[Step], Iterator[Event]], stopped: Callable[[], bool]
    ) -> Iterator[Event]:
        """Text as it is certain. Half a character at the end waits in the detokenizer, in case the answer goes on."""
        self._first = self._last = self._clock()
        state: CacheState | None = None
        for step in steps:
            yield from evictions(step)
            self._last, state = self._clock(), step.state
            if step.token is None or step.token in self._stop_ids:
                self.finish = "stop"
                break
            self.tokens += 1
            yield from self._said(self._stop_text.push(self.detokenizer.push(step.token)), state)
            if self._stop_text.found:
                self.finish = "stop"
                break
        else:
            self.finish = "interrupt" if stopped() else "length"
        if state is not None:
            yield from self._said(self._stop_text.flush(), state)

    def ended(self, turn: int, *, prompt_tokens: int, ttft: float, state: CacheState) -> TurnEnded:
        """The answer with its measurements."""
        seconds = self._last - self._first
        return TurnEnded(
            turn=turn,
            text=self.text,
            finish=self.finish,
            prompt_tokens=prompt_tokens,
            completion_tokens=self.tokens,
            ttft_s=ttft,
            tokens_per_s=(self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else 0.0,
            state=state,
        )

    def _said(self, text: str, state: CacheState) -> Iterator[Event]:
        if text:
            self.text += text
            self._record(text)
            yield TextDelta(text, self.tokens, state)


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
