"""What stdin asks for: text becomes turns, in the three forms `text`, `lines` and `jsonl`.

Each form is a generator that gives a turn as soon as it is certain, so that the first is answered while
the rest has not been written yet. Nobody here answers anything. All text is made visible first: what a
control character does to a model is nobody's intention.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from sinkchat.chat.events import Event
from sinkchat.errors import InputError
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.pipe.intake import Intake, unless_blank, without_final_newlines
from sinkchat.terminal.sanitize import one_line, visible

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Question:
    """A message that gets a reply. Its text may still be arriving."""

    text: str | Iterable[str]

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
    line: int


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
    """`{"role": ..., "content": ...}` a line; a user's message without an answer gets one. The prompt is the last.

    Whether a message has an answer is known when the next line is.
    """
    asked: str | None = None
    number_of_messages = 0
    for number, line in enumerate(intake.lines(), start=1):
        if not line or line.isspace():
            continue
        number_of_messages += 1
        role, content = _message(line, f"stdin line {number}")
        if role == "system":
            if number_of_messages > 1:
                raise InputError(f"stdin line {number}: a system message must come before all others")
            yield SystemLine(content, number)
        elif role == "user":
            if asked is not None:
                yield Question(asked)
            asked = content
        elif asked is None:
            raise InputError(f"stdin line {number}: this assistant message answers no user message")
        else:
            yield PastExchange(asked, content)
            asked = None
    if asked is not None:
        yield Question(asked)
    if prompt is not None:
        yield Question(visible(prompt))
    elif not number_of_messages:
        raise _nothing_to_answer()


FORMS = {"text": one_message, "lines": each_line, "jsonl": transcript}


def _message(line: str, place: str) -> tuple[str, str]:
    """Role and visible content of one line of a transcript. Raises InputError, naming the place."""
    try:
        message: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{place}: not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{place}: not JSON: nested too deeply") from error
    except ValueError as error:  # a number of 5,000 digits
        raise InputError(f"{place}: not JSON: {one_line(str(error))}") from error
    if not isinstance(message, dict):
        raise InputError(f"{place}: {_kind(message)} where an object with role and content belongs")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        named = f"is {json.dumps(role)}" if "role" in message else "is missing"
        raise InputError(f'{place}: "role" {named}; use system, user or assistant')
    if not isinstance(content, str):
        named = f"is {_kind(content)}" if "content" in message else "is missing"
        raise InputError(f'{place}: "content" {named}; use a text')
    return role, visible(content)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _nothing_to_answer() -> InputError:
    return InputError("stdin is empty and there is no PROMPT", hint='sinkchat run smollm2 "What is a transformer?"')
