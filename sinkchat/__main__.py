"""The entry of the program, also as `python -m sinkchat`. Ctrl-C while it is being imported ends it silently."""

import os
import signal

# Large pages for large tensors: torch asks for them only where this is set before it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# How often threads that wait for one another look before they sleep. libgomp's 300,000 times take milliseconds, on
# a core that another of them may need. With 3,000 SmolLM2 writes 26 tok/s, not 2 to 15, on two cores beside one busy
# process, and reads several times as fast; alone it writes as fast, and reads 5 % slower.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

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
