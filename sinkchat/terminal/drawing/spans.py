"""Spans within a line of Markdown: what begins here, bold, italic or code, and where it ends.

A pure function of a piece of text, which is asked again when the piece has grown: it says that it is a
span, that it is none, or that more must be seen, and never takes back what it said.
"""

import re

LIMIT = 80
"""No span is longer, marks included"""

BOLD, ITALIC, CODE, BULLET, MARK = 1, 2, 4, 8, 16
"""What a character looks like: a sum of these. A mark is a mark, whatever else it is"""

SPECIAL = re.compile(r"`+|\*+|_+|\\[!-/:-@\[-`{-~]?")
"""Runs of marks, and what a backslash makes text of"""


def span(text: str, *, before: str, is_whole: bool) -> list[int] | None:
    """How each character of the span that begins the text looks.

    Empty where no span begins, None where more must be seen. `before` is the end of the word in front,
    `is_whole` says that the line ends with the text.
    """
    looks = [0] * len(text)
    opened: list[tuple[int, int]] = []
    """place and length of each run of stars or underscores that nothing has closed yet"""
    stop = 0
    while found := SPECIAL.search(text, stop):
        start, stop = found.span()
        run = found.group()
        if stop == len(text) and not is_whole:
            return None
        if run[0] == "`":
            closing = re.compile(rf"(?<!`){run}(?!`)").search(text, stop)
            if not is_whole and (closing is None or closing.end() == len(text)):
                return None
            if closing:
                _lay(looks, CODE, start, stop, closing.start(), closing.end())
                stop = closing.end()
        elif run[0] != "\\":
            word = re.split(r"\s", before + text[:start])[-1]
            following = text[stop : stop + 1]
            closed = word and not _is_word(following, run) and _close(opened, looks, text, start, stop)
            if not closed and _may_open(run, word, following):
                opened.append((start, len(run)))
        if not opened:
            return looks[:stop] if any(looks) else []
    return [] if is_whole else None


def _may_open(run: str, word: str, following: str) -> bool:
    return (
        len(run) <= 3
        and bool(following.strip())
        and not (run == "*" and following in "./")  # *.py
        and not _is_word(word[-1:], run)
        and word[-1:] not in (")", "]", "}")
        and "://" not in word
    )


def _is_word(character: str, run: str) -> bool:
    """Whether a run beside this character stands inside a word. Chinese has no blanks: there stars may."""
    return character.isalnum() and (run[0] == "_" or character.isascii())


def _close(opened: list[tuple[int, int]], looks: list[int], text: str, start: int, stop: int) -> bool:
    """Ends what the run from `start` to `stop` can end: first one of its length, else several, inner first."""
    alike = [
        index for index, (place, length) in enumerate(opened) if text[place : place + length] == text[start:stop]
    ]
    if alike:
        del opened[alike[-1] + 1 :]
    at = start
    while at < stop and opened:
        place, length = opened[-1]
        used = min(length, stop - at)
        if text[place] != text[start] or length not in (used, 3):
            break
        opened.pop()
        if used < length:
            opened.append((place, length - used))
        inner = place + length
        is_name = text[start] == "_" and used > 1 and not re.search(r"\s", text[inner:at])
        if not is_name:  # __init__ is one
            _lay(looks, (ITALIC, BOLD, BOLD | ITALIC)[used - 1], inner - used, inner, at, at + used)
        at += used
    return at > start


def _lay(looks: list[int], look: int, *places: int) -> None:
    """Lays a look over a span: its marks from the first place to the second and the third to the fourth."""
    start, inner, closing, stop = places
    for at in range(start, stop):
        looks[at] |= look if inner <= at < closing else MARK
