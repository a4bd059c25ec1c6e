"""The world around the program as one object: streams, variables, folders, clock.

Everything that is not decided by an option comes from here, so that a test can hand over another world
whole. It knows nothing of conversations. The idea is httpie's.
"""

import io
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, TypeAlias

import platformdirs

from sinkchat.errors import UsageError

ColorChoice: TypeAlias = Literal["auto", "always", "never"]


def size_of_terminal() -> os.terminal_size:
    """Columns and lines now. `COLUMNS` is not asked: a shell may export it once and never again."""
    for descriptor in (1, 2, 0):
        try:
            return os.get_terminal_size(descriptor)
        except OSError:
            continue
    return os.terminal_size((80, 24))


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a run of the program reads and writes."""

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str]
    state_folder: Path
    """where the history of typed lines is kept"""
    config_folder: Path
    """where `config.toml` lies"""
    clock: Callable[[], float] = time.monotonic
    terminal_size: Callable[[], os.terminal_size] = size_of_terminal

    @classmethod
    def of_process(cls) -> "Environment":
        """The world this process was started in. Its streams never raise over a character they lack."""
        return cls(
            stdin=sys.stdin.buffer if sys.stdin is not None else io.BytesIO(),
            stdout=_tolerant(sys.stdout),
            stderr=_tolerant(sys.stderr),
            variables=os.environ,
            state_folder=platformdirs.user_state_path("sinkchat", appauthor=False),
            config_folder=platformdirs.user_config_path("sinkchat", appauthor=False),
        )

    @property
    def debugs(self) -> bool:
        """Whether tracebacks are wanted."""
        return self.variables.get("SINKCHAT_DEBUG", "") not in ("", "0")

    @property
    def is_accessible(self) -> bool:
        """Whether sentences are wanted in place of drawings, by what the whole system is told."""
        return self.variables.get("ACCESSIBLE", "") not in ("", "0") or self.variables.get("TERM") == "dumb"

    def has_cursor(self, stream: TextIO) -> bool:
        """Whether a line on `stream` can be erased and drawn again."""
        return stream.isatty() and self.variables.get("TERM") != "dumb"

    def is_coloured(self, stream: TextIO, choice: ColorChoice) -> bool:
        """Whether `stream` gets colour: the option, then NO_COLOR, FORCE_COLOR, TERM, then what it is."""
        if choice != "auto":
            return choice == "always"
        if self.variables.get("NO_COLOR"):
            return False
        if self.variables.get("FORCE_COLOR", "0") not in ("", "0"):
            return True
        return self.has_cursor(stream)

    def is_unicode(self, stream: TextIO) -> bool:
        """Whether `stream` has the signs that boxes and bars are drawn with."""
        try:
            "╭─│·▓░".encode(stream.encoding or "utf-8")
        except (LookupError, UnicodeEncodeError):
            return False
        return True

    def open_terminal(self) -> TextIO:
        """The terminal behind a pipe on stdin. Raises UsageError where the process has none."""
        try:
            return open("/dev/tty", encoding="utf-8")
        except OSError as error:
            raise UsageError("-i needs a keyboard, and this process has no terminal") from error

    def reader_has_gone(self) -> bool:
        """Whether nobody can read stdout any more. Only pipes can tell, and only on POSIX."""
        if not hasattr(select, "poll"):
            return False
        try:
            descriptor = self.stdout.fileno()
        except (OSError, ValueError):  # a stream without a file behind it, or a closed one
            return False
        poll = select.poll()
        poll.register(descriptor, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))


def _tolerant(stream: TextIO | None) -> TextIO:
    """The stream, set to write what its encoding lacks as `\\u2500`. A closed one swallows everything."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def silence(stream: TextIO) -> None:
    """Sends what is still to be written to nowhere: its reader has gone, and the last flush must not fail."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not backed by a file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
