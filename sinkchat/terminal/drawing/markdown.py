"""Markdown in two ways: light while an answer streams, and laid out when a person asks for it.

Light means that text is written once and never laid out again. Every character that the model wrote is
there, in its place, so copying gives what it wrote; styles are laid over it and the marks (`**`, backticks,
`#`) are dim. A span is styled when it ends, so what may become one is held back: never past the end of
its line, and never for more than `LIMIT` characters, after which it is text. Everything is decided by the
characters alone, never by how they arrive, and whatever is given out has its styles closed: a footer may
be drawn, or the answer broken off, after any of it.

CommonMark is followed where people follow it. Where they do not (`a*b*c`, `2**3**4`, `__init__`, URLs)
text is text, and a fence may be indented as far as it likes, since models lose count in lists.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Protocol, TypeAlias

from sinkchat.terminal.drawing.spans import BOLD, BULLET, CODE, ITALIC, LIMIT, MARK, SPECIAL, span
from sinkchat.terminal.sanitize import visible

_RESET = "\x1b[0m"
_STYLES = {BOLD: "bold", ITALIC: "italic", CODE: "cyan", BULLET: "cyan"}

_FENCE = re.compile(r"(?P<marks>`{3,}(?=[^`]*$)|~{3,}).*", re.DOTALL)
_FENCE_LINE = re.compile(rf"(?P<before>(?:[ \t>]|[-*+•][ \t]|\d{{1,9}}[.)][ \t])*){_FENCE.pattern}", re.DOTALL)
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}[ \t]*")
_HEADING = re.compile(r"#{1,6}(?=[ \t])")
_BEFORE_TEXT = (
    (re.compile(r"[ \t]+"), 0),
    (re.compile(r"(?:[-*+•]|\d{1,9}[.)])(?=[ \t])"), BULLET),
    (re.compile(">"), MARK),
)
_UNDECIDED = re.compile(r"#{1,6}|[-*+•]|\d{1,9}[.)]?|`{1,2}|`{3,}[^`]*|~{1,2}|~{3,}.*|([-*_])(?:[ \t]*\1)*[ \t]*")
"""The beginning of a line that may still become one thing or another"""
_BLANKS = re.compile(r"[ \t]+")
_TEXT_END = re.compile(r"[`*_\\]")
_WORD_END = re.compile(r"[ \t`*_\\]")
_CODE_WORD_END = _BLANKS

_Decided: TypeAlias = tuple[int, str] | None
"""The place in the line up to which it is decided, and how that looks; None while more must be seen"""


class StreamedText(Protocol):
    """Text of a model on its way to a screen. What comes out is visible and leaves no style on."""

    def push(self, text: str) -> str:
        """As much as can be shown now."""
        ...

    def flush(self) -> str:
        """The rest; the next text begins anew."""
        ...


class PlainText:
    """The text as it is, made visible. `mark` dresses what had to be written out."""

    def __init__(self, *, mark: Callable[[str], str] = str) -> None:
        self._mark = mark

    def push(self, text: str) -> str:
        return visible(text, mark=self._mark)

    def flush(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code fence: its backticks or tildes, and what stood before them on the line."""

    marks: str
    before: str

    @classmethod
    def opened_by(cls, line: str) -> "Fence | None":
        found = _FENCE_LINE.fullmatch(line)
        return cls(found["marks"], found["before"]) if found else None

    def closes_at(self, line: str) -> bool:
        """Whether this line ends the block."""
        length, rest = self._marks_of(line)
        return length >= len(self.marks) and not rest.strip()

    def may_close_at(self, beginning: str) -> bool:
        """Whether a line that begins so may still end the block."""
        return not self._marks_of(beginning)[1] or self.closes_at(beginning)

    def content(self, line: str) -> str:
        """A line of code without what stands before it because of the list or quote around the block."""
        for mark in self.before:
            if line[:1] in (" ", "\t") or line[:1] == mark == ">":
                line = line[1:]
        return line

    def _marks_of(self, line: str) -> tuple[int, str]:
        text = line.lstrip(" \t>" if ">" in self.before else " \t")
        rest = text.lstrip(self.marks[0])
        return len(text) - len(rest), rest


def code_blocks(text: str) -> list[str]:
    """The contents of the fenced code blocks, without the fences. One that is still open counts."""
    blocks: list[list[str]] = []
    fence: Fence | None = None
    for line in text.removesuffix("\n").split("\n"):
        if fence is None:
            if fence := Fence.opened_by(line):
                blocks.append([])
        elif fence.closes_at(line):
            fence = None
        else:
            blocks[-1].append(fence.content(line))
    return ["\n".join(lines) for lines in blocks]


def render(text: str, *, columns: int, color: bool) -> str:
    """The whole text laid out in so many columns, a newline at its end; of escape sequences SGR at most."""
    from sinkchat.terminal.drawing.rendering import laid_out

    return laid_out(text, columns=columns, color=color)


class LightMarkdown:
    """Markdown dressed while it streams, for a screen with colours.

    The methods that take `(line, at, ended)` each decide what stands at one place of a line, whose end
    has come or not. They look at no more than LIMIT + 1 characters, so that nothing depends on how many
    have arrived.
    """

    def __init__(self) -> None:
        self._openings = _openings()
        self._held = ""
        """what is kept back of the current line"""
        self._fence: Fence | None = None
        self._begin_line()

    def push(self, text: str) -> str:
        *lines, last = (self._held + text).split("\n")
        out: list[str] = []
        for line in lines:
            out += self._advance(line, ended=True), "\n"
            self._begin_line()
        out.append(self._advance(last, ended=False))
        return "".join(out)

    def flush(self) -> str:
        rest = self._advance(self._held, ended=True)
        self._fence = None
        self._begin_line()
        return rest

    def _begin_line(self) -> None:
        self._decide: Callable[[str, int, bool], _Decided] = (
            partial(self._first_of_code, self._fence) if self._fence else self._first
        )
        self._before = ""
        """what stood before the text of the line: indentation, bullets, `>`"""
        self._look = 0
        """how this line looks where nothing else is said"""
        self._word = ""
        """the end of the word that is being written, or `://` in a URL"""

    def _advance(self, line: str, *, ended: bool) -> str:
        """The line dressed as far as it is decided; the rest is held."""
        at = 0
        out: list[str] = []
        while at < len(line) and (decided := self._decide(line, at, ended)):
            at, dressed = decided
            out.append(dressed)
        self._held = line[at:]
        return "".join(out)

    def _first(self, line: str, at: int, ended: bool) -> _Decided:
        start, is_whole = _seen(line, at, ended)
        if not ended and len(start) <= LIMIT and _UNDECIDED.fullmatch(start):
            return None
        if is_whole and (found := _FENCE.fullmatch(start)):
            self._fence = Fence(found["marks"], self._before)
            return len(line), self._dress(start, MARK)
        if is_whole and _RULE.fullmatch(start):
            return len(line), self._dress(start, MARK)
        for pattern, look in _BEFORE_TEXT:
            if found := pattern.match(start):
                self._before += found.group()
                self._look |= ITALIC if look == MARK else 0
                return at + found.end(), self._dress(found.group(), look)
        self._decide = self._inline
        if found := _HEADING.match(start):
            self._look |= BOLD
            return at + found.end(), self._dress(found.group(), MARK)
        return self._inline(line, at, ended)

    def _first_of_code(self, fence: Fence, line: str, at: int, ended: bool) -> _Decided:
        start, is_whole = _seen(line, at, ended)
        if not ended and len(start) <= LIMIT and fence.may_close_at(start):
            return None
        if is_whole and fence.closes_at(start):
            self._fence = None
            return len(line), self._dress(start, MARK)
        self._look = CODE
        self._decide = partial(self._word_by_word, _CODE_WORD_END)
        return self._decide(line, at, ended)

    def _inline(self, line: str, at: int, ended: bool) -> _Decided:
        if _TEXT_END.match(line, at):
            return self._special(line, at, ended)
        if self._look:
            return self._word_by_word(_WORD_END, line, at, ended)
        found = _TEXT_END.search(line, at)
        stop = found.start() if found else len(line)
        return stop, self._text(line[at:stop])

    def _word_by_word(self, end: re.Pattern[str], line: str, at: int, ended: bool) -> _Decided:
        """Text that has a look, a word at a time: those are its smallest pieces, however it arrives."""
        if found := _BLANKS.match(line, at):
            return found.end(), self._text(found.group())
        limit = at + LIMIT
        found = end.search(line, at, limit)
        stop = found.start() if found else min(len(line), limit)
        if stop == len(line) < limit and not ended:
            return None
        return stop, self._text(line[at:stop])

    def _special(self, line: str, at: int, ended: bool) -> _Decided:
        text, is_whole = _seen(line, at, ended)
        looks = span(text, before=self._word, is_whole=is_whole)
        if looks is None and len(text) <= LIMIT:
            return None
        if not looks:  # the marks are text
            stop = next(SPECIAL.finditer(text)).end()
            return at + stop, self._text(text[:stop])
        out: list[str] = []
        stop = 0
        for look, alike in groupby(MARK if look & MARK else look | self._look for look in looks):
            start, stop = stop, stop + len(list(alike))
            out.append(self._dress(text[start:stop], look))
        self._remember(text[:stop])
        return at + stop, "".join(out)

    def _text(self, text: str) -> str:
        self._remember(text)
        return self._dress(text, 0 if text.isspace() else self._look)

    def _remember(self, text: str) -> None:
        word = re.split(r"\s", self._word + text)[-1]
        self._word = "://" if "://" in word else word[-2:]

    def _dress(self, text: str, look: int) -> str:
        opening, dim = self._openings[look], self._openings[MARK]
        if not opening:
            return visible(text, mark=lambda written: f"{dim}{written}{_RESET}")
        shown = visible(text, mark=lambda written: f"{_RESET}{dim}{written}{_RESET}{opening}")
        return f"{opening}{shown}{_RESET}"


def _seen(line: str, at: int, ended: bool) -> tuple[str, bool]:
    """What may be looked at from this place on, and whether it is all there is."""
    return line[at : at + LIMIT + 1], ended and len(line) - at <= LIMIT


@lru_cache(maxsize=1)
def _openings() -> tuple[str, ...]:
    """The SGR sequence that begins each look."""
    from rich.color import ColorSystem
    from rich.style import Style

    def opening(look: int) -> str:
        words = [word for bit, word in _STYLES.items() if look & bit]
        style = Style.parse("dim" if look == MARK else " ".join(words) or "none")
        return style.render("|", color_system=ColorSystem.STANDARD).partition("|")[0]

    return tuple(map(opening, range(MARK + 1)))
