"""A conversation as a file that only grows at its end, so that whatever breaks in costs its last line at most.

A line is a record, its checksum first:

    1f0a93c2 {"op":"user","text":"hello"}

that is the CRC-32 of the JSON's bytes as 8 lower-case hex digits, a blank, the JSON as UTF-8 without a line feed, a
line feed. A line is whole if all of this is true of it. A last line that is not was being written when the process
or the machine went down: it is *torn*, and cut off before anything is added. Another line that is not whole means
that the file is damaged: what stands before it can be read, and nothing is added. (A machine that goes down may write
its blocks in any order, so only who settles after each record is sure to lose no more than the last.)

What `op` says, and what else stands in the record:

    begin     format, id, created, model {name, quant, dtype}, memory {cache_size, sinks, evict, policy}, system;
              where something was said before: turns, how many there are, and title. What follows can be
              understood alone; there is one wherever a process goes on, or another part (see `saved`)
    turn      number: a turn begins, counted from 1
    user      text: more of its message
    answer    text: more of its answer, about once a second
    settled   what memory has come to hold since the record before: token ids, what was dropped (see `outline`)
    keep      count: the turns after that many are taken back
    clear     a fresh conversation begins;   unclear   the one before it is taken up again
    system    text: another system prompt
    options   the fields of ChatOptions that were changed

The first record is a `begin`. A turn is whole once a `settled` follows it. `format` is 1. It rises when an older
program would misread a journal; a new `op` that can be skipped does not raise it.
"""

import errno
import json
import os
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from sinkchat.chat.tally import Tally
from sinkchat.errors import InputError, UsageError

FORMAT = 1
WAITING_BYTES = 2**20
"""what is kept of records that cannot be written, before they are given up"""

Record: TypeAlias = Mapping[str, Any]

_BLOCK = 64 * 1024


class JournalDamaged(InputError):
    """A journal that changed under us: `line` is not whole, and the `turns` before it are."""

    def __init__(self, path: Path, *, line: int, turns: int) -> None:
        whole = {0: "no turn before it is whole", 1: "the turn before it is whole"}
        super().__init__(
            f"{path} is damaged in line {line:,}: {whole.get(turns, f'the {turns:,} turns before it are whole')}",
            hint=f"sinkchat sessions export {path.parent.name} --format jsonl > chat.jsonl",
        )
        self.path = path
        self.line = line
        self.turns = turns


def line_of(record: Record) -> bytes:
    """The line that a record is written as."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes \udc80, which is how JSON writes it
    return b"%08x %s\n" % (zlib.crc32(body), body)


def record_of(line: bytes) -> dict[str, Any] | None:
    """The record of a line, or None where the line is not whole."""
    body = line[9:-1]
    if line != b"%08x %s\n" % (zlib.crc32(body), body):
        return None
    try:
        record = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("op"), str) else None


class Reading:
    """The records of a journal, in their order, read as they are asked for.

    Raises JournalDamaged where the file is, after all that stands before; and an error that says so where the
    journal is of a later format, or cannot be read.
    """

    def __init__(self, path: Path, *, turns: int = 0) -> None:
        self.path = path
        self.turns = turns
        """how many turns are whole up to here, those that the journals before this one tell of included"""
        self.torn = False
        """whether a last line was dropped; known at the end"""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                yield from self._records(file)
        except OSError as error:
            raise InputError(failure_of(error, self.path, "read")) from error

    def _records(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        tally = Tally(latest=self.turns)
        for number, line in enumerate(file, start=1):
            record = record_of(line)
            if record is None and not file.read(1):
                self.torn = True
                return
            if record is None or (number == 1 and record["op"] != "begin"):
                raise JournalDamaged(self.path, line=number, turns=self.turns)
            if record["op"] == "begin":
                _check_format(record, self.path)
            tally.see(record)
            self.turns = tally.whole
            yield record


def records_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal from its end, whatever else is between them; as much is read as is asked for."""
    with path.open("rb") as file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            lines = (file.read(end - start) + rest).split(b"\n")
            rest = lines.pop(0) if start else b""
            for line in reversed(lines):
                if (record := record_of(line + b"\n")) is not None:
                    yield record
            end = start


class Journal:
    """A journal that records are added to; made if need be, for its owner alone.

    Nothing here raises because of the disk: `failure` says in words what is wrong now, what could not be written is
    kept and tried again with the next record. Where that becomes too much, or the file was removed, the journal
    `has_gap` and takes nothing more: what comes can only be understood at the beginning of another one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        self.has_gap = False
        self.torn = False
        """whether a last line was dropped"""
        self.size = 0
        self._waiting: deque[bytes] = deque()
        self._descriptor: int | None = None
        self._is_ragged = False
        self._is_closed = False
        self._write_waiting()

    def append(self, record: Record) -> None:
        """Writes a record as one line, whole or not at all."""
        if not (self.has_gap or self._is_closed):
            self._waiting.append(line_of(record))
            self._write_waiting()

    def settle(self) -> None:
        """What was written outlasts the power, as far as the system can do that."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)

    def close(self) -> None:
        if self._waiting:
            self._write_waiting()
        self._is_closed = True
        self.settle()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_waiting(self) -> None:
        try:
            descriptor = self._opened()
            while self._waiting:
                self._write(descriptor, self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            self.failure = failure_of(error, self.path, "written")
            self.has_gap = self.has_gap or sum(map(len, self._waiting)) > WAITING_BYTES
            if self.has_gap:
                self._waiting.clear()
        else:
            self.failure = None

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self.path, flags, 0o600)
            try:
                self._find_end(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        elif os.fstat(self._descriptor).st_nlink == 0:
            self.has_gap = True
            raise FileNotFoundError(errno.ENOENT, "it was removed")
        return self._descriptor

    def _find_end(self, descriptor: int) -> None:
        """Where the whole lines end. What follows them is cut off before the next is written."""
        with open(descriptor, "rb", closefd=False) as file:
            self.size = sum(map(len, _whole_lines(file)))
            self.torn = self._is_ragged = os.fstat(descriptor).st_size > self.size
        for _ in Reading(self.path) if self.torn else ():  # raises where it is more than the last line
            pass

    def _write(self, descriptor: int, line: bytes) -> None:
        if self._is_ragged:
            os.ftruncate(descriptor, self.size)
        self._is_ragged = True
        try:
            written = os.write(descriptor, line)
            while written < len(line):  # a disk that is full takes a part first, and then says so
                written += os.write(descriptor, line[written:])
        except OSError:
            os.ftruncate(descriptor, self.size)
            self._is_ragged = False
            raise
        self.size += len(line)
        self._is_ragged = False


def failure_of(error: OSError, path: Path, what: str) -> str:
    """`chat/00001.jsonl cannot be written: no space left on device`."""
    return f"{path} cannot be {what}: {(error.strerror or str(error)).lower()}"


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        if line != b"%08x %s\n" % (zlib.crc32(line[9:-1]), line[9:-1]):
            return
        yield line


def _check_format(record: Record, path: Path) -> None:
    written = record.get("format")
    if not isinstance(written, int) or written > FORMAT:
        raise UsageError(
            f"{path} was written by a later sinkchat: its format is {written}, and this one reads up to {FORMAT}",
            hint="pip install --upgrade sinkchat",
        )
