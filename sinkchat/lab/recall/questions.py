"""Questions and answers in one stream (the paper's section 4.3): each is asked after all before it, and marked.

A line of the file is a JSON object: `{"question": "...", "answer": "..."}`, where several answers that will do are a
list; or turns as MT-bench has them, `{"turns": ["...", "..."]}`, with `"reference"` answers or without. What has no
answer is asked and not marked.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sinkchat.errors import InputError

_HINT = 'lines such as {"question": "...", "answer": "..."}'
_NO_LETTER = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answers: tuple[str, ...]
    """any of which will do; empty where none is known"""


@dataclass(frozen=True, slots=True)
class Reply:
    """What was said to a question, `evicted` tokens after the beginning of memory."""

    number: int
    """from 1"""
    question: Question
    said: str
    tokens: int
    """that were read for it"""
    seen: int
    evicted: int

    @property
    def is_marked(self) -> bool:
        return bool(self.question.answers)

    @property
    def is_exact(self) -> bool:
        """Whether the first line says an answer and nothing else, letters and digits compared without case."""
        first = self.said.strip().partition("\n")[0]
        return _plain(first) in map(_plain, self.question.answers)

    @property
    def has_answer(self) -> bool:
        """Whether an answer stands in it, as whole words."""
        said = f" {_plain(self.said)} "
        return any(f" {_plain(answer)} " in said for answer in self.question.answers)


@dataclass(frozen=True, slots=True)
class Score:
    """The questions so far: how many have a known answer, and how many of these were right."""

    asked: int
    marked: int
    exact: int
    contained: int


def score(replies: Sequence[Reply]) -> Score:
    marked = [reply for reply in replies if reply.is_marked]
    return Score(
        len(replies),
        len(marked),
        sum(reply.is_exact for reply in marked),
        sum(reply.has_answer for reply in marked),
    )


def read_questions(lines: Iterable[str], source: str) -> Iterator[Question]:
    """The questions in `lines`. Raises `InputError` for a line that holds none, and where there is none at all."""
    count = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            for question in _questions(line, f"{source} line {number}"):
                count += 1
                yield question
    if not count:
        raise InputError(f"{source} holds no question", hint=_HINT)


def _questions(line: str, place: str) -> list[Question]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place} is no JSON: {error}", hint=_HINT) from error
    except RecursionError as error:
        raise InputError(f"{place} is nested too deep", hint=_HINT) from error
    if not isinstance(value, dict):
        raise InputError(f"{place} is no JSON object", hint=_HINT)
    if "turns" in value:
        turns, references = value["turns"], value.get("reference") or []
        if not _are_texts(turns) or not turns:
            raise InputError(f"{place}: turns must be a list of texts", hint=_HINT)
        if not _are_texts(references) or len(references) > len(turns):
            raise InputError(f"{place}: reference must be a list of texts, one a turn at most", hint=_HINT)
        known: list[tuple[str, ...]] = [tuple(filter(_plain, [reference])) for reference in references]
        known += [()] * (len(turns) - len(known))
        return [Question(turn, answers) for turn, answers in zip(turns, known, strict=True)]
    text, answer = value.get("question"), value.get("answer", [])
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place} has no question", hint=_HINT)
    answers = [answer] if isinstance(answer, str | int | float) else answer
    if not isinstance(answers, list) or not all(isinstance(one, str | int | float) for one in answers):
        raise InputError(f"{place}: answer must be a text, or a list of texts", hint=_HINT)
    return [Question(text, tuple(one for one in map(str, answers) if _plain(one)))]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _plain(text: str) -> str:
    """Letters and digits only, a blank between words."""
    return _NO_LETTER.sub(" ", text).strip().casefold()
