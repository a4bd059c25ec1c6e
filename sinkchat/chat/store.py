"""Where conversations are kept: one folder for all, in it one for each, named by its id.

An id is the name that a person gave, or the minute in which the conversation began and four characters. Looking at
conversations takes no lock and changes nothing; only who goes on with one has it to themselves.
"""

import difflib
import re
import secrets
import shutil
import string
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkchat.chat.journal import JournalDamaged, failure_of
from sinkchat.chat.lock import Lock, LockTaken
from sinkchat.chat.parts import head_of, latest_turn, parts_of, records_of
from sinkchat.chat.saved import PART_BYTES, Saved, Unkept
from sinkchat.errors import InputError, UsageError

_NAME = re.compile(r"[^\W_](?:[\w.-]{0,58}[\w-])?")
_SIGNS = string.ascii_lowercase + string.digits
_EMPTY_SECONDS = 24 * 3600
"""how long a folder is left alone that a process died in before anything was said"""


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in short. What cannot be read of a damaged one is empty."""

    id: str
    title: str
    """the beginning of the first message"""
    model: str
    turns: int
    changed: float
    """seconds since 1970"""
    nbytes: int
    """on disk, with the snapshot of memory"""


class Store:
    """The conversations in `folder`, which is made with the first of them. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time, part_bytes: int = PART_BYTES) -> None:
        self.folder = folder
        self._clock = clock
        self._part_bytes = part_bytes

    def create(self, name: str | None = None) -> Saved | Unkept:
        """A new conversation. Where the folder cannot be written it is one that nothing is kept of."""
        if name is not None:
            self._refuse(name)
        if not self.folder.is_absolute():
            return Unkept(f"{self.folder} is no place to keep it: HOME is not set")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            folder = self.folder / (self._new_id() if name is None else _normal(name))
            folder.mkdir(mode=0o700, exist_ok=name is not None)
            saved = self._taken(folder)
        except OSError as error:
            return Unkept(failure_of(error, self.folder, "written"))
        try:
            self._refuse(folder.name)  # whoever was faster has left again meanwhile
        except UsageError:
            saved.close()
            raise
        return saved

    def open(self, name: str | None = None) -> Saved:
        """The conversation of that id, or the latest, to go on with.

        Raises UsageError where another process has it, JournalDamaged where nothing can be added to it.
        """
        if name is None and (name := self.latest()) is None:
            raise UsageError("no conversation is saved yet", hint="sinkchat run")
        folder = self._folder_of(name)
        try:
            return self._taken(folder)
        except JournalDamaged:
            for _ in records_of(folder):  # raises where the first damage is, and knows all turns before it
                pass
            raise
        except OSError as error:
            raise InputError(failure_of(error, folder, "read")) from error

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        """All records of a conversation, also while another process goes on with it."""
        return records_of(self._folder_of(name))

    def summary(self, name: str) -> Summary:
        """That conversation in short."""
        return _summary(self._folder_of(name))

    def saved(self) -> list[Summary]:
        """All conversations in short, the latest first."""
        summaries = []
        for folder in self._folders():
            with suppress(OSError, IndexError):  # removed since
                summaries.append(_summary(folder))
        return sorted(summaries, key=lambda summary: (summary.changed, summary.id), reverse=True)

    def latest(self) -> str | None:
        """The id of the conversation that was written to last; of several, the last by name."""
        changed = ((_changed(folder), folder.name) for folder in self._folders())
        return max(changed, default=(0.0, None))[1]

    def remove(self, name: str) -> None:
        """Removes a conversation that nobody has open."""
        folder = self._folder_of(name)
        lock = _lock(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise UsageError(failure_of(error, folder, "removed")) from error
        finally:
            lock.release()

    def __contains__(self, name: str) -> bool:
        """Whether something is saved under that id. Raises UsageError where it cannot be one."""
        if not _NAME.fullmatch(_normal(name)):
            raise UsageError(
                f"{name!r} cannot name a conversation",
                hint="up to 60 letters, digits, - _ . of which the first is a letter or digit",
            )
        return _has_records(self.folder / _normal(name))

    def _refuse(self, name: str) -> None:
        """Raises where there is a conversation of that name."""
        if name in self:
            raise UsageError(f"there is a conversation {name} already", hint=f"sinkchat resume {name}")

    def _taken(self, folder: Path) -> Saved:
        lock = _lock(folder)
        try:
            return Saved(folder, lock, part_bytes=self._part_bytes)
        except BaseException:
            lock.release()
            raise

    def _folder_of(self, name: str) -> Path:
        """The folder of a conversation in which something is saved."""
        folder = self.folder / _normal(name)
        if _NAME.fullmatch(folder.name) and _has_records(folder):
            return folder
        near = difflib.get_close_matches(name, [folder.name for folder in self._folders()], n=1)
        raise UsageError(
            f"there is no conversation {name}" + (f", did you mean {near[0]}?" if near else ""),
            hint=f"sinkchat resume {near[0]}" if near else "sinkchat sessions list",
        )

    def _folders(self) -> list[Path]:
        try:
            return [
                folder for folder in self.folder.iterdir() if _NAME.fullmatch(folder.name) and _has_records(folder)
            ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise InputError(failure_of(error, self.folder, "read")) from error

    def _new_id(self) -> str:
        """`2026-11-29-2130-k3f9`."""
        minute = time.strftime("%Y-%m-%d-%H%M", time.localtime(self._clock()))
        return f"{minute}-{''.join(secrets.choice(_SIGNS) for _ in range(4))}"

    def _sweep(self) -> None:
        """Removes what processes that died before anything was said left behind a day ago."""
        for folder in self.folder.iterdir():
            with suppress(OSError, UsageError):  # removed since, or somebody is thinking for a day
                is_old = folder.stat().st_mtime < self._clock() - _EMPTY_SECONDS
                if is_old and _NAME.fullmatch(folder.name) and not parts_of(folder):
                    lock = _lock(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.release()


def _lock(folder: Path) -> Lock:
    try:
        return Lock.take(folder / "lock")
    except LockTaken as error:
        process = f" (process {error.process})" if error.process is not None else ""
        raise UsageError(
            f"conversation {folder.name} is open in another sinkchat{process}", hint="--session OTHER"
        ) from error


def _normal(name: str) -> str:
    """One form of a name, where letters with accents have two."""
    return unicodedata.normalize("NFC", name)


def _has_records(folder: Path) -> bool:
    try:
        return bool(parts_of(folder))
    except OSError:
        return False


def _changed(folder: Path) -> float:
    try:
        return parts_of(folder)[-1].stat().st_mtime
    except (OSError, IndexError):  # removed since
        return 0.0


def _summary(folder: Path) -> Summary:
    parts = parts_of(folder)
    begin, title = head_of(parts[0])
    return Summary(
        id=folder.name,
        title=title,
        model=begin.get("model", {}).get("name", ""),
        turns=latest_turn(parts[-1]),
        changed=parts[-1].stat().st_mtime,
        nbytes=sum(path.stat().st_size for path in folder.iterdir()),
    )
