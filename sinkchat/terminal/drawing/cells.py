"""A terminal row as pieces of text, each in a style: measured in cells, cut to fit, painted by Rich.

Rich's own layout is not used. A `Panel` takes 1.0 ms to lay out and a footer is drawn ten times a second on
machines whose cores are all needed for the model; painting finished pieces takes a tenth of that. Styles, boxes
and the widths of characters are Rich's.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style

from sinkchat.terminal.sanitize import one_line

_PLAIN = str.maketrans({"·": "|", "│": "|", "─": "-", "–": "-", "…": "..."})
_JOINING = re.compile("[\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")


class Piece(NamedTuple):
    """Text of one style; `style` is in Rich's words, empty for none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Charset:
    """The signs that are drawn with. `is_ascii` also spells every word with ASCII alone."""

    box: box.Box
    divider: str
    free: str
    done: str
    to_do: str
    ellipsis: str
    is_ascii: bool

    def spell(self, text: str) -> str:
        """The text in these signs."""
        if self.is_ascii and not text.isascii():
            return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
        return text

    def cut(self, text: str, cells: int) -> str:
        """The text, or its beginning and an ellipsis, in at most so many cells."""
        if cell_len(text) <= cells:
            return text
        kept, room = "", cells - len(self.ellipsis)
        for character in text:
            room -= cell_len(character)
            if room < 0:
                break
            kept += character
        return (kept.rstrip() + self.ellipsis)[: max(0, cells)]


UNICODE = Charset(box.ROUNDED, divider="│", free="·", done="▓", to_do="░", ellipsis="…", is_ascii=False)
ASCII = Charset(box.ASCII, divider="|", free=".", done="#", to_do=".", ellipsis="...", is_ascii=True)


def joined(parts: Iterable[Piece], between: Piece) -> list[Piece]:
    """The parts that say something, with a sign between each two."""
    pieces: list[Piece] = []
    for part in parts:
        if part.text:
            pieces += [between, part] if pieces else [part]
    return pieces


def width(pieces: Iterable[Piece]) -> int:
    """Cells that the pieces take side by side."""
    return sum(cell_len(piece.text) for piece in pieces)


def fitting(candidates: Sequence[Sequence[Piece]], cells: int, charset: Charset) -> list[Piece]:
    """The first of the candidates that fits, spelled; what there is room for of the last, where none does."""
    spelled: list[Piece] = []
    for candidate in candidates:
        spelled = [Piece(charset.spell(text), style) for text, style in candidate]
        if width(spelled) <= cells:
            return spelled
    return [Piece(charset.cut("".join(text for text, _ in spelled), cells))]


def paint(pieces: Iterable[Piece], *, color: bool) -> str:
    """The row as it is written to a terminal; without colour, its plain text."""
    if not color:
        return "".join(text for text, _ in pieces)
    return "".join(
        Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if style else text
        for text, style in pieces
    )


def steady(text: str) -> str:
    """A person's words on one line, of characters whose width no terminal doubts.

    Marks that combine, joiners, flags, skin tones and private signs are left out: where a terminal draws them wider
    than Rich measures them, a row of the footer would wrap and spoil the screen.
    """
    composed = unicodedata.normalize("NFC", one_line(_JOINING.sub("", text)))
    return "".join(sign for sign in composed if unicodedata.category(sign) not in ("Mn", "Me", "Cf", "Co", "Cn"))
