"""A conversation as a file: for people as Markdown, for programs as JSON or JSON lines.

JSON lines have the form that `sinkchat run --input jsonl` and `/load` read. Nothing is held in memory at once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from sinkchat.chat.options import ModelCard


class Exchange(Protocol):
    """What was said in one turn."""

    @property
    def user(self) -> str: ...
    @property
    def answer(self) -> str: ...


class Held(Protocol):
    """A turn that the window holds something of."""

    @property
    def number(self) -> int: ...


class Exported(Protocol):
    """What an export needs of a conversation."""

    @property
    def card(self) -> ModelCard: ...
    @property
    def system(self) -> str | None: ...
    @property
    def first(self) -> int:
        """The oldest turn of which the words are kept."""
        ...

    @property
    def latest(self) -> int: ...
    @property
    def held(self) -> Sequence[Held]: ...

    @property
    def pinned_turns(self) -> tuple[int, ...]: ...

    def said(self, turn: int) -> Exchange: ...


Export: TypeAlias = Callable[[Exported], Iterator[str]]


def as_markdown(conversation: Exported) -> Iterator[str]:
    """A page with a heading for each turn, and a rule before the first that memory still holds."""
    card = conversation.card
    yield f"# A conversation with {card.name}\n"
    if conversation.system:
        yield f"\n{_quoted(conversation.system)}\n"
    held = {turn.number for turn in conversation.held}
    is_told = False
    for number in range(conversation.first, conversation.latest + 1):
        if number in held and not is_told:
            is_told = True
            if number > conversation.first:
                yield "\n---\n\n*Memory begins here: the turns above are forgotten, but for those that are pinned.*\n"
        said = conversation.said(number)
        pinned = " (pinned)" if number in conversation.pinned_turns else ""
        yield f"\n## Turn {number}{pinned}\n\n{_quoted(said.user)}\n\n{said.answer.strip()}\n"


def as_jsonl(conversation: Exported) -> Iterator[str]:
    """`{"role": ..., "content": ...}` a line."""
    for message in _messages(conversation):
        yield f"{json.dumps(message, ensure_ascii=False)}\n"


def as_json(conversation: Exported) -> Iterator[str]:
    """One object: the model, and the messages in the form that chat APIs take."""
    card = conversation.card
    about = {"model": card.name, "quant": card.quant, "dtype": card.dtype, "turns": conversation.latest}
    yield f'{json.dumps(about, ensure_ascii=False)[:-1]}, "messages": ['
    for index, message in enumerate(_messages(conversation)):
        yield f"{',' if index else ''}\n{json.dumps(message, ensure_ascii=False)}"
    yield "\n]}\n"


FORMS: dict[str, Export] = {".md": as_markdown, ".json": as_json, ".jsonl": as_jsonl}
"""by the end of the file's name"""


def _messages(conversation: Exported) -> Iterable[dict[str, str]]:
    if conversation.system is not None:
        yield {"role": "system", "content": conversation.system}
    for number in range(conversation.first, conversation.latest + 1):
        said = conversation.said(number)
        yield {"role": "user", "content": said.user}
        yield {"role": "assistant", "content": said.answer}


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.splitlines())
