"""A run as JSON, one object a line, for programs.

Every character beyond ASCII is escaped: the exact text of the model survives any encoding of stdout, and
no escape sequence reaches a terminal. In every `memory`, pinned + window + forgotten == seen.
"""

import json
from typing import Any, TextIO

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import Event, Evicted, TurnEnded
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.pipe.view import Progress


class RecordsView:
    """Writes `start`, `evict`, `reply` and `end` objects to stdout."""

    def __init__(self, stdout: TextIO, beside: Progress) -> None:
        self._stdout = stdout
        self._beside = beside

    def begin(self, conversation: Conversation) -> None:
        self._beside.begin(conversation)
        card = conversation.card
        self._write(
            "start",
            model=card.name,
            quant=card.quant,
            device=card.device,
            cache_size=conversation.state.capacity,
            pinned=conversation.pinned,
        )

    def show(self, event: Event) -> None:
        self._beside.show(event)
        match event:
            case Evicted():
                self._write("evict", tokens=len(event.span), turns=list(event.gone), forgotten=event.state.evicted)
            case TurnEnded():
                self._write(
                    "reply",
                    turn=event.turn,
                    text=event.text,
                    finish=event.finish,
                    prompt_tokens=event.prompt_tokens,
                    completion_tokens=event.completion_tokens,
                    ttft_s=round(event.ttft_s, 4),
                    tokens_per_s=round(event.tokens_per_s, 2),
                    memory=_memory(event.state),
                )

    def end(self, conversation: Conversation) -> None:
        turns = conversation.turns
        self._write("end", turns=turns[-1].number if turns else 0, memory=_memory(conversation.state))

    def break_off(self) -> None:
        """Nothing: without an `end`, a run is not complete."""

    def _write(self, event: str, **values: Any) -> None:
        self._stdout.write(json.dumps({"event": event, **values}) + "\n")
        self._stdout.flush()


def _memory(state: CacheState) -> dict[str, int]:
    return {
        "pinned": state.pinned,
        "window": state.window,
        "forgotten": state.evicted,
        "seen": state.seen,
    }
