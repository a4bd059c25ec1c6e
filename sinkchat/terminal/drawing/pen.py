"""Where written text ends: which column the cursor stands in, as far as anyone outside the terminal can know.

Terminals disagree about the width of some characters, about a tab at the margin, and about what a resize
does to a line. So the pen keeps every column that is possible, the likeliest first; a line feed makes it
certain again. What it is for: behind some text the cursor must not be moved away and back. Where a row has
just been filled the wrap is still pending and would be forgotten; where a mark or a joiner may follow, the
terminal would put it on whatever was written in between.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import category

from wcwidth import wcwidth

_TAB = 8
_MOST_HELD = 200
"""characters kept back while too much is possible; then the likeliest column is trusted"""
_PIECE = re.compile(r"\x1b\[[0-9;:]*m|.", re.DOTALL)
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_ATTACHES = re.compile("[\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")  # halves of flags, skin tones
_GROWS = re.compile(  # what the next token often changes: letters of scripts with marks, emoji
    "[\u0300-\u036f\u0590-\u109f\u1780-\u17ff\u1a00-\u1aff\u200d\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]"
)


@dataclass(frozen=True, slots=True)
class Stroke:
    """What the pen made of a text."""

    length: int
    """how many of its characters may be written now; the cursor may rest behind them"""
    leaves_row: bool
    """whether they may end the row, by a line feed or by wrapping, or leave cells of it out, by a tab"""
    rows: int
    """how many rows they surely end"""


class _Place(NamedTuple):
    """A place in a text: what stands before it, and the columns it may be in."""

    end: int
    possible: tuple[int, ...]
    character: str
    attaches: bool
    """whether the character before it may belong to the one before that"""
    leaves_row: bool
    rows: int


class Pen:
    """Follows text from the start of a line on."""

    def __init__(self) -> None:
        self._possible: tuple[int, ...] = (0,)
        self._character = ""
        self._line: list[str] = []

    @property
    def at_line_start(self) -> bool:
        return self._possible == (0,)

    def may_be_at_margin(self, columns: int) -> bool:
        """Whether the cursor may stand behind a full row, the wrap pending. A resize can bring it there."""
        return columns in self._possible

    def follow(self, text: str, columns: int) -> Stroke:
        """Moves along `text`, on rows of `columns`, as far as the cursor may rest."""
        resting = candidate = _Place(0, self._possible, self._character, False, False, 0)
        for place in self._walk(text, columns):
            if not place.attaches:
                resting = candidate
            candidate = place if columns not in place.possible else resting
        if not _GROWS.match(candidate.character):
            resting = candidate
        if len(text) - resting.end > _MOST_HELD and len(self._possible) > 1:
            self._possible = self._possible[:1]
            return self.follow(text, columns)
        self._move(text, resting)
        return Stroke(resting.end, resting.leaves_row, resting.rows)

    def follow_all(self, text: str, columns: int) -> None:
        """Moves to the end of `text`, although the cursor may not be moved from there."""
        for place in self._walk(text, columns):
            last = place
        if text:
            self._move(text, last)

    def resized(self, columns: int) -> None:
        """Rows have `columns` now: the terminal laid the line out anew, or left the cursor's column alone."""
        kept = [min(column, columns - 1) for column in self._possible]
        line = "".join(self._line)
        self._possible, self._character = (0,), ""
        for place in self._walk(line, columns):
            self._possible, self._character = place.possible, place.character
        self._possible = _each_once([*self._possible, *kept])

    def _move(self, text: str, place: _Place) -> None:
        written = text[: place.end]
        if "\n" in written:
            self._line, written = [], written.rpartition("\n")[2]
        self._line.append(written)
        self._possible, self._character = place.possible, place.character

    def _walk(self, text: str, columns: int) -> Iterator[_Place]:
        """The places in `text`, from here on."""
        possible, before, leaves_row, rows = self._possible, self._character, False, 0
        for found in _PIECE.finditer(text):
            piece = found.group()
            if len(piece) > 1:  # a style
                yield _Place(found.end(), possible, before, False, leaves_row, rows)
                continue
            width = max(wcwidth(piece), 0)
            may_attach = before == _JOINER or _ATTACHES.match(piece) is not None
            if piece == "\n":
                possible, leaves_row, rows = (0,), True, rows + 1
            else:
                after: list[int] = []
                for column in possible:
                    after += _after(column, piece, width, columns)
                    leaves_row |= piece == "\t" or column + max(width, 1) > columns
                    if may_attach:
                        after += [column, *_after(column, piece, 1, columns)]
                rows += width > 0 and max(after) < min(possible)
                possible = _each_once(after)
            attaches = may_attach or (width == 0 and piece not in "\n\t")
            before = piece
            yield _Place(found.end(), possible, before, attaches, leaves_row, rows)


def _after(column: int, character: str, width: int, columns: int) -> list[int]:
    """The columns that a character may lead to. `columns` itself stands for a pending wrap."""
    if character == "\t":
        if column == columns:
            return [column, column - 1]
        return [min((column // _TAB + 1) * _TAB, columns - 1)]
    if character == _EMOJI_STYLE or category(character) == "Mc":  # a cell more on some terminals
        return [column, column + 1 if column < columns else 1]
    if width == 0:
        return [column] if column < columns else [column, 0]
    if column + width <= columns:
        return [column + width]
    return [width] if column == columns else [width, columns]


def _each_once(columns: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(columns))
