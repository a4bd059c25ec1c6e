"""One process at a time: a lock on a file that the system lifts when its holder dies, however it dies.

The file says which process that is. Where a file system has no locks, or the platform none of this kind, everybody
gets one.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class LockTaken(Exception):
    """Another process holds the lock; `process` is its number, where the file says it."""

    def __init__(self, process: int | None) -> None:
        super().__init__(process)
        self.process = process


class Lock:
    """A lock that is held until `release`, or until the process ends."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> "Lock":
        """Takes the lock of a folder that is there, without waiting. Raises LockTaken where somebody has it."""
        while True:
            descriptor = _opened(path)
            if descriptor is None:
                return cls(None)
            try:
                _lock(descriptor)
                if _is_still(path, descriptor):  # else its holder removed it before letting go
                    _sign(descriptor)
                    return cls(descriptor)
            except BlockingIOError as error:
                process = _signed(descriptor)
                os.close(descriptor)
                raise LockTaken(process) from error
            os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _opened(path: Path) -> int | None:
    """A descriptor to lock; None where no file can be made and none is there."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with suppress(OSError):
            return os.open(path, flags, 0o600)
    return None


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            return


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    with suppress(OSError):  # on a full disk, nobody learns the number
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())


def _signed(descriptor: int) -> int | None:
    try:
        return int(os.pread(descriptor, 32, 0))
    except (OSError, ValueError):
        return None
