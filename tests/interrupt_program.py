"""The program with a tiny random model, left as the installed one is: at once where the model is still loading."""

import signal
import sys

from tiny_program import start

from sinkchat.cli import main
from sinkchat.terminal.loading import leave_at_once, load_is_running

if __name__ == "__main__":
    status = main(start=start)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if load_is_running():
        leave_at_once(status)
    sys.exit(status)
