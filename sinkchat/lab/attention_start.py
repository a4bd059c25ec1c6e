"""From a model's name to the picture of its sinks: the model loaded, the text cut, two experiments ready."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.errors import InputError
from sinkchat.lab.attention import Shares, SinksEvicted
from sinkchat.lab.attention_eviction import evict_sinks
from sinkchat.lab.attention_measured import measure
from sinkchat.lab.attention_text import encoded, passages_of
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
    """The experiments with a model that is loaded."""
    passages = passages_of(loaded.tokenizer, text, length=plan.length, count=plan.passages)

    def evict() -> SinksEvicted:
        count = 2 * plan.cache_size
        ids = encoded(loaded.tokenizer, text, count)
        if len(ids) <= plan.cache_size:
            raise InputError(
                f"the text has {len(ids):,} tokens, which do not roll the window of a cache of {plan.cache_size:,}",
                hint=f"a longer text, or --cache-size {max(16, len(ids) // 2)}",
            )
        block = str(max(1, plan.cache_size // 8))
        engine = build_engine(loaded, MemoryOptions(cache_size=plan.cache_size, evict=block))
        return evict_sinks(engine, ids, sinks=plan.sinks, decode=loaded.tokenizer.decode)

    return Started(loaded.name, len(passages), measure(loaded.model, passages, sinks=plan.sinks), evict)
