"""The whole program with a scripted conversation in place of a model: for tests that need a process.

`ECHO` holds what the scripted model answers, in pieces, else it repeats what it heard. `TOKEN_SECONDS` slows it,
`LOAD_SECONDS` makes it slow to load. The file `LOADING` appears when loading begins.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scripted import ScriptedConversation, echo

from sinkchat.cli import main
from sinkchat.terminal.asked.request import Request


def start(request: Request, progress: Callable[[str], None]) -> ScriptedConversation:
    progress("loading Echo-1")
    if "LOADING" in os.environ:
        Path(os.environ["LOADING"]).touch()
    time.sleep(float(os.environ.get("LOAD_SECONDS", "0")))
    answer = os.environ.get("ECHO")
    conversation = ScriptedConversation(
        echo if answer is None else lambda text: answer.encode().decode("unicode_escape"),
        capacity=int(os.environ.get("CAPACITY", "100")),
        token_seconds=float(os.environ.get("TOKEN_SECONDS", "0")),
    )
    if request.system is not None:
        conversation.set_system(request.system)
    return conversation


if __name__ == "__main__":
    sys.exit(main(start=start))
