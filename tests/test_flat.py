"""Speed and memory long after the first eviction: `pytest -m slow -s tests/test_flat.py` prints what it measures.

Seconds are printed, not checked: what a machine does beside decides them. Memory is checked.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest
import torch
from streams import TRAINED, random_ids
from tiny import tiny_model, tiny_tokenizer

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy
from sinkchat.lab.bench.start import resident_bytes
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model


@dataclass(frozen=True)
class Stretch:
    """Tokens in a row: the seconds of each, and the bytes that the process held after them."""

    seconds: torch.Tensor
    resident: int
    seen: int

    def __str__(self) -> str:
        median, late, latest = (1e3 * self.seconds.quantile(q).item() for q in (0.5, 0.99, 1.0))
        return (
            f"token {self.seen:>9,}: {1 / self.seconds.mean().item():7.1f} tok/s, "
            f"median {median:.2f} ms, 99 % {late:.2f} ms, worst {latest:.1f} ms, {self.resident / 1e6:.1f} MB"
        )


def stretches(engine: Engine, length: int) -> Iterator[Stretch]:
    """An answer without an end, in stretches of `length` tokens."""
    steps = engine.generate(Greedy(), stop_ids=frozenset())
    while True:
        seconds = []
        for _ in range(length):
            began = time.perf_counter()
            next(steps)
            seconds.append(time.perf_counter() - began)
        yield Stretch(torch.tensor(seconds), resident_bytes() or 0, engine.state.seen)


def check_flat(engine: Engine, *, tokens: int, length: int, growth: float) -> None:
    """Reads until the cache is full, answers with `tokens`; memory grows by less than `growth` from the second on."""
    engine.cache.pinned = 4
    engine.reset()
    engine.settle()
    assert engine.decoding == "compiled"
    capacity = engine.state.capacity
    engine.feed(random_ids(capacity - 64))
    before = next(stretches(engine, 60))  # what the first evictions cost comes after it
    print(f"\nbefore the first eviction {before}")
    assert engine.state.evicted == 0
    seen = []
    for stretch in islice(stretches(engine, length), tokens // length):
        seen.append(stretch)
        if len(seen) <= 2 or len(seen) % 10 == 0:
            print(stretch, flush=True)
    assert engine.state.seen > tokens
    assert engine.state.evicted == engine.state.seen - capacity
    ratio = before.seconds.median() / seen[-1].seconds.median()
    print(f"median rate at the end over that before the first eviction: {ratio:.3f}")
    assert seen[-1].resident < (1 + growth) * seen[1].resident


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_million_tokens_over_the_ring(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path))
    loaded = LoadedModel(
        tiny_model("llama", 2), tiny_tokenizer(), "tiny", "none", "float32", "cpu", TRAINED, notes=(), compiles=True
    )
    engine = build_engine(loaded, MemoryOptions(cache_size=256, evict="token"))
    check_flat(engine, tokens=1_000_000, length=10_000, growth=0.01)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.model
def test_fifty_thousand_tokens_of_smollm2() -> None:
    loaded = load_model("smollm2", LoadOptions(device="cpu", compile=True))
    engine = build_engine(loaded, MemoryOptions(cache_size=1024, evict="token"))
    check_flat(engine, tokens=50_000, length=5_000, growth=0.01)
