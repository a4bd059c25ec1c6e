"""The whole program with a tiny random model: its cache wraps around, is taken back and pinned for real.

Answers are greedy and 12 tokens long; the cache holds `CAPACITY` tokens. A message that begins with "slowly" is
answered so, above all before its first event. Where `LOAD_FAILS` says why, there is no model after a second. Each
name is a model with weights of its own, of which `tiny` is the usual one.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator

from sinkchat.chat.events import Event, PromptProgress, TextDelta
from sinkchat.cli import main
from sinkchat.errors import ModelNotFound
from sinkchat.terminal.asked.request import Request
from sinkchat.terminal.conversation import Conversation

TOKEN_SECONDS = 0.03
NAME = "tiny"


def start(request: Request, progress: Callable[[str], None]) -> Conversation:
    progress("loading tiny")
    if "LOAD_FAILS" in os.environ:
        time.sleep(1)
        raise ModelNotFound(os.environ["LOAD_FAILS"])
    import torch
    from streams import engine_for
    from tiny import tiny_model, tiny_tokenizer

    from sinkchat.cache.policy import EvictMessages
    from sinkchat.chat.options import ChatOptions, ModelCard
    from sinkchat.chat.session import ChatSession

    class SlowSession(ChatSession):
        def send(self, text: str | Iterable[str]) -> Iterator[Event]:
            seconds = TOKEN_SECONDS if isinstance(text, str) and text.startswith("slowly") else 0
            time.sleep(20 * seconds)
            for event in super().send(text):
                yield event
                if isinstance(event, PromptProgress | TextDelta):
                    time.sleep(seconds)

    torch.set_num_threads(1)
    name = request.model or NAME
    capacity = request.memory.cache_size or int(os.environ.get("CAPACITY", "400"))
    session = SlowSession(
        engine_for(
            tiny_model("llama", 2, seed=0 if name == NAME else zlib.crc32(name.encode())),
            EvictMessages(),
            capacity=capacity,
            pinned=0,
            chunk_size=16,
        ),
        tiny_tokenizer(),
        card=ModelCard(name, "none", "float32", "cpu", 4096),
        options=ChatOptions(**{"temperature": 0, "max_tokens": 12, **request.chat}),
        sources=request.sources,
        system=request.system,
    )
    if request.kept is not None:
        request.kept.take_up(session, memory=request.memory, source=name, system=request.system, progress=progress)
    return session


if __name__ == "__main__":
    sys.exit(main(start=start))
