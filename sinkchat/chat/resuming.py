"""A conversation goes on that another process began: its memory first, then what was cut off.

There are three ways to its memory, each further from what it was. Saved keys are put back to the bit. Without them
the same tokens are read again: every number is the same, but the keys no longer know what was forgotten before.
Where the ids themselves are no good, such as those of another model, the words are read anew, as many of the latest
turns as fit.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sinkchat.chat.changes import Changes
from sinkchat.chat.detokenize import Detokenizer
from sinkchat.chat.events import Event, Finish, Notice
from sinkchat.chat.exchange import Exchanges
from sinkchat.chat.memory import Memory
from sinkchat.chat.outline import Outline
from sinkchat.chat.past import Past
from sinkchat.chat.snapshot import SavedMemory, Unusable


class Resumption:
    """Takes one past up in an empty memory. `model` is the name of the model that is loaded now."""

    def __init__(self, memory: Memory, exchanges: Exchanges, changes: Changes, *, model: str) -> None:
        self._memory = memory
        self._exchanges = exchanges
        self._changes = changes
        self._model = model

    def events(self, past: Past, saved: SavedMemory | Unusable, *, detokenizer: Detokenizer) -> Iterator[Event]:
        """What is to be told while it is done. A stop, or an error, leaves memory empty."""
        memory = self._memory
        with memory.change():
            memory.transcript = past.transcript
            yield from self._remembered(past, saved)
            yield from self._unfinished(past)
            if (finish := self._finish(past)) is not None:
                self._exchanges.take_up(detokenizer, finish)

    def _remembered(self, past: Past, saved: SavedMemory | Unusable) -> Iterator[Event]:
        outline, memory = past.outline, self._memory
        whole = past.whole
        if past.transcript.count > whole + 1:
            outline, whole = None, past.transcript.count - 1
        if outline is not None and outline.count == past.whole:
            if not whole:
                return
            if isinstance(saved, SavedMemory) and saved.is_of(outline):
                memory.wake(outline, saved.image)
                return
            if self._has_the_tokens_of(past, outline):
                reason = saved.reason if isinstance(saved, Unusable) else "the saved memory is of another moment"
                yield Notice(f"what is remembered is read again: {reason}")
                yield from self._changes.read_again(outline).events
                return
        if whole >= past.transcript.first:
            yield Notice("the latest turns are read again from their words, since their tokens cannot be used")
            pins = () if past.outline is None else tuple(entry.number for entry, _ in past.outline.pins)
            pins = tuple(number for number in pins if past.transcript.first <= number <= whole)
            yield from self._changes.read_anew(whole, pins).events

    def _has_the_tokens_of(self, past: Past, outline: Outline) -> bool:
        """Whether ids mean here what they meant there."""
        opening = self._exchanges.template.opening
        ids = (*outline.pinned, *outline.window, *outline.pending)
        return (
            past.header.model == self._model
            and outline.pinned[: len(opening)] == opening[: len(outline.pinned)]
            and max(ids, default=0) < self._memory.engine.vocabulary_size
        )

    def _unfinished(self, past: Past) -> Iterator[Event]:
        """What was cut off, as far as it had come."""
        exchanges, transcript, latest = self._exchanges, past.transcript, past.transcript.count
        if latest > past.whole:
            said = transcript.said(latest)
            if not (said.user or said.answer):
                transcript.keep(latest - 1)
                return
            yield Notice(f"turn {latest} was cut {'in its answer' if said.answer else 'before its answer'}")
            yield from exchanges.read_cut_turn(said)
        elif past.added and not self._memory.is_closed:
            yield Notice(f"turn {latest} was cut in its answer")
            yield from exchanges.read_more(past.added)

    def _finish(self, past: Past) -> Finish | None:
        """How the latest answer in memory ended, if it can go on or ended by itself."""
        if self._memory.is_closed:
            return None
        is_cut = past.transcript.count > past.whole or past.added
        return "interrupt" if is_cut else past.outline.finish if past.outline is not None else None


def options_that_hold(past: Past, sources: Mapping[str, str]) -> dict[str, Any]:
    """The options of a past conversation that nothing typed for this run takes the place of."""
    return {name: value for name, value in past.options.items() if not is_stronger(sources.get(name))}


def is_stronger(source: str | None) -> bool:
    """Whether a value from there beats that of the conversation which goes on: a flag, a variable."""
    return source is not None and (source == "flag" or source.startswith("SINKCHAT_"))
