"""What commands work on, and what they may give: lines, events, a draft for the next line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from sinkchat.chat.events import Event, TurnEnded
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing.choice import PanelChoice
from sinkchat.terminal.line.folding import TextFile
from sinkchat.terminal.slash.clipboard import Clipboard, NoClipboard


class Leave(Exception):
    """The person wants to leave."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that stands on the next line."""

    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """A text that is laid out and made visible already."""

    text: str


Output: TypeAlias = str | Event | Draft | Page
"""What a command gives; a str is a line to show."""


@dataclass(slots=True)
class Tally:
    """What all answers of this run add up to. Speeds are taken over tokens, not over answers."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answer_seconds: float = 0.0

    def add(self, turn: TurnEnded) -> None:
        self.answers += 1
        self.prompt_tokens += turn.prompt_tokens
        self.completion_tokens += turn.completion_tokens
        if turn.tokens_per_s > 0:
            self.answer_seconds += turn.completion_tokens / turn.tokens_per_s


def _as_typed(file: TextFile) -> str:
    return file.text


@dataclass(slots=True)
class Desk:
    """The conversation, which may have to be waited for, and what is around it.

    `attach` gives what stands for a file on the line; `columns` is the width to lay pages out for.
    """

    awaited: Callable[[], Conversation]
    clipboard: Clipboard = field(default_factory=NoClipboard)
    panel: PanelChoice = field(default_factory=PanelChoice)
    tally: Tally = field(default_factory=Tally)
    set_here: dict[str, str] = field(default_factory=dict)
    attach: Callable[[TextFile], str] = _as_typed
    columns: Callable[[], int] = lambda: 80
    color: bool = False

    @property
    def conversation(self) -> Conversation:
        return self.awaited()

    @property
    def sources(self) -> dict[str, str]:
        """Where each option's value came from."""
        return {**self.conversation.sources, **self.set_here}
