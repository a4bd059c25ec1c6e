"""The entry of the program, also as `python -m sinkchat`. Ctrl-C while it is being imported ends it silently."""

import os
import signal

# Large pages for large tensors: torch asks for them only where this is set before it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_before = signal.getsignal(signal.SIGINT)
if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from sinkchat.cli import console  # noqa: E402


def start() -> int:
    """Runs the command line of this process, and gives the exit status."""
    signal.signal(signal.SIGINT, _before)
    return console()


if __name__ == "__main__":
    raise SystemExit(start())
