"""The program with a tiny random model, slow enough to be interrupted, left as the installed one is.

Importing torch and building the model is real work, and without an end where ENDLESS_LOAD is set. An answer has 150
tokens, none of which ends it.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from sinkchat.chat.events import Event, PromptProgress, TextDelta
from sinkchat.chat.session import ChatSession
from sinkchat.cli import main
from sinkchat.terminal.asked.request import Request
from sinkchat.terminal.loading import leave_at_once, load_is_running


class SlowSession(ChatSession):
    """A session that takes 10 ms for a step."""

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        for event in super().send(text):
            yield event
            if isinstance(event, (TextDelta, PromptProgress)):
                time.sleep(0.01)


def start(request: Request, progress: Callable[[str], None]) -> ChatSession:
    progress("loading tiny")
    import torch
    from streams import engine_for
    from tiny import SPECIAL_TOKENS, tiny_model, tiny_tokenizer

    from sinkchat.cache.policy import EvictMessages
    from sinkchat.chat.options import ChatOptions, ModelCard

    torch.set_num_threads(1)
    while "ENDLESS_LOAD" in os.environ:
        tiny_model("llama", 2)
    model = tiny_model("llama", 2)
    for special in range(len(SPECIAL_TOKENS)):
        model.lm_head.weight[special] = 0  # never the likeliest
    return SlowSession(
        engine_for(model, EvictMessages(), capacity=320, pinned=0, chunk_size=16),
        tiny_tokenizer(),
        card=ModelCard("tiny", "none", "float32", "cpu", 4096),
        options=ChatOptions(temperature=0, max_tokens=150),
        system=request.system,
    )


if __name__ == "__main__":
    status = main(start=start)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if load_is_running():
        leave_at_once(status)
    sys.exit(status)
