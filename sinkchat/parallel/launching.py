"""The other processes of a run, where the first starts them itself: `--processes 2`.

Each is a Python in a session of its own, so Ctrl-C and the end of the terminal reach the first alone, and mean there
what they mean to a single process. Each holds one end of a pipe on which nothing is ever said: it ends the moment
the first does, however that came about, even while it still imports torch or waits for a device.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from sinkchat.parallel.link import GRACE_SECONDS, Followers
from sinkchat.parallel.ranks import Ranks

_HERE = "127.0.0.1"


@contextmanager
def launched(count: int, follow: Callable[[], object]) -> Iterator[Followers]:
    """The others of `count` processes, each of which does `follow`. They end with this context.

    This process is rank 0 from now on, also by its environment. `follow` is a function of a module; what it says
    goes nowhere, but for the last line of one that fails before it has met this process.
    """
    with _reserved_port() as port, ExitStack() as ends:
        cores = os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))  # each its share, none two of them
        os.environ.update(_variables(0, count, port))
        others = []
        for rank in range(1, count):
            others.append(_Other(rank, os.environ | _variables(rank, count, port), follow))
            ends.callback(others[-1].end)
        with Followers(Ranks(0, count, str(port))) as followers:
            for other in others:
                threading.Thread(target=other.watch, args=(followers,), daemon=True, name="other").start()
            yield followers


def end_with_the_first() -> None:
    """Has this process, one of the others, end at once when the first does."""
    threading.Thread(target=_end_with_stdin, daemon=True, name="first").start()


def _end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(0)


class _Other:
    """One of the others."""

    def __init__(self, rank: int, variables: dict[str, str], follow: Callable[[], object]) -> None:
        self._rank = rank
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        # Modules from where this process has its own: `python -m` would look into the working folder first.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from {follow.__module__} import {follow.__name__} as follow"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{program}; follow()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=variables,
            start_new_session=True,
        )

    def watch(self, followers: Followers) -> None:
        """Waits until it ends, and says so and why, unless that was heard from itself."""
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line), "")
        followers.lose(self._rank, f"failed: {last}" if status > 0 and last else "ended unexpectedly")

    def end(self) -> None:
        """Ends it: at once, or within seconds by force."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _variables(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun would tell a process of itself and of where to meet."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": str(port),
    }


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile. Who asks for it by its number has it: here nobody listens."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((_HERE, 0))
        yield int(held.getsockname()[1])
