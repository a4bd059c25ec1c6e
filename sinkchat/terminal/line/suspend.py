"""Ctrl-Z at the prompt: the shell gets the terminal as it was, and `fg` goes on."""

import os
import signal
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


def stopped_with(modes: list[Any] | None, keys_from: Input) -> None:
    """Stops the job with those modes in force. prompt_toolkit by itself would leave IXON off."""
    if modes is None or not hasattr(signal, "SIGTSTP"):
        return
    import termios

    termios.tcsetattr(keys_from.fileno(), termios.TCSANOW, modes)
    os.kill(0, signal.SIGTSTP)
