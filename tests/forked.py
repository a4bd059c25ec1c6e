"""Runs of the whole program that begin at once, since they are children of one that has loaded all."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import pexpect.fdpexpect
import pyte
from terminals import TESTS, Program


class Nursery:
    """The process whose children all runs are. One at a time."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._running: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "lasting_program.py")],
            stdin=pipe,
            stdout=pipe,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "OMP_NUM_THREADS": "1"},
        )
        self._asks = cast(IO[str], self._process.stdin)
        self._answers = cast(IO[str], self._process.stdout)

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()
        self._asks.close()
        self._answers.close()

    def begin(self, *arguments: str, home: Path, stdin: str, stdout: str, stderr: str, **variables: str) -> int:
        """The number of a process that runs the program."""
        asked = {
            "arguments": arguments,
            "variables": {
                "PATH": os.environ["PATH"],
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "XDG_STATE_HOME": str(home),
                "XDG_CONFIG_HOME": str(home / "no-config"),
                **variables,
            },
            "stdin": stdin,
            "stdout": stdout,
            "stderr": stderr,
        }
        if self._running is not None:  # a test that failed left it behind
            os.kill(self._running, signal.SIGKILL)
            self.status()
        self._running = self._asked(json.dumps(asked), "begun")
        return self._running

    def status(self) -> int:
        """Waits for its end."""
        status = self._asked("", "ended")
        self._running = None
        return status

    def _asked(self, line: str, answer: str) -> int:
        print(line, file=self._asks, flush=True)
        what, number = self._answers.readline().split()
        assert what == answer
        return int(number)


class Talk(Program):
    """A run on a terminal of its own. Leaving the context kills it, if it is still there."""

    def __init__(
        self,
        nursery: Nursery,
        home: Path,
        *arguments: str,
        size: tuple[int, int] = (60, 400),
        **variables: str,
    ) -> None:
        self.screen = pyte.HistoryScreen(size[1], size[0], history=5_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._nursery = nursery
        self._status: int | None = None
        ours, theirs = os.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        place = os.ttyname(theirs)
        self.process = nursery.begin(
            "run", *arguments, home=home, stdin=place, stdout=place, stderr=place, **variables
        )
        self.child: Any = pexpect.fdpexpect.fdspawn(ours, timeout=20)
        self._theirs = theirs

    def __exit__(self, *raised: object) -> None:
        self.kill()
        for descriptor in (self._theirs, self.child.child_fd):
            os.close(descriptor)

    def kill(self) -> None:
        """As if the machine's plug were pulled, but for the disk."""
        if self._status is None:
            os.kill(self.process, signal.SIGKILL)
            self.status()

    def status(self) -> int:
        """Waits for the end, and gives its exit status or minus its signal."""
        if self._status is None:
            self._status = self._nursery.status()
            self.watch(0.05)
        return self._status


class Pipe:
    """A run in a pipe: what it was given, what it said."""

    def __init__(self, nursery: Nursery, home: Path, *arguments: str, stdin: str, **variables: str) -> None:
        home.mkdir(exist_ok=True, parents=True)
        texts = {name: home / f".{name}" for name in ("stdin", "stdout", "stderr")}
        for path in texts.values():
            with suppress(FileNotFoundError):
                path.unlink()
        texts["stdin"].write_text(stdin)
        nursery.begin(*arguments, home=home, **{name: str(path) for name, path in texts.items()}, **variables)
        self.status = nursery.status()
        self.stdout = texts["stdout"].read_text()
        self.stderr = texts["stderr"].read_text()
