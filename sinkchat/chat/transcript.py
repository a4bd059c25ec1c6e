"""What was said, word for word, long after memory has forgotten it.

The texts of a conversation that never ends do not belong into the process: they lie in files that have no name and
vanish with it, the first megabyte of each in memory. Two files: the texts one after the other, and for each
exchange the two places where its message and its answer begin.
"""

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from sinkchat.chat.recorder import NOBODY, Recorder
from sinkchat.errors import SinkchatError

_PLACES = struct.Struct("<QQ")
_IN_MEMORY = 2**20


@dataclass(frozen=True, slots=True)
class Said:
    """One exchange in full."""

    user: str
    answer: str


class Transcript:
    """Exchanges in their order, from number `first`. The latest may still be written to.

    `recorder` hears what is said, and what is taken back.
    """

    def __init__(self, *, first: int = 1, recorder: Recorder = NOBODY) -> None:
        self.recorder = recorder
        self._texts = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (lives as long as this)
        self._places = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._length = 0
        self.first = first
        """the oldest that is kept, or will be"""
        self.count = first - 1
        """the number of the latest; of those before `first` nothing is kept"""

    def begin(self) -> None:
        """A new exchange, in which nothing was said yet."""
        self.count += 1
        self._put_place(self.count, self._length, self._length)
        self.recorder.turn(self.count)

    def add_user(self, text: str) -> None:
        """More of the latest message. Nothing of its answer was said yet."""
        start, _ = self._place(self.count)
        self._append(text)
        self._put_place(self.count, start, self._length)
        self.recorder.user(text)

    def add_answer(self, text: str) -> None:
        """More of the latest answer."""
        self._append(text)
        self.recorder.answer(text)

    def said(self, number: int) -> Said:
        """The exchange of that number."""
        if not 1 <= number <= self.count:
            raise IndexError(f"there are {self.count} exchanges, and no number {number}")
        if number < self.first:
            raise SinkchatError(
                f"what was said in turn {number} is not kept any more",
                hint=f"turns from {self.first} on are",
            )
        start, answer = self._place(number)
        return Said(self._read(start, answer), self._read(answer, self._end(number)))

    def keep(self, count: int) -> None:
        """Takes back all exchanges but the first `count`."""
        if count < self.count:
            self._length = self._place(count + 1)[0] if count + 1 > self.first else 0
            self.first = min(self.first, count + 1)
            self.count = count
            self.recorder.keep(count)

    def __iter__(self) -> Iterator[Said]:
        return (self.said(number) for number in range(self.first, self.count + 1))

    def _place(self, number: int) -> tuple[int, int]:
        self._places.seek((number - self.first) * _PLACES.size)
        start, answer = _PLACES.unpack(self._places.read(_PLACES.size))
        return int(start), int(answer)

    def _put_place(self, number: int, user: int, answer: int) -> None:
        self._write(self._places, (number - self.first) * _PLACES.size, _PLACES.pack(user, answer))

    def _end(self, number: int) -> int:
        return self._length if number == self.count else self._place(number + 1)[0]

    def _read(self, start: int, stop: int) -> str:
        self._texts.seek(start)
        return self._texts.read(stop - start).decode("utf-8", "surrogatepass")

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._write(self._texts, self._length, data)
        self._length += len(data)

    @staticmethod
    def _write(file: "tempfile.SpooledTemporaryFile[bytes]", at: int, data: bytes) -> None:
        try:
            file.seek(at)
            file.write(data)
        except OSError as error:
            raise SinkchatError(
                f"what is said cannot be kept in {tempfile.gettempdir()}: {(error.strerror or str(error)).lower()}",
                hint="make room there, or set TMPDIR to another folder",
            ) from error
