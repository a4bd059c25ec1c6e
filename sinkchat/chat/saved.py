"""One conversation on disk: a folder with the journal in parts, the snapshot of memory, a lock.

    work/
      00001.jsonl  00002.jsonl  ...     the journal's parts, see `journal`
      memory.safetensors                what memory held when it was left, see `snapshot`
      lock                              whose it is now

A part that has passed 16 MiB is followed by another, after the turn in which it did. Each part begins with all that
is needed to go on without those before it, so of a conversation that runs for months the latest 64 MiB are kept. A
new part appears whole or not at all. Nothing is written before the first turn begins.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from sinkchat.chat.journal import Journal, Record, failure_of, line_of
from sinkchat.chat.lock import Lock
from sinkchat.chat.parts import head_of, latest_turn, part, parts_of, publish, records_of
from sinkchat.chat.tally import Tally

PART_BYTES = 16 * 2**20
PARTS_KEPT = 4
"""full ones; of those that follow a gap, which are shorter, there may be more"""


class Keeper(Protocol):
    """Where a conversation is being kept, if it is."""

    @property
    def failure(self) -> str | None:
        """Why what is said is not being kept now, in words, or None."""
        ...

    @property
    def is_part_due(self) -> bool:
        """Whether the journal is to go on in a new part, after the turn that is being recorded."""
        ...

    def append(self, record: Record) -> None:
        """Writes a record. Where that fails it is kept for later, and `failure` says why."""
        ...

    def begin_part(self, begin: Record, settled: Record) -> None:
        """Goes on in a new part, which begins with these two: the second says all that memory holds.

        Where that fails the conversation stays in its part.
        """
        ...

    def settle(self) -> None:
        """What was written outlasts the power."""
        ...

    def close(self) -> None:
        """Lets go of the conversation."""
        ...


class Saved:
    """A conversation that this process has to itself until `close`. Of one in which nothing was said, nothing stays.

    `part_bytes` is how large a part of the journal becomes before another is due.
    """

    def __init__(self, folder: Path, lock: Lock, *, part_bytes: int = PART_BYTES) -> None:
        self.id = folder.name
        self.folder = folder
        self.snapshot = folder / "memory.safetensors"
        self._lock = lock
        self._part_bytes = part_bytes
        self._held: list[Record] = []
        parts = parts_of(folder)
        self._tally = Tally(latest=latest_turn(parts[-1]), opening=head_of(parts[0])[1]) if parts else Tally()
        self._journal = Journal(parts[-1] if parts else part(folder, 1))

    @property
    def failure(self) -> str | None:
        return self._journal.failure

    @property
    def torn(self) -> bool:
        """Whether a last record was dropped that had not been written to its end."""
        return self._journal.torn

    @property
    def is_part_due(self) -> bool:
        return self._journal.size > self._part_bytes or self._journal.has_gap

    def records(self) -> Iterator[dict[str, Any]]:
        """What all parts say. Raises JournalDamaged where one is damaged, after what stands before."""
        return records_of(self.folder)

    def append(self, record: Record) -> None:
        if record["op"] == "begin" and not self._tally.is_empty:
            record = self._going_on(record)
        self._tally.see(record)
        self._held.append(record)
        if not self._tally.is_empty:
            for held in self._held:
                self._journal.append(held)
            self._held.clear()

    def begin_part(self, begin: Record, settled: Record) -> None:
        path = part(self.folder, int(self._journal.path.stem) + 1)
        try:
            publish(path, line_of(self._going_on(begin)) + line_of(settled))
        except OSError as error:
            self._journal.failure = failure_of(error, path, "written")
            return
        self._journal.close()
        self._journal = Journal(path)
        with suppress(OSError):
            self._drop_old_parts()

    def _going_on(self, begin: Record) -> Record:
        return {**begin, "turns": self._tally.latest, "title": self._tally.title}

    def _drop_old_parts(self) -> None:
        parts = parts_of(self.folder)
        sizes = [path.stat().st_size for path in parts]
        for index, path in enumerate(parts[:-1]):
            if sum(sizes[index:]) > PARTS_KEPT * self._part_bytes:
                path.unlink()

    def settle(self) -> None:
        self._journal.settle()

    def close(self) -> None:
        self._journal.close()
        if self._tally.is_empty and not self._journal.size:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()

    def __enter__(self) -> "Saved":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Unkept:
    """In place of `Saved`: nothing of this conversation is kept, and `failure` says why."""

    is_part_due = False

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def append(self, record: Record) -> None:
        pass

    def begin_part(self, begin: Record, settled: Record) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> "Unkept":
        return self

    def __exit__(self, *_: object) -> None:
        pass
