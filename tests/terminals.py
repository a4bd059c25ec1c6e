"""The program on a terminal, as a person sees it: keys in, a screen out.

`sinkchat` in a command stands for one of the programs next to this file: with a scripted conversation, or a model.
"""

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte

TESTS = Path(__file__).parent
CTRL_C, CTRL_D, CTRL_J, CTRL_U, CTRL_Z = "\x03", "\x04", "\n", "\x15", "\x1a"
ALT_ENTER, ESCAPE, F2, UP = "\x1b\r", "\x1b", "\x1bOQ", "\x1b[A"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"

_FOREIGN = ("NO_COLOR", "FORCE_COLOR", "ACCESSIBLE", "TMUX", "STY", "DISPLAY", "WAYLAND_DISPLAY", "VISUAL", "EDITOR")
"""what decides how the program looks, and is not to come from who runs the tests"""

_FOOTER = re.compile(r"\x1b7.*?\x1b8", re.DOTALL)
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[A-Za-z~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])")


class Program:
    """A program on a terminal of `size` lines and columns; `home` is where it keeps what it keeps."""

    def __init__(
        self,
        command: str,
        home: Path,
        *,
        program: str = "echo_program.py",
        size: tuple[int, int] = (24, 80),
        **variables: str,
    ) -> None:
        self.screen = pyte.HistoryScreen(size[1], size[0], history=5_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            "bash",
            ["--norc", "-c", command.replace("sinkchat", f"{sys.executable} {TESTS / program}")],
            dimensions=size,
            timeout=20,
            env={
                **{name: value for name, value in os.environ.items() if name not in _FOREIGN},
                "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
                "XDG_STATE_HOME": str(home),
                "XDG_CONFIG_HOME": str(home / "no-config"),
                "TERM": "xterm-256color",
                "OMP_NUM_THREADS": "1",
                **variables,
            },
        )
        self.child.delaybeforesend = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *raised: object) -> None:
        self.child.close(force=True)

    @property
    def rows(self) -> list[str]:
        """The rows of the screen that are not blank."""
        return [row.rstrip() for row in self.screen.display if row.strip()]

    @property
    def scrolled(self) -> list[str]:
        """The rows that have left the screen at its top."""
        rows = ("".join(row[at].data for at in range(self.screen.columns)) for row in self.screen.history.top)
        return [row.rstrip() for row in rows]

    @property
    def all_rows(self) -> list[str]:
        """Everything one can scroll back to, then the screen."""
        return [*self.scrolled, *(row.rstrip() for row in self.screen.display)]

    @property
    def written(self) -> str:
        """What was written, without footers and escape sequences: each letter of an answer once."""
        return _SEQUENCE.sub("", _FOOTER.sub("", self.raw.decode(errors="replace"))).replace("\r", "")

    def waits(self, is_so: Callable[[], bool], seconds: float = 20) -> bool:
        """Waits until it is so."""
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                return False
            self.look(0.05)
        return True

    def look(self, seconds: float = 0.05) -> None:
        """Waits for a moment, or until the program writes something."""
        with suppress(pexpect.TIMEOUT, pexpect.EOF):
            self._feed(self.child.read_nonblocking(65_536, timeout=seconds))

    def watch(self, seconds: float) -> None:
        """Lets this much time pass."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.look(left)

    def shows(self, text: str, seconds: float = 20) -> bool:
        """Waits until `text` stands on the screen."""
        return self.waits(lambda: text in "\n".join(self.rows), seconds)

    def loses(self, text: str, seconds: float = 20) -> bool:
        """Waits until `text` stands on the screen no more."""
        return self.waits(lambda: text not in "\n".join(self.rows), seconds)

    def writes(self, text: str, seconds: float = 20) -> bool:
        """Waits until `text` was written, wherever rows end."""
        return self.waits(lambda: text in self.written, seconds)

    def is_asked(self, seconds: float = 20) -> bool:
        """Waits for a prompt with an empty line, with or without a row below it."""
        return self.waits(lambda: ">" in self.rows[-2:], seconds)

    def resize(self, lines: int, columns: int) -> None:
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def type(self, keys: str) -> None:
        self.child.send(keys)

    def status(self) -> int:
        """Waits for the end, and gives its exit status or minus its signal."""
        self.child.expect(pexpect.EOF)
        self._feed(self.child.before or b"")
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)

    def _feed(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)


def at_the_prompt(home: Path, command: str = "sinkchat run", **more: object) -> Program:
    """The program once its model is loaded and it asks for a message."""
    program = Program(command, home, **more)  # type: ignore[arg-type]
    assert program.waits(lambda: any(" · cache " in row or " | cache " in row for row in program.rows)), program.rows
    assert program.is_asked(), program.rows
    return program
