"""What happens in a conversation, as plain values.

A session yields these, a view shows them, and nothing calls back. No tensors, no text styles: a view
in a terminal, a JSON line and a test read the same numbers.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sinkchat.cache.policy import CacheState, Span

Finish: TypeAlias = Literal["stop", "length", "interrupt"]


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """More of a turn's input has been read. `total` is None while the input is still arriving."""

    read: int
    total: int | None
    seconds: float
    state: CacheState


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A turn's input is in the cache; the answer begins. `tokens` counts everything that was fed for it."""

    turn: int
    tokens: int
    seconds: float
    state: CacheState


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer: whole characters, never empty. `token` numbers it within the answer, from 1."""

    text: str
    token: int
    state: CacheState


@dataclass(frozen=True, slots=True)
class TurnRest:
    """A turn that is partly forgotten: `left` of its `tokens` that are not pinned are still held."""

    turn: int
    tokens: int
    left: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Tokens have left memory. `gone` are the turns of which nothing is left now and something was before."""

    span: Span
    gone: tuple[int, ...]
    partly: TurnRest | None
    state: CacheState


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """An answer is complete, or was stopped. Seconds and rates are wall clock.

    `ttft_s` runs from the call of `send` to the first token; `tokens_per_s` is the decode rate after it.
    """

    turn: int
    text: str
    finish: Finish
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    tokens_per_s: float
    state: CacheState


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know, that is not an error: a sentence."""

    text: str


class TurnCancelled(Exception):
    """Raised in place of more events: the turn was stopped before its answer began, and memory is as it was."""


Event: TypeAlias = PromptProgress | PromptRead | TextDelta | Evicted | TurnEnded | Notice
