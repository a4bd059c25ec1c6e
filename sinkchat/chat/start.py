"""From a model's name to a conversation: load it, find out how its keys move, give it a memory and a session.

The one place where all parts meet. Each step may refuse, with the reason, before any text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.layers import ContiguousStorage
from sinkchat.cache.policy import EvictionPolicy, EvictMessages, EvictNothing, EvictTokens
from sinkchat.cache.probe import LayerLayout, layer_shapes, probe, shift_test
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.storage import Storage
from sinkchat.chat.options import DEFAULT_CACHE_SIZE, ChatOptions, MemoryOptions, ModelCard
from sinkchat.chat.session import ChatSession
from sinkchat.engine.acceleration import AcceleratedForward, Source
from sinkchat.engine.compilation import Compilation, NoCompilation, obstacle
from sinkchat.engine.engine import Engine
from sinkchat.engine.graph import Capture, CudaGraphs, ModelStep
from sinkchat.errors import UsageError
from sinkchat.models.families import attends_plainly, limits_of, make_bias_for, refuse_unmovable
from sinkchat.models.loading import LoadedModel, LoadOptions, Progress, load_model, silent
from sinkchat.models.sources import DEFAULT_MODEL
from sinkchat.parallel.following import Part
from sinkchat.parallel.leading import DividedStorage, LeadingForward
from sinkchat.parallel.link import Followers, Order
from sinkchat.parallel.ranks import Ranks


def start_session(
    name: str = DEFAULT_MODEL,
    *,
    load: LoadOptions | None = None,
    memory: MemoryOptions | None = None,
    chat: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    system: str | None = None,
    progress: Progress = silent,
    followers: Followers | None = None,
) -> ChatSession:
    """A session with the model `name`. `chat` holds the options that were chosen, `sources` by whom.

    An option that nobody chose comes from the model's generation config, else from `ChatOptions`. With `followers`
    the model is cut across all processes, and they do as `follow` says.
    """
    memory = memory if memory is not None else MemoryOptions()
    eviction_policy(memory)  # a slip is told before weights are loaded
    load = replace(load if load is not None else LoadOptions(), must_stream=memory.policy != "dense")
    if followers is not None:
        followers.tell("load", name, load, memory)
        load = replace(load, ranks=followers.ranks)
    loaded = load_model(name, load, progress=progress)
    progress("finding out how its keys move")
    return session_for(loaded, memory=memory, chat=chat, sources=sources, system=system, followers=followers)


def follow(orders: Iterator[Order], ranks: Ranks) -> None:
    """Does what rank 0 says: loads a part of the model that it loads, then computes and remembers its part."""
    for _, name, load, memory in islice(orders, 1):
        loaded = load_model(name, replace(load, ranks=ranks))
        Part(loaded.model, build_cache(loaded, memory)).obey(orders)


def session_for(
    loaded: LoadedModel,
    *,
    memory: MemoryOptions | None = None,
    chat: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    system: str | None = None,
    followers: Followers | None = None,
) -> ChatSession:
    """A session with a model that is loaded."""
    memory = memory if memory is not None else MemoryOptions()
    generation = loaded.model.generation_config
    chosen = dict(chat or {})
    from_model = {name: value for name, value in _model_options(generation).items() if name not in chosen}
    options = replace(ChatOptions(), **from_model, **chosen)
    stated = {field.name: "built-in" for field in fields(ChatOptions)} | dict.fromkeys(from_model, "model")
    return ChatSession(
        build_engine(loaded, memory, followers=followers),
        loaded.tokenizer,
        card=ModelCard(loaded.name, loaded.quant, loaded.dtype, loaded.device, loaded.max_length),
        options=options,
        sources=stated | dict.fromkeys(chosen, "flag") | dict(sources or {}),
        system=system,
        sinks=0 if memory.policy == "window" else memory.sinks,
        stop_ids=_ids(generation.eos_token_id) | _ids(loaded.tokenizer.eos_token_id),
        notices=loaded.notes,
    )


def build_engine(loaded: LoadedModel, memory: MemoryOptions, *, followers: Followers | None = None) -> Engine:
    """The model and a cache of the size and policy asked for, without text. Refuses what cannot stream."""
    cache = build_cache(loaded, memory, followers=followers)
    if followers is not None:
        return Engine(loaded.model, cache, forward=LeadingForward(loaded.model, followers))
    if isinstance(cache.storage, RingStorage):
        source = _source(loaded, cache.layouts, cache.storage)
        return Engine(loaded.model, cache, forward=AcceleratedForward(loaded.model, cache.storage, source))
    reason = _no_faster_step(loaded, cache.layouts, cache.capacity) or ""
    return Engine(loaded.model, cache, forward=Forward(loaded.model, reason=reason))


def build_cache(loaded: LoadedModel, memory: MemoryOptions, *, followers: Followers | None = None) -> SinkCache:
    """A cache for the model, of the size and policy asked for. Refuses what cannot stream."""
    policy = eviction_policy(memory)
    limits = limits_of(loaded.model.config)
    if isinstance(policy, EvictNothing):
        layouts = layer_shapes(loaded.model, name=loaded.name)
        what = f"positions {loaded.name} was trained on"
        capacity = _capacity(memory, layouts, trained=limits.trained, largest=limits.length, what=what)
        make_bias_for(loaded.model, capacity)
        storage = _storage(loaded, layouts, capacity, followers)
        return SinkCache(layouts, policy, capacity=capacity, pinned=0, position_limit=capacity, storage=storage)
    refuse_unmovable(loaded.model.config, name=loaded.name)
    trained = limits.trained or DEFAULT_CACHE_SIZE
    layouts = probe(loaded.model, position_limit=min(trained, limits.positions(trained)), name=loaded.name)
    what = limits.reason(loaded.name)
    capacity = _capacity(memory, layouts, trained=limits.trained, largest=limits.capacity, what=what)
    position_limit = limits.positions(capacity)
    make_bias_for(loaded.model, capacity)
    shift_test(loaded.model, last_position=position_limit - 1, name=loaded.name)
    storage = _storage(loaded, layouts, capacity, followers)
    return SinkCache(layouts, policy, capacity=capacity, pinned=0, position_limit=position_limit, storage=storage)


def eviction_policy(memory: MemoryOptions) -> EvictionPolicy:
    """The policy that the options name. Raises `UsageError` for words that are none."""
    if memory.policy not in ("sink", "window", "dense"):
        raise UsageError(f"--policy {memory.policy} is not known", hint="--policy sink, window or dense")
    if memory.policy == "dense":
        return EvictNothing()
    if memory.evict == "turn":
        return EvictMessages()
    if memory.evict == "token":
        return EvictTokens(1)
    if memory.evict.isdecimal():
        return EvictTokens(int(memory.evict))
    raise UsageError(f"--evict {memory.evict} is not known", hint="--evict turn, token, or a number of tokens")


def _storage(
    loaded: LoadedModel, layouts: tuple[LayerLayout, ...], capacity: int, followers: Followers | None
) -> Callable[[Sequence[LayerLayout], int], Storage]:
    """The layout of the cache: a ring where a faster step will read it, else the one that needs no mask."""
    if followers is not None:
        return lambda layouts, capacity: DividedStorage(ContiguousStorage(layouts, capacity), followers)
    return RingStorage if _no_faster_step(loaded, layouts, capacity) is None else ContiguousStorage


def _no_faster_step(loaded: LoadedModel, layouts: Sequence[LayerLayout], capacity: int) -> str | None:
    """Why single tokens are left to the model's own code; None where a faster step may read a ring."""
    if not loaded.compiles:
        return "nothing else was asked for"
    # The faster step computes plain attention to keys that turn, or to keys that have no position.
    if not attends_plainly(loaded.model) or any(layout.value_rotation is not None for layout in layouts):
        return "its attention is not plain"
    return None if layouts[0].device.type == "cuda" else obstacle(layouts, capacity)


def _source(loaded: LoadedModel, layouts: tuple[LayerLayout, ...], ring: RingStorage) -> Source:
    """Where the faster step comes from: a recording on a CUDA device, a compiler elsewhere."""
    device = layouts[0].device
    if device.type != "cuda":
        return Compilation(loaded.model, ring).begin()
    reason = obstacle(layouts, ring.capacity)
    whole = Compilation(loaded.model, ring, reach=lambda: len(ring.bias))
    compiled = whole.begin() if reason is None else NoCompilation(reason)
    own = ModelStep(loaded.model, ring, layouts)
    return Capture(own, device, graphs=lambda: CudaGraphs(device), compiled=compiled)


def _capacity(
    memory: MemoryOptions, layouts: tuple[LayerLayout, ...], *, trained: int | None, largest: int | None, what: str
) -> int:
    """The size asked for, at most `largest`, which are `what`; else the usual one, as far as the model goes."""
    if memory.cache_size is None:
        return min(size for size in (DEFAULT_CACHE_SIZE, trained, largest) if size is not None)
    if largest is not None and memory.cache_size > largest:
        kv = largest * sum(
            layout.heads * (layout.key_width + layout.value_width) * layout.dtype.itemsize for layout in layouts
        )
        raise UsageError(
            f"--cache-size {memory.cache_size} is more than the {largest:,} {what}",
            hint=f"--cache-size {largest} ({kv / 2**30:.2f} GiB of KV)",
        )
    return memory.cache_size


def _model_options(generation: Any) -> dict[str, Any]:
    """The options that a model's generation config states."""
    stated = generation.to_diff_dict() if generation is not None else {}
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {name: stated[name] for name in names if stated.get(name) is not None}


def _ids(eos: int | list[int] | None) -> frozenset[int]:
    """End-of-sequence ids as configurations write them: one, several or none."""
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)
