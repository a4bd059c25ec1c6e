"""From a model's name to the picture of its sinks: the model loaded, the text cut, two experiments ready."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.engine.engine import Engine
from sinkchat.errors import CannotStream, InputError, UsageError
from sinkchat.lab.attention.eviction import evict_sinks
from sinkchat.lab.attention.measured import measure
from sinkchat.lab.attention.passages import encoded, passages_of
from sinkchat.lab.attention.shares import Shares, SinksEvicted, require_room
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Plan:
    """What is looked at. The defaults are the paper's figure 2."""

    length: int = 16
    """tokens of a passage"""
    passages: int = 256
    sinks: int = 4
    cache_size: int = 256
    """of the cache that loses its sinks"""

    def __post_init__(self) -> None:
        require_room(self.sinks, self.length)
        if self.sinks >= self.cache_size // 2:
            raise UsageError(
                f"{self.sinks:,} sinks leave little window in a cache of {self.cache_size:,}",
                hint=f"--cache-size {4 * self.sinks}",
            )


@dataclass(frozen=True, slots=True)
class Started:
    """Two experiments about to run. `shares` are the averages so far, measured as they are pulled."""

    model: str
    total: int
    """passages to come"""
    shares: Iterator[Shares]
    evict: Callable[[], SinksEvicted]
    """raises `CannotStream` or `InputError` where the model or the text does not allow it"""


def start_attention(
    name: str, load: Mapping[str, Any], plan: Plan, text: str, *, progress: Progress = silent
) -> Started:
    """Loads the model `name`; `load` has fields of `LoadOptions`."""
    return start_with(load_model(name, LoadOptions(**load, needs_template=False), progress=progress), plan, text)


def start_with(loaded: LoadedModel, plan: Plan, text: str) -> Started:
    """The experiments with a model that is loaded. Refuses at once what its positions do not allow."""
    if loaded.max_length is not None and plan.length > loaded.max_length:
        raise UsageError(
            f"--length {plan.length:,} is more than the {loaded.max_length:,} positions {loaded.name} was trained on",
            hint=f"--length {loaded.max_length}",
        )
    engine = _engine(loaded, plan)
    passages = passages_of(loaded.tokenizer, text, length=plan.length, count=plan.passages)

    def evict() -> SinksEvicted:
        count = 2 * plan.cache_size
        ids = encoded(loaded.tokenizer, text, count)
        if len(ids) <= plan.cache_size:
            raise InputError(
                f"the text has {len(ids):,} tokens, which do not roll the window of a cache of {plan.cache_size:,}",
                hint=f"a longer text, or --cache-size {max(16, len(ids) // 2)}",
            )
        if isinstance(engine, CannotStream):
            raise engine
        return evict_sinks(engine, ids, sinks=plan.sinks, decode=loaded.tokenizer.decode)

    return Started(loaded.name, len(passages), measure(loaded.model, passages, sinks=plan.sinks), evict)


def _engine(loaded: LoadedModel, plan: Plan) -> Engine | CannotStream:
    """The engine whose sinks will be evicted, or why there is none: the shares can be measured all the same."""
    block = str(max(1, plan.cache_size // 8))
    try:
        return build_engine(loaded, MemoryOptions(cache_size=plan.cache_size, evict=block))
    except CannotStream as error:
        return error
