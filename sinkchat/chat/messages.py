"""The messages of a conversation that is written down, in the forms in which other programs write them too.

A message a line, read as it arrives: `{"role": "user", "content": "..."}`. Or a JSON document, which is read and
checked whole before its first message is given: `{"messages": [...]}`, as chat APIs, fine-tuning files and our own
exports have it; ShareGPT's `{"conversations": [{"from": "human", "value": "..."}]}`; or a list of messages. The first
line tells which of these it is: it ends in the middle of a document, or is a message, or a conversation. A file may
hold one conversation, alone in a list or on its line. What the messages say is nobody's matter here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sinkchat.errors import InputError

Role: TypeAlias = Literal["system", "user", "assistant"]

_PART_BREAK = "\n"
"""between two parts of a content, as the servers of chat APIs join them for models that take a text"""

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Message:
    """Who said what. `place` names it in its source: `chat.jsonl line 3`, or `chat.json, message 17`."""

    role: Role
    text: str
    place: str


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What the two fields of a message are called, and what the first may say."""

    role: str
    content: str
    roles: Mapping[str, Role]
    named: str


_CHAT = _Dialect(
    "role",
    "content",
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
    "system, user or assistant",
)
_SHAREGPT = _Dialect(
    "from",
    "value",
    {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    "system, human or gpt",
)
_CONTAINERS = ("messages", "conversations")


def read_messages(lines: Iterable[str], source: str) -> Iterator[Message]:
    """The messages in `lines`, of which there may be none. Raises InputError, which names the place in `source`."""
    numbered = ((number, line) for number, line in enumerate(lines, start=1))
    for number, line in numbered:
        if not line or line.isspace():
            continue
        place = f"{source} line {number}"
        if _ends_within(line):
            text = "\n".join(["\n" * (number - 1) + line, *(line for _, line in numbered)])
            yield from _conversation(_document(text, source), source)
        elif _is_message(value := _parsed(line, place)):
            yield _message(value, place)
            yield from _a_line_each(numbered, source)
        else:
            for number, line in numbered:
                if line and not line.isspace():
                    raise _several(source, f"a second begins in line {number}")
            yield from _conversation(value, source)


def _a_line_each(numbered: Iterable[tuple[int, str]], source: str) -> Iterator[Message]:
    for number, line in numbered:
        if line and not line.isspace():
            place = f"{source} line {number}"
            yield _message(_parsed(line, place), place)


def _ends_within(line: str) -> bool:
    """Whether JSON that has begun here must go on in the next line."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip())
    except (RecursionError, ValueError):
        pass
    return False


def _is_message(value: object) -> bool:
    """Whether a whole line is to be read as a message, and is none of the other forms."""
    return not isinstance(value, list) and not _is_conversation(value)


def _is_conversation(value: object) -> bool:
    return isinstance(value, dict) and "role" not in value and any(name in value for name in _CONTAINERS)


def _conversation(value: Any, source: str) -> Iterator[Message]:
    """The messages of a document, all of which are checked before the first is given."""
    if isinstance(value, list) and value and _is_conversation(value[0]):
        if len(value) > 1:
            raise _several(source, f"{len(value):,} in a list")
        (value,) = value
    system: list[Message] = []
    if isinstance(value, dict):
        found = [name for name in _CONTAINERS if name in value]
        if not found:
            raise InputError(f'{source}: an object without "messages", where a conversation belongs')
        if isinstance(said := value.get("system"), str) and said:
            system = [Message("system", said, f'{source}, "system"')]
        name, value = found[0], value[found[0]]
        if not isinstance(value, list):
            raise InputError(f'{source}: "{name}" is {_kind(value)}; use a list of messages')
    return iter(
        [*system, *(_message(each, f"{source}, message {number}") for number, each in enumerate(value, start=1))]
    )


def _message(value: Any, place: str) -> Message:
    """A message with its role and text. Raises InputError, naming the place."""
    if not isinstance(value, dict):
        raise InputError(f"{place}: {_kind(value)} where an object with role and content belongs")
    dialect = _SHAREGPT if "from" in value and "role" not in value else _CHAT
    said_by = value.get(dialect.role)
    role = dialect.roles.get(said_by) if isinstance(said_by, str) else None
    if role is None:
        named = f"is {_shown(said_by)}" if dialect.role in value else "is missing"
        raise InputError(f'{place}: "{dialect.role}" {named}; use {dialect.named}')
    content = value.get(dialect.content)
    if isinstance(content, list):
        parts = (_part(part, place, number) for number, part in enumerate(content, start=1))
        return Message(role, _PART_BREAK.join(parts), place)
    if not isinstance(content, str):
        named = f"is {_kind(content)}" if dialect.content in value else "is missing"
        raise InputError(f'{place}: "{dialect.content}" {named}; use a text')
    return Message(role, content, place)


def _part(part: Any, place: str, number: int) -> str:
    """The text of one part of a content. Pictures and sounds are not left out unnoticed."""
    if not isinstance(part, dict):
        raise InputError(
            f'{place}: part {number} of "content" is {_kind(part)}; use {{"type": "text", "text": "..."}}'
        )
    if part.get("type") != "text":
        named = f"is of type {_shown(part['type'])}" if "type" in part else "has no type"
        raise InputError(f'{place}: part {number} of "content" {named}; only text can be read')
    if not isinstance(text := part.get("text"), str):
        named = f"is {_kind(text)}" if "text" in part else "is missing"
        raise InputError(f'{place}: "text" of part {number} of "content" {named}; use a text')
    return text


def _document(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise InputError(
                f"{source} holds more than one JSON document: a second begins in line {error.lineno}",
                hint="keep one; or write a message a line, as `jq -c .` does",
            ) from error
        raise InputError(
            f"{source}: not JSON: {_lower(error.msg)} at line {error.lineno}, column {error.colno}"
        ) from error
    except (RecursionError, ValueError) as error:
        raise _unreadable(error, source) from error


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON: {_lower(error.msg)} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise _unreadable(error, place) from error


def _unreadable(error: Exception, place: str) -> InputError:
    """Nested without end, or a number of 5,000 digits."""
    reason = "nested too deeply" if isinstance(error, RecursionError) else _lower(str(error))
    return InputError(f"{place}: not JSON: {reason}")


def _several(source: str, which: str) -> InputError:
    return InputError(
        f"{source} holds more than one conversation, {which}",
        hint="keep one in a file: `head -n 1` takes the first line, `jq '.[0]'` the first in a list",
    )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
