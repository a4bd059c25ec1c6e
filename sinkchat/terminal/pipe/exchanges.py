"""What stdin asks for: text becomes turns, in the three forms `text`, `lines` and `jsonl`.

Each form is a generator that gives a turn as soon as it is certain, so that the first is answered while
the rest has not been written yet. Nobody here answers anything. All text is made visible first: what a
control character does to a model is nobody's intention.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from sinkchat.chat.events import Event
from sinkchat.chat.messages import Message, read_messages
from sinkchat.errors import InputError
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.pipe.intake import Intake, unless_blank, without_final_newlines
from sinkchat.terminal.sanitize import visible


@dataclass(frozen=True, slots=True)
class Question:
    """A message that gets a reply. Its text may still be arriving."""

    text: str | Iterable[str]
    place: str = field(default="", kw_only=True)

    def enter(self, conversation: Conversation) -> Iterator[Event]:
        return conversation.send(self.text)


@dataclass(frozen=True, slots=True)
class PastExchange:
    """A message whose answer is given: both are remembered, nothing is said."""

    user: str
    assistant: str

    def enter(self, conversation: Conversation) -> Iterator[Event]:
        return conversation.read(self.user, self.assistant)


@dataclass(frozen=True, slots=True)
class SystemLine:
    """The system prompt of a transcript: before any exchange, or not at all."""

    text: str
    place: str


Exchange: TypeAlias = Question | PastExchange | SystemLine


def one_message(intake: Intake, prompt: str | None) -> Iterator[Exchange]:
    """All of stdin, a blank line and the prompt, as one message."""
    question = visible(prompt) if prompt is not None else None
    if (pieces := unless_blank(intake.pieces())) is None:
        if question is None:
            raise _nothing_to_answer()
        yield Question(question)
        return
    text = map(visible, without_final_newlines(pieces))
    yield Question(text if question is None else chain(text, [f"\n\n{question}"]))


def each_line(intake: Intake, prompt: str | None) -> Iterator[Exchange]:
    """Each line that is not blank is a message; the prompt is the last."""
    asked = False
    for line in chain(intake.lines(), [prompt or ""]):
        if line and not line.isspace():
            asked = True
            yield Question(visible(line))
    if not asked:
        raise _nothing_to_answer()


def transcript(intake: Intake, prompt: str | None) -> Iterator[Exchange]:
    """A conversation in any form that `read_messages` knows: JSON lines as they arrive, a document whole.

    A user's message without an answer gets one. The prompt is the last.
    """
    is_empty = True
    for exchange in exchanges_of(read_messages(intake.lines(), "stdin")):
        is_empty = False
        yield exchange
    if prompt is not None:
        yield Question(visible(prompt))
    elif is_empty:
        raise _nothing_to_answer()


def exchanges_of(messages: Iterable[Message]) -> Iterator[Exchange]:
    """Messages two by two. Whether a user's message has an answer is known when the next message is."""
    asked: Question | None = None
    for number, message in enumerate(messages, start=1):
        text = visible(message.text)
        match message.role:
            case "system":
                if number > 1:
                    raise InputError(f"{message.place}: a system message must come before all others")
                yield SystemLine(text, message.place)
            case "user":
                if asked is not None:
                    yield asked
                asked = Question(text, place=message.place)
            case "assistant":
                if asked is None:
                    raise InputError(f"{message.place}: this assistant message answers no user message")
                yield PastExchange(str(asked.text), text)
                asked = None
    if asked is not None:
        yield asked


FORMS = {"text": one_message, "lines": each_line, "jsonl": transcript}


def _nothing_to_answer() -> InputError:
    return InputError("stdin is empty and there is no PROMPT", hint='sinkchat run smollm2 "What is a transformer?"')
