"""How a model's cached keys turn with position: measured, not looked up.

A list of families drifts from the code it describes, so the model itself is asked. With one token in the cache,
softmax is 1 whatever the position, so the hidden states of all layers are the same at every position and a
difference between cached tensors can come from position alone. One forward for each of a few positions shows it for
all layers at once. What no rotation explains is refused, before any text.

A model that takes no positions counts the tokens before. It is shown a row of the same token instead: whatever the
weights of attention, the mean of equal values is that value, so again position alone can make a difference.

The shift test then asks for the whole: eight tokens far out must give the logits that they give at the start.
It sees what keys cannot show, such as queries scaled by absolute position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from sinkchat.cache.forward import Forward
from sinkchat.cache.rope import Rotation
from sinkchat.cache.turning import TOLERANCE, best_rotation, frequency_tables, rotations_of, stretch, unlike
from sinkchat.errors import CannotStream

PROBE_POSITIONS = (1, 8, 64, 512, 1024)
PROBE_ROWS = 8
PROBE_RANKS = (1, 8, 64)
"""for models that take no positions: ranks in a row of the same token"""
# Rounding in softmax makes equal tokens differ a little, more from layer to layer; positions do so by 0.3 to 1.4.
RANK_TOLERANCE = 0.1
# Measured on SmolLM2 at position 16,000: 1e-4 in float32, 0.03 to 0.08 in bfloat16, 0.16 in float16 where LLM.int8
# rounds what it multiplies. Absolute positions: 0.5 and more.
SHIFT_TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01, torch.float16: 0.25, torch.bfloat16: 0.25}
HINT = "a model with rotary positions, such as `sinkchat run smollm2`"
DENSE_HINT = f"{HINT}, or --policy dense"


@dataclass(frozen=True, slots=True, eq=False)
class LayerLayout:
    """What one layer caches: keys (B, `heads`, T, `key_width`), values likewise, and how they turn.

    `rotation` is None where keys do not depend on position. Multi-head latent attention (MLA, arXiv 2405.04434)
    keeps its latents as keys and what turns as values: there `value_rotation` says how.
    """

    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device
    rotation: Rotation | None
    value_rotation: Rotation | None = None


def layer_shapes(model: nn.Module, *, name: str = "") -> tuple[LayerLayout, ...]:
    """What every layer caches, taking its keys as immovable: enough for a cache that forgets nothing."""
    forward = Forward(model)
    input_ids = _probe_ids(forward, rows=1, count=1)
    return tuple(_layout(*slots) for slots in _cached(forward, input_ids, 0, name or type(model).__name__))


def probe(model: nn.Module, *, position_limit: int, name: str = "") -> tuple[LayerLayout, ...]:
    """The layout of every layer's cache. `position_limit` bounds the positions that the model may be shown.

    Raises `CannotStream`, with the reason, where keys do not merely turn; `name` is what it calls the model.
    """
    forward = Forward(model)
    name = name or type(model).__name__
    if not forward.takes_positions:
        return _probe_by_rank(forward, position_limit, name)
    input_ids = _probe_ids(forward, rows=PROBE_ROWS, count=1)
    start = _cached(forward, input_ids, 0, name)
    others = {p: _cached(forward, input_ids, p, name) for p in PROBE_POSITIONS if p < position_limit}
    tables = frequency_tables(model)
    known: list[Rotation] = []
    layouts = []
    for index, slots in enumerate(start):
        moved = [{p: layers[index][slot] for p, layers in others.items()} for slot in (0, 1)]
        _refuse_stretched(slots, moved, name)
        rotations = [_explain(tensor, there, tables, known, name) for tensor, there in zip(slots, moved, strict=True)]
        layouts.append(_layout(*slots, *rotations))
    return tuple(layouts)


def _probe_by_rank(forward: Forward, position_limit: int, name: str) -> tuple[LayerLayout, ...]:
    """Layouts of a model that takes no positions: accepted where what it caches depends on none (ALiBi)."""
    shapes = _cached(forward, _probe_ids(forward, rows=1, count=1), 0, name)
    cache = DynamicCache()
    others = [rank for rank in PROBE_RANKS if rank < position_limit]
    count = max(others, default=0) + 1
    forward(_probe_ids(forward, rows=2, count=1).expand(2, count), _positions(forward, 0, count), cache)
    for layer in cache.layers[: len(shapes)]:
        for tensor in (layer.keys, layer.values):
            ranks = [tensor[:, :, rank] for rank in (0, *others)]
            if unlike(ranks[0], ranks[1:]) > RANK_TOLERANCE:
                raise CannotStream(
                    f"{name} cannot stream: its cached keys change with position, and it takes no positions, "
                    "so tokens cannot be placed",
                    hint=DENSE_HINT,
                )
    return tuple(_layout(*slots) for slots in shapes)


def _layout(
    keys: Tensor, values: Tensor, rotation: Rotation | None = None, value_rotation: Rotation | None = None
) -> LayerLayout:
    shape = (keys.shape[1], keys.shape[-1], values.shape[-1])
    return LayerLayout(*shape, keys.dtype, keys.device, rotation, value_rotation)


def shift_test(model: nn.Module, *, last_position: int, name: str = "") -> float:
    """How much the logits of eight tokens change when they move from position 0 to `last_position` and before it.

    Root mean square in units of the logits' standard deviation, median over the tokens: in bfloat16 single tokens
    jump by a quarter for no reason but rounding. Raises `CannotStream` where it is more than rounding explains.
    """
    forward = Forward(model)
    input_ids = _probe_ids(forward, rows=1, count=8)
    at_start, far_out = (
        forward(input_ids, _positions(forward, first, 8), DynamicCache(), logits_to_keep=0)[0].double()
        for first in (0, last_position - 7)
    )
    change_by_token = (far_out - at_start).square().mean(-1).sqrt() / at_start.std(-1)
    change = change_by_token.median().item()
    if not change <= SHIFT_TOLERANCE[next(model.parameters()).dtype]:
        raise CannotStream(
            f"{name or type(model).__name__} cannot stream: the same text means something else to it at position "
            f"{last_position:,} than at 0 (its logits change by {change:.0%} of their spread)",
            hint=HINT,
        )
    return change


def _refuse_stretched(slots: tuple[Tensor, Tensor], moved: Sequence[Mapping[int, Tensor]], name: str) -> None:
    """A rotation leaves lengths as they are. Raises `CannotStream` where they change with position."""
    stretches = [stretch(tensor, there.values()) for tensor, there in zip(slots, moved, strict=True)]
    if max(stretches) <= TOLERANCE[slots[0].dtype]:
        return
    change = f"(their lengths change by {max(stretches):.0%} with position)"
    if unlike(slots[1], moved[1].values()) > TOLERANCE[slots[1].dtype]:
        reason = f"it learns absolute positions, so its cached keys cannot move {change}"
    else:
        reason = f"its keys are scaled after they were turned, so they cannot be turned on {change}"
    raise CannotStream(f"{name} cannot stream: {reason}", hint=DENSE_HINT)


def _explain(
    start: Tensor, moved: Mapping[int, Tensor], tables: Sequence[Tensor], known: list[Rotation], name: str
) -> Rotation | None:
    """The rotation that takes `start`, written at position 0, to what it is at each other position."""
    if unlike(start, moved.values()) <= TOLERANCE[start.dtype]:
        return None
    width = start.shape[-1]
    fitting = [rotation for rotation in known if rotation.start + rotation.width <= width]
    rotation = best_rotation(start, moved, [*fitting, *rotations_of(width, tables)])
    if rotation is None:
        raise CannotStream(
            f"{name} cannot stream: its cached keys turn with position in a way that no known rotary layout explains",
            hint=DENSE_HINT,
        )
    if rotation not in known:
        known.append(rotation)
    return rotation


def _cached(forward: Forward, input_ids: Tensor, position: int, name: str) -> list[tuple[Tensor, Tensor]]:
    """Keys and values (B, H, 1, D) that each layer caches for `input_ids` (B, 1) at `position`.

    The last layers of some models read what an earlier one cached, and are left out.
    """
    try:
        cache = DynamicCache(config=getattr(forward.model, "config", None))
        _refuse_states(cache, name)
        forward(input_ids, _positions(forward, position, 1), cache)
    except (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise CannotStream(
            f"{name} cannot stream: it does not run with a plain cache ({error})", hint=HINT
        ) from error
    layers = [(layer.keys, layer.values) for layer in cache.layers if layer.keys is not None]
    if not layers:
        raise CannotStream(f"{name} cannot stream: it cached nothing", hint=HINT)
    if any(layer.keys is None for layer in cache.layers[: len(layers)]):
        raise CannotStream(
            f"{name} cannot stream: some of its layers, and not the last ones, cache nothing", hint=HINT
        )
    return layers


def _refuse_states(cache: DynamicCache, name: str) -> None:
    """Raises `CannotStream` where some layer would remember by something else than keys and values."""
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            kept = "a running state of all that came before, from which nothing can leave"
        elif isinstance(layer, CacheLayerMixin) and type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            kept = "more than keys and values"
        else:
            continue
        raise CannotStream(f"{name} cannot stream: its layer {index} keeps {kept}", hint=HINT)


def _probe_ids(forward: Forward, *, rows: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(forward.vocabulary_size, (rows, count), generator=generator).to(forward.device)


def _positions(forward: Forward, first: int, count: int) -> Tensor:
    return torch.arange(first, first + count, device=forward.device).unsqueeze(0)
