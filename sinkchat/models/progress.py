"""How long waits are told: short sentences handed to a callable, for a status line.

Nothing here draws. Bars that other libraries would draw on stderr are either turned into such
sentences (`byte_counter`) or silenced for the length of one call (`quiet_libraries`).
"""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from huggingface_hub.utils import logging as hub_logging
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers.utils import logging as transformers_logging

Progress = Callable[[str], None]
"""Takes a short sentence, e.g. "downloading SmolLM2-135M-Instruct 41 of 93 MB"."""


def silent(sentence: str) -> None:
    """The progress of someone who does not want to hear of it."""


def file_size(count: float) -> str:
    """Bytes as people read them on a download: "93 MB", "13.5 GB"."""
    if count < 1e6:
        return f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.0f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


def memory_size(count: float) -> str:
    """Bytes as memory is counted: "257 MiB", "13.5 GiB"."""
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def downloading(name: str, done: float, total: float) -> str:
    """The sentence of a download under way."""
    return f"downloading {name}, {file_size(min(done, total))} of {file_size(total)}"


def byte_counter(name: str, total: int, progress: Progress) -> type:
    """A class that huggingface_hub takes for its progress bars and that speaks to `progress` instead.

    For a snapshot the Hub's client makes three bars: bytes received, bytes written and files. The
    bytes written are told; it is the bar whose description begins with "Reconstruct".
    """

    class ByteCounter(tqdm):
        monitor_interval = 0  # no thread that watches for slow bars

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **(settings | {"file": io.StringIO(), "disable": False}))

        def display(self, *_: Any, **__: Any) -> None:
            if (self.desc or "").startswith("Reconstruct"):
                progress(downloading(name, self.n, total))

        def close(self) -> None:
            """Tells nothing: it may come late, from the garbage collector."""

    # As the Hub's client does for its own bars: the usual lock would start a helper process.
    ByteCounter.set_lock(threading.RLock())
    return ByteCounter


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Transformers and the Hub's client draw no bars and log only errors until the block ends."""
    verbosities = transformers_logging.get_verbosity(), hub_logging.get_verbosity()
    drew_bars = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # turns the Hub's bars off as well
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosities[0])
        hub_logging.set_verbosity(verbosities[1])
        if drew_bars[0]:
            transformers_logging.enable_progress_bar()  # turns the Hub's bars on as well
        if drew_bars[0] and not drew_bars[1]:
            disable_progress_bars()
