"""A model as transformers itself runs it: with its own caches, which forget nothing, or with none.

What sinkchat is measured against. No policy, no window, no positions of our own.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel, StaticCache

from sinkchat.cache.forward import Forward
from sinkchat.models.checkpoint import read_config
from sinkchat.models.conversion import kept_conversion
from sinkchat.models.gguf_header import kind_of_blocks, read_gguf_header
from sinkchat.models.int4.stored import unpacked_config
from sinkchat.models.loading import LoadOptions
from sinkchat.models.placement import choose_device, choose_dtype
from sinkchat.models.progress import Progress, quiet_libraries, silent
from sinkchat.models.sources import Fetching, find_source

CHUNK = 256


def dynamic_cache(model: PreTrainedModel) -> Callable[[], Cache]:
    """Makes caches that grow with each token."""
    return lambda: DynamicCache(config=model.config)


def static_cache(model: PreTrainedModel, length: int) -> Callable[[], Cache]:
    """Makes caches of `length` slots, of which every token looks at all."""
    return lambda: StaticCache(config=model.config, max_cache_len=length)


@dataclass(frozen=True, slots=True)
class Moment:
    """A stream as it was; whoever goes back to it works on a copy."""

    cache: Cache
    seen: int
    logits: Tensor | None


class PlainStream:
    """Reads and draws greedily with a cache of transformers'."""

    def __init__(self, name: str, model: nn.Module, make_cache: Callable[[], Cache]) -> None:
        self.name = name
        self._forward = Forward(model)
        self._make_cache = make_cache
        self.begin()

    def begin(self) -> None:
        self._cache = self._make_cache()
        self._seen = 0
        self._logits: Tensor | None = None

    def read(self, ids: Sequence[int]) -> None:
        for first in range(0, len(ids), CHUNK):
            self._logits = self._run(ids[first : first + CHUNK])

    def draw(self, count: int) -> Iterator[int]:
        """`count` tokens; the last is not read."""
        for left in range(count, 0, -1):
            token = _likeliest(self._logits)
            yield token
            if left > 1:
                self._logits = self._run([token])

    def moment(self) -> Moment:
        return Moment(deepcopy(self._cache), self._seen, self._logits)

    def back_to(self, moment: Moment) -> None:
        self._cache, self._seen, self._logits = deepcopy(moment.cache), moment.seen, moment.logits

    def _run(self, ids: Sequence[int]) -> Tensor:
        logits = _run(self._forward, ids, self._seen, self._cache)
        self._seen += len(ids)
        return logits


class RecomputedWindow:
    """Reads the latest `window` tokens afresh for every token: a sliding window with recomputation.

    The only other way to go on for ever with the quality of a full window; StreamingLLM's baseline (arXiv
    2309.17453, figure 10).
    """

    name = "recomputed"

    def __init__(self, model: nn.Module, window: int) -> None:
        self._forward = Forward(model)
        self._window = window
        self.begin()

    def begin(self) -> None:
        self._ids: list[int] = [0] * self._window

    def read(self, ids: Sequence[int]) -> None:
        self._ids = [*self._ids, *ids][-self._window :]

    def draw(self, count: int) -> Iterator[int]:
        """`count` tokens, each after a forward of its own."""
        for _ in range(count):
            token = _likeliest(_run(self._forward, self._ids, 0, DynamicCache()))
            yield token
            self.read([token])

    def moment(self) -> list[int]:
        return self._ids

    def back_to(self, moment: list[int]) -> None:
        self._ids = moment


def _run(forward: Forward, ids: Sequence[int], first: int, cache: Cache) -> Tensor:
    """Logits (V,) of the last of `ids`, the first of which stands at position `first`."""
    input_ids = torch.tensor([list(ids)], device=forward.device)
    positions = torch.arange(first, first + len(ids), device=forward.device).unsqueeze(0)
    return forward(input_ids, positions, cache)[0, -1]


def _likeliest(logits: Tensor | None) -> int:
    if logits is None:
        raise ValueError("nothing was read: there is nothing to go on from")
    return int(logits.argmax())


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A model without numbers, on torch's `meta` device, and what it would be loaded as."""

    model: PreTrainedModel
    name: str
    dtype: torch.dtype
    device: torch.device
    blocks: str
    """the kind of most blocks of a GGUF file, or "none\""""


def without_weights(name: str, options: LoadOptions, *, progress: Progress = silent) -> Unloaded:
    """The model that `name` means, of which no weights are read. Raises what `load_model` raises before them."""
    device = choose_device(options.device)
    fetching = Fetching(options.revision, options.offline, weights=False)
    located = find_source(name).locate(fetching, progress=progress)
    folder = located.path if located.path.is_dir() else kept_conversion(located.path, identity=located.identity)
    if folder is not None:
        config = read_config(folder, name=located.name, trust_remote_code=options.trust_remote_code)
        if located.path.is_file():
            config = unpacked_config(config)
    else:
        read_gguf_header(located.path)  # refuses a file that is none, before the slow reader
        with quiet_libraries(), redirect_stderr(io.StringIO()):
            config = AutoConfig.from_pretrained(located.path.parent, gguf_file=located.path.name)
    dtype = choose_dtype(options.dtype, device, stored=config.dtype)
    with quiet_libraries(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=options.trust_remote_code)
    blocks = kind_of_blocks(located.path) if located.path.is_file() else "none"
    return Unloaded(model.eval(), located.name, dtype, device, blocks)
