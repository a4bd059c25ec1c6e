"""The terminal as it was before the prompt, for others: the shell after Ctrl-Z, an editor."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prompt_toolkit.input import Input


def modes_of(keys_from: Input) -> list[Any] | None:
    """How the terminal handles keys now; None where it is no terminal, or not one of POSIX."""
    try:
        import termios
    except ImportError:
        return None
    try:
        return termios.tcgetattr(keys_from.fileno())
    except (OSError, NotImplementedError, termios.error):
        return None


def set_modes(keys_from: Input, modes: list[Any]) -> None:
    """Has the terminal handle keys so, from now on. One that has gone is left alone."""
    import termios

    try:
        termios.tcsetattr(keys_from.fileno(), termios.TCSANOW, modes)
    except (OSError, termios.error):
        """Whoever reads from it next says more."""


@contextmanager
def lent(keys_from: Input, modes: list[Any] | None) -> Iterator[None]:
    """Within this context those modes are in force. prompt_toolkit by itself would leave IXON off."""
    ours = modes_of(keys_from)
    if modes is not None:
        set_modes(keys_from, modes)
    try:
        yield
    finally:
        if ours is not None:
            set_modes(keys_from, ours)


def stop() -> None:
    """Stops the job, as Ctrl-Z does; where there are no jobs, nothing."""
    if hasattr(signal, "SIGTSTP"):
        os.kill(0, signal.SIGTSTP)
