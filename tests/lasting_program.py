"""The whole program, many times: one process imports torch and builds a tiny model, and each run is a child of it.

A line of JSON on stdin asks for a run: its arguments, variables, and what stdin, stdout and stderr are; a terminal
becomes its own. The number of its process is answered at once, its status after another line. Answers are greedy and
made of letters alone, so that what is seen on a screen is what was said. A message that begins with "slowly" is
answered so. `PART_BYTES` is how large a part of the journal becomes.
"""

import fcntl
import json
import os
import sys
import termios
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from faults import fail_after
from streams import engine_for
from tiny import SPECIAL_TOKENS, tiny_model, tiny_tokenizer

import sinkchat.terminal.interactive
import sinkchat.terminal.line.keyboard  # noqa: F401
from sinkchat.cache.policy import EvictMessages
from sinkchat.chat import snapshot  # noqa: F401
from sinkchat.chat.events import Event, PromptProgress, TextDelta
from sinkchat.chat.options import ChatOptions, ModelCard
from sinkchat.chat.session import ChatSession
from sinkchat.chat.store import Store
from sinkchat.cli import main
from sinkchat.terminal.asked.request import Request

NAME = "tiny"
CAPACITY = 240
MAX_TOKENS = 12
STEP_SECONDS = 0.03
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class SlowSession(ChatSession):
    """A session that takes its time for a message which says so, and loses its device over one that says that."""

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        if isinstance(text, str) and text.startswith("lose the device"):
            fail_after(
                self.engine.model, 5, torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile")
            )
        seconds = STEP_SECONDS if isinstance(text, str) and text.startswith("slowly") else 0
        for event in super().send(text):
            yield event
            if isinstance(event, PromptProgress | TextDelta):
                time.sleep(seconds)


def spelling_model(name: str = NAME) -> Any:
    """A tiny model of that name that says nothing but letters."""
    seed = 0 if name == NAME else zlib.crc32(name.encode())
    model, tokenizer = tiny_model("llama", 2, seed=seed), tiny_tokenizer()
    said = {tokenizer.convert_tokens_to_ids(letter) for letter in LETTERS}
    for number in range(len(SPECIAL_TOKENS) + 256):
        if number not in said:
            model.lm_head.weight[number] = 0  # hardly ever the likeliest
    return model


def session_of(model: Any, tokenizer: Any, *, name: str = NAME, capacity: int = CAPACITY, **more: Any) -> SlowSession:
    return SlowSession(
        engine_for(model, EvictMessages(), capacity=capacity, pinned=0, chunk_size=64),
        tokenizer,
        card=ModelCard(name, "none", "float32", "cpu", 4096),
        **{"options": ChatOptions(temperature=0, max_tokens=MAX_TOKENS)} | more,
    )


def starting(model: Any, tokenizer: Any) -> Callable[[Request, Callable[[str], None]], ChatSession]:
    def start(request: Request, progress: Callable[[str], None]) -> ChatSession:
        name = request.model or NAME
        session = session_of(
            model if name == NAME else spelling_model(name),
            tokenizer,
            name=name,
            capacity=request.memory.cache_size or CAPACITY,
            options=ChatOptions(**{"temperature": 0, "max_tokens": MAX_TOKENS, **request.chat}),
            sources=request.sources,
            system=request.system,
        )
        if request.kept is not None:
            request.kept.take_up(
                session, memory=request.memory, source=name, system=request.system, progress=progress
            )
        return session

    return start


def become(asked: dict[str, Any]) -> None:
    """Takes the streams and the variables of a run."""
    os.setsid()
    os.environ.clear()
    os.environ.update(asked["variables"])
    if "PART_BYTES" in os.environ:
        Store.__init__.__kwdefaults__["part_bytes"] = int(os.environ["PART_BYTES"])
    for number, (name, how) in enumerate([("stdin", os.O_RDWR), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)]):
        flags = how if os.path.exists(asked[name]) else how | os.O_CREAT
        descriptor = os.open(asked[name], flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, (0, 1, 2), "rww")


def serve() -> None:
    torch.set_num_threads(1)
    start = starting(spelling_model(), tiny_tokenizer())
    answers = sys.stdout
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            status = 70
            try:
                become(asked)
                status = main(asked["arguments"], start=start)
            except SystemExit as leaving:
                status = int(leaving.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print("begun", child, file=answers, flush=True)
        sys.stdin.readline()  # until its end is asked for, its number stays its own
        _, status = os.waitpid(child, 0)
        print("ended", os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    serve()
