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
    """A page with a heading for each turn, and a rule from which on memory holds all of them."""
    card = conversation.card
    yield f"# A conversation with {card.name}\n"
    if conversation.system:
        yield f"\n{_quoted(conversation.system)}\n"
    pinned = set(conversation.pinned_turns)
    remembered = pinned | {turn.number for turn in conversation.held}
    begins = conversation.latest + 1
    while begins - 1 in remembered:
        begins -= 1
    rule = _rule(sorted(number for number in remembered if number < begins), pinned)
    for number in range(conversation.first, conversation.latest + 1):
        if number == begins > conversation.first:
            yield rule
        said = conversation.said(number)
        mark = " (pinned)" if number in pinned else ""
        yield f"\n## Turn {number}{mark}\n\n{_quoted(said.user)}\n\n{said.answer.strip()}\n"
    if conversation.first <= conversation.latest < begins:
        yield rule


def as_jsonl(conversation: Exported) -> Iterator[str]:
    """`{"role": ..., "content": ...}` a line."""
    for message in _messages(conversation):
        yield f"{json.dumps(message, ensure_ascii=False)}\n"


def as_json(conversation: Exported) -> Iterator[str]:
    """One object: the model, how many turns follow, and the messages in the form that chat APIs take."""
    card = conversation.card
    about = {
        "model": card.name,
        "quant": card.quant,
        "dtype": card.dtype,
        "turns": conversation.latest - conversation.first + 1,
    }
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


def _rule(remembered: list[int], pinned: set[int]) -> str:
    """The rule below turns of which these are remembered nevertheless."""
    named = " and ".join(f"turn {number}{' (pinned)' if number in pinned else ''}" for number in remembered)
    rest = f", but for {named}" if named else ""
    return f"\n---\n\n*Memory begins here: the turns above are forgotten{rest}.*\n"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.splitlines())
