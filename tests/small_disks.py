"""A disk of a few kilobytes, to be filled and made read-only: a real one, where the system lets us mount it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk(type(Path())):  # type: ignore[misc]
    """A path, the root of a file system."""

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self], check=True, capture_output=True)

    def make_writable(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", self], check=True, capture_output=True)


@contextmanager
def small_disk(place: Path, *, nbytes: int) -> Iterator[SmallDisk]:
    """A tmpfs of that size at `place`. The test is skipped where none can be mounted."""
    place.mkdir()
    if sys.platform != "linux":
        pytest.skip("needs a tmpfs")
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "none", place], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", place], check=True, capture_output=True)
