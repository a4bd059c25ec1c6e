"""stdin as text, while it arrives.

Bytes come in pieces of at most 64 KiB, as soon as there are any, and become text at once: UTF-8 with the
bad bytes replaced and counted, the byte order mark dropped, CRLF folded. Only what cannot be decided yet
is held back: half a character, a carriage return, the beginning of a line. What the text means is decided
elsewhere, and whether it is fit for a screen too.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from io import BufferedIOBase
from itertools import chain
from typing import BinaryIO, cast

READ_SIZE = 64 * 1024

_BAD_BYTE = re.compile("[\udc80-\udcff]")


class Intake:
    """The text of a byte stream. `bad_bytes` counts what was not UTF-8 so far.

    `waiting` surrounds every read that may block, so that Ctrl-C can end it.
    """

    def __init__(self, stream: BinaryIO, *, waiting: Callable[[], AbstractContextManager[object]]) -> None:
        self._stream = cast(BufferedIOBase, stream)
        self._waiting = waiting
        self.bad_bytes = 0

    def pieces(self) -> Iterator[str]:
        """The text in pieces of any size, never empty."""
        # Each byte that is not UTF-8 becomes one lone surrogate, which UTF-8 itself cannot give.
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        held = ""
        while data := self._read():
            text = held + decoder.decode(data)
            held = "\r" if text.endswith("\r") else ""
            yield from self._finished(text[: len(text) - len(held)])
        yield from self._finished(held + decoder.decode(b"", final=True))

    def lines(self) -> Iterator[str]:
        """The text line by line, each as soon as it is whole, without its line feed."""
        parts: list[str] = []
        for piece in self.pieces():
            first, *others = piece.split("\n")
            parts.append(first)
            for other in others:
                yield "".join(parts)
                parts = [other]
        if last := "".join(parts):
            yield last

    def _read(self) -> bytes:
        with self._waiting():
            return self._stream.read1(READ_SIZE)

    def _finished(self, text: str) -> Iterator[str]:
        text, bad = _BAD_BYTE.subn("\ufffd", text.replace("\r\n", "\n"))
        self.bad_bytes += bad
        if text:
            yield text


def without_final_newlines(pieces: Iterable[str]) -> Iterator[str]:
    """The same text, less the line feeds that end it."""
    held = ""
    for piece in pieces:
        text = held + piece
        body = text.rstrip("\n")
        held = text[len(body) :]
        if body:
            yield body


def unless_blank(pieces: Iterator[str]) -> Iterator[str] | None:
    """The same pieces, or None when they hold nothing but blanks. Reads up to the first word."""
    blank: list[str] = []
    for piece in pieces:
        blank.append(piece)
        if not piece.isspace():
            return chain(["".join(blank)], pieces)
    return None
