"""A prompt while something slow is loaded: `sleep`, or torch itself. For tests that need a process."""

import sys
import time
from collections.abc import Callable

from scripted import ScriptedConversation

from sinkchat.terminal.line.keyboard import Keyboard
from sinkchat.terminal.loading import Loading, leave_at_once, load_is_running


def sleep(progress: Callable[[str], None]) -> ScriptedConversation:
    time.sleep(60)
    return ScriptedConversation()


def torch(progress: Callable[[str], None]) -> ScriptedConversation:
    import transformers.models.auto.modeling_auto  # brings torch

    del transformers
    time.sleep(60)
    return ScriptedConversation()


def main() -> int:
    loading = Loading({"sleep": sleep, "torch": torch}[sys.argv[1]])
    try:
        Keyboard(toolbar=lambda columns: "loading", is_changing=lambda: not loading.is_done).read()
        print("waiting for the model", flush=True)
        loading.result()
    except KeyboardInterrupt:
        loading.abandon()
        return 130
    return 0


if __name__ == "__main__":
    status = main()
    if load_is_running():
        leave_at_once(status)
    sys.exit(status)
