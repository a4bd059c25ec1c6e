"""A footer that stays below text which is still being written: ten frames a second, one write each.

Text is written once and never touched again, so that wrapping, copying and scrollback stay the terminal's
own. The footer stands below it and is erased before text takes its place. Between two frames the cursor
rests where the text ends and attributes are reset, so that whatever happens next, a resize, a signal, an
exception, finds the footer below and to the right of the cursor, where one `CSI J` erases it.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, TextIO

from sinkchat.terminal.drawing.footer import RESETS, STYLE, changes, drawn_below
from sinkchat.terminal.drawing.pen import Pen
from sinkchat.terminal.environment import silence

Footer = Callable[[int, int], list[str]]
"""Rows for a screen of so many columns and lines: styled, each narrower than the screen."""

FRAME_SECONDS = 0.1
_FEWEST_LINES = 5
_FOOTER_SHARE = 4  # of the screen at most: rows that a resize wraps still leave the cursor on the screen
_SETTLE_SECONDS = 0.5
"""After a resize without a footer: while a window is being dragged, rows that wrap at each step would push the
text off the screen (tmux 3.3 then puts the cursor into the corner and the footer cannot be found again)."""
_LEAST = 2  # columns or lines: less is a terminal that does not know
_FALLBACK = os.terminal_size((80, 24))
_BEGIN, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?25h\x1b[?2026l"  # one synchronised update, the cursor hidden
_ERASE_BELOW = "\x1b[J"
_RESET = "\x1b[m"
_FIRST = re.compile(r"(?:\x1b\[[0-9;:]*m)*[^\x1b]")


class Stage(Protocol):
    """Where an answer is written. Leaving its context leaves nothing but text."""

    def write(self, text: str) -> None:
        """Takes text that is visible, with styles that end in a reset."""
        ...

    def tick(self) -> None:
        """Gives the footer a chance to change where no text comes."""
        ...

    def pause(self) -> None:
        """Writes what is held back and takes the footer away, until more is written."""
        ...

    def step_aside(self) -> None:
        """Pauses, and ends a line that has begun: now others may write lines."""
        ...

    def begin_line(self) -> None:
        """After a pause others have brought the cursor to the start of a line."""
        ...

    @property
    def is_drawing(self) -> bool:
        """Whether the stream is in the middle of a write, where a signal's handler must not write too."""
        ...

    def __enter__(self) -> "Stage": ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None: ...


class Plain:
    """A stage without a footer, for what has no cursor to move: text goes out as it comes."""

    is_drawing = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_in_line = False

    def write(self, text: str) -> None:
        if seen := STYLE.sub("", text):
            self._is_in_line = not seen.endswith("\n")
        self._stream.write(text)
        self._stream.flush()

    def tick(self) -> None:
        """Nothing changes where nothing is drawn."""

    def pause(self) -> None:
        """Nothing is held back."""

    def step_aside(self) -> None:
        if self._is_in_line:
            self.write("\n")

    def begin_line(self) -> None:
        self._is_in_line = False

    def __enter__(self) -> "Plain":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """There is nothing to undo."""


class Frames:
    """A stage on a terminal, which begins at the start of a line."""

    def __init__(
        self,
        stream: TextIO,
        footer: Footer,
        *,
        size: Callable[[], os.terminal_size],
        clock: Callable[[], float],
    ) -> None:
        self._stream = stream
        self._footer = footer
        self._size_now = size
        self._clock = clock
        self._drawn_at = float("-inf")
        self._size = self._read_size()
        self._resized = False
        self._settled_at = float("-inf")
        self._blank = 0
        self._pen = Pen()
        self._text = ""
        self._style = ""
        self._rows: list[str] = []
        self._is_drawing = False

    @property
    def is_drawing(self) -> bool:
        return self._is_drawing

    def write(self, text: str) -> None:
        with self._drawing():
            self._text += text
            self._draw_if_due()

    def tick(self) -> None:
        with self._drawing():
            self._draw_if_due()

    def pause(self) -> None:
        with self._drawing():
            self._notice_size()
            first = self._first()
            if self._rows and first is None:
                first = self._text = "\n"
            text, self._text = self._text, ""
            self._pen.follow_all(text, self._size.columns)
            frame = self._appended(text, erased_after=first or "")
            self._rows, self._drawn_at = [], float("-inf")
            self._send(frame)

    def step_aside(self) -> None:
        self.pause()
        if not self._pen.at_line_start:
            self._text = "\n"
            self.pause()

    def begin_line(self) -> None:
        self._pen = Pen()

    def __enter__(self) -> "Frames":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            self.pause()
        except OSError:  # the terminal has gone, and what brought us here says more
            silence(self._stream)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        self._is_drawing = True
        try:
            yield
        finally:
            self._is_drawing = False

    def _draw_if_due(self) -> None:
        now = self._clock()
        if now - self._drawn_at >= FRAME_SECONDS:
            self._drawn_at = now
            self._draw(now)

    def _draw(self, now: float) -> None:
        self._notice_size()
        first = self._first()
        if first is None:
            return
        rows = self._footer_rows() if now >= self._settled_at else []
        stroke = self._pen.follow(self._text, self._size.columns)
        if stroke.length < len(first):
            return
        text, self._text = self._text[: stroke.length], self._text[stroke.length :]
        self._blank = max(0, self._blank - stroke.rows)
        if self._resized or stroke.leaves_row or len(rows) != len(self._rows):
            frame = self._appended(text, erased_after=first) + drawn_below(rows)
        elif changed := changes(self._rows, rows):
            frame = f"{self._styled(text)}{changed}"
        else:
            frame = self._styled(text)
        has_footer = bool(rows or self._rows)
        self._rows, self._resized = rows, False
        self._send(f"{_BEGIN}{frame}{_END}" if frame and has_footer else frame)

    def _footer_rows(self) -> list[str]:
        """What the footer shows now, in the part of the screen that is in use."""
        lines = self._size.lines - self._blank
        if lines < _FEWEST_LINES:
            return []
        return self._footer(self._size.columns, lines)[: lines // _FOOTER_SHARE]

    def _notice_size(self) -> None:
        size = self._read_size()
        if size != self._size:
            wrapped = len(self._rows) * ((self._size.columns - 1) // size.columns)
            self._blank = max(0, self._blank + wrapped - max(0, self._size.lines - size.lines))
            self._size, self._resized = size, True
            self._settled_at = self._clock() + _SETTLE_SECONDS
            self._pen.resized(size.columns)

    def _read_size(self) -> os.terminal_size:
        try:
            size = self._size_now()
        except OSError:
            return _FALLBACK
        return size if min(size) >= _LEAST else _FALLBACK

    def _first(self) -> str | None:
        """What must be written before the footer is erased, lest that erase the end of a full row.

        Mostly nothing. None where there should be something and is no text.
        """
        if not self._pen.may_be_at_margin(self._size.columns):
            return ""
        found = _FIRST.match(self._text)
        return found.group() if found else None

    def _appended(self, text: str, *, erased_after: str) -> str:
        """Erases the footer, and writes `text` in its place."""
        first, rest = erased_after, text[len(erased_after) :]
        return f"{self._styled(first)}{_ERASE_BELOW if self._rows else ''}{self._styled(rest)}"

    def _styled(self, text: str) -> str:
        """The text in the style that the last one ended in, which stays with us and not with the terminal."""
        before = self._style if text else ""
        for style in STYLE.findall(text):
            self._style = "" if style in RESETS else self._style + style
        return f"{before}{text}{_RESET if text and self._style else ''}"

    def _send(self, data: str) -> None:
        if data:
            self._stream.write(data)
            self._stream.flush()
