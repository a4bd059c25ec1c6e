"""Passages to look at: a text, cut where sentences begin, each passage as long as the others.

Where no text is given, the one that every Python carries is read: the topics of `help()`.
"""

import re
from collections.abc import Sequence
from typing import BinaryIO

from sinkchat.chat.tokenizer import Tokenizer
from sinkchat.errors import InputError
from sinkchat.lab.perplexity.text import TextSource

BUILT_IN = "Python's help topics"

MOST_CHARACTERS = 16
"""Characters that are read for each token of a passage: more than any language needs."""

_BEGINNINGS = re.compile(r"(?:\A|[.!?][\"'”’)]*\s+|\n\s*\n\s*)(?=[^\W\d_])")


def text_of(names: Sequence[str], stdin: BinaryIO) -> str:
    """The texts of files, `-` being stdin; the built-in one where none is named. Raises `InputError`."""
    if not names:
        return built_in_text()
    texts = []
    for name in names:
        source = TextSource(name, stdin)
        texts.append("".join(source.pieces()))
        if not texts[-1].strip():
            raise InputError(f"{source.shown} is empty", hint="a text of some hundred words")
    return "\n\n".join(texts)


def built_in_text() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())


def passages_of(tokenizer: Tokenizer, text: str, *, length: int, count: int) -> list[list[int]]:
    """At most `count` passages of `length` ids, spread evenly over `text`, each from the beginning of a sentence.

    Each is encoded for itself, so it has what the tokenizer puts before a text; no special token is recognised in it.
    Raises `InputError` where there is none that long.
    """
    starts = [found.end() for found in _BEGINNINGS.finditer(text)]
    passages: list[list[int]] = []
    for start in _spread(starts, count):
        passage = encoded(tokenizer, text[start:], length)
        if len(passage) == length:
            passages.append(passage)
    if not passages:
        raise InputError(
            f"the text is too short: no sentence of it has {length:,} tokens after its beginning",
            hint="a longer text, or a smaller --length",
        )
    return passages


def encoded(tokenizer: Tokenizer, text: str, count: int) -> list[int]:
    """The first `count` ids of `text`, or all."""
    return tokenizer.encode(text[: count * MOST_CHARACTERS], split_special_tokens=True)[:count]


def _spread(starts: Sequence[int], count: int) -> list[int]:
    """`count` of the starts, or all, evenly."""
    if len(starts) <= count:
        return list(starts)
    return [starts[index * len(starts) // count] for index in range(count)]
