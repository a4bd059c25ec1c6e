"""Speed and memory long after the first eviction: `pytest -m slow -s tests/test_flat.py` prints what it measures.

Seconds are printed, not checked: what a machine does beside decides them. Memory is checked.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

import pytest
from streams import TRAINED, random_ids
from tiny import tiny_model, tiny_tokenizer

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy
from sinkchat.lab.bench.start import resident_bytes
from sinkchat.lab.bench.timing import percentile
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model


@dataclass(frozen=True)
class Stretch:
    """Tokens in a row: tokens a second, seconds of one, and the bytes that the process held after them."""

    rate: float
    median: float
    late: float
    latest: float
    resident: int
    seen: int

    @classmethod
    def of(cls, seconds: list[float], engine: Engine) -> "Stretch":
        late, latest = percentile(seconds, 0.99), max(seconds)
        return cls(1 / fmean(seconds), median(seconds), late, latest, resident_bytes() or 0, engine.state.seen)

    def __str__(self) -> str:
        return (
            f"token {self.seen:>9,}: {self.rate:7.1f} tok/s, median {1e3 * self.median:.2f} ms, "
            f"99 % {1e3 * self.late:.2f} ms, worst {1e3 * self.latest:.1f} ms, {self.resident / 1e6:.1f} MB"
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
        yield Stretch.of(seconds, engine)


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
    ratio = before.median / seen[-1].median
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
