"""Where words meet a stream: colour, characters that the encoding lacks, one line that redraws itself.

A `Screen` is one stream dressed for what it is. Text is written straight to it, once, so that wrapping,
copying and scrollback stay the terminal's own; Rich gives the styles and nothing else, and never sees
text as markup. Notes and errors have their form here too.
"""

import io
from collections.abc import Callable
from typing import TextIO

from sinkchat.errors import SinkchatError
from sinkchat.terminal.environment import ColorChoice, Environment, silence
from sinkchat.terminal.sanitize import one_line, visible

_PLAIN = str.maketrans({"·": "|", "─": "-", "–": "-", "…": "...", "•": "*", "▌": "|"})
_ERASE_LINE = "\r\x1b[2K"
_FRAME_SECONDS = 0.1


class Screen:
    """One output stream with its colours and its status line."""

    def __init__(
        self,
        stream: TextIO,
        *,
        color: bool = False,
        cursor: bool = False,
        is_ascii: bool = False,
        clock: Callable[[], float],
    ) -> None:
        self._stream = stream
        self._is_ascii = is_ascii
        self._color = color
        self._cursor = cursor
        self._clock = clock
        self._status_shown = False
        self._status_at = float("-inf")

    @classmethod
    def on(
        cls, stream: TextIO, environment: Environment, choice: ColorChoice = "auto", *, is_ascii: bool = False
    ) -> "Screen":
        """The screen that `stream` is in this environment; `is_ascii` spells words of ours with plain signs."""
        return cls(
            stream,
            color=environment.is_coloured(stream, choice),
            cursor=environment.has_cursor(stream),
            is_ascii=is_ascii,
            clock=environment.clock,
        )

    @property
    def stream(self) -> TextIO:
        """Where it all goes, for those who draw by themselves between two of its lines."""
        return self._stream

    @property
    def has_color(self) -> bool:
        return self._color

    def dressed(self, text: str) -> None:
        """Writes text that is visible and styled already."""
        self._write(self.encodable(text))

    def text(self, text: str) -> None:
        """Writes text of a model or a person, at once, made visible."""
        self._write(visible(text, mark=self.dim))

    def line(self, text: str = "") -> None:
        """Writes a line of our own, which may quote a model or a person, made visible."""
        self.text(f"{self.encodable(text)}\n")

    def aside(self, text: str) -> None:
        """Writes a line of our own beside the conversation, dim."""
        self._write(f"{self.dim(self.encodable(visible(text)))}\n")

    def note(self, text: str) -> None:
        """Writes something worth knowing that is not an error."""
        self._write(f"{self.styled('note:', 'bold')} {self.encodable(one_line(text))}\n")

    def error(self, error: SinkchatError) -> None:
        """Writes what happened, and what to type instead."""
        self._write(f"{self.styled('error:', 'bold red')} {self.encodable(one_line(error.message))}\n")
        if error.hint:
            self._write(f"  try: {self.encodable(one_line(error.hint))}\n")

    def status(self, text: str) -> None:
        """Shows `text` on a line that the next one, or anything written, takes the place of.

        Nothing where a line cannot be erased, and at most ten a second.
        """
        now = self._clock()
        if self._cursor and now - self._status_at >= _FRAME_SECONDS:
            self._stream.write(f"{_ERASE_LINE}{self.dim(self.encodable(one_line(text)))}")
            self._stream.flush()
            self._status_shown, self._status_at = True, now

    def erase_status(self) -> None:
        """Leaves the cursor where it was before the status line."""
        if self._status_shown:
            self._status_shown = False
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
        self._status_at = float("-inf")

    def dim(self, text: str) -> str:
        return self.styled(text, "dim")

    def styled(self, text: str, style: str) -> str:
        """The text in a Rich style, on a stream with colour; else as it is."""
        if not self._color:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

    def encodable(self, text: str) -> str:
        """Words of ours, with plain signs for those that the stream's encoding lacks."""
        if self._is_ascii:
            return text.translate(_PLAIN)
        try:
            text.encode(self._stream.encoding or "utf-8")
        except UnicodeEncodeError:
            return text.translate(_PLAIN)
        return text

    def _write(self, text: str) -> None:
        self.erase_status()
        self._stream.write(text)
        self._stream.flush()


class Beside(Screen):
    """stderr: what it carries is worth less than an answer, so nobody need read it."""

    def _write(self, text: str) -> None:
        try:
            super()._write(text)
        except BrokenPipeError:
            silence(self._stream)


class Nowhere(Screen):
    """A screen that shows nothing, for those who want to hear nothing."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        super().__init__(io.StringIO(), clock=clock)

    def status(self, text: str) -> None:
        """Shows nothing."""

    def _write(self, text: str) -> None:
        """Shows nothing."""
