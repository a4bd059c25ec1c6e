"""How a model's cached keys turn with position: measured, not looked up.

A list of families drifts from the code it describes, so the model itself is asked. With one token in the cache,
softmax is 1 whatever the position, so the hidden states of all layers are the same at every position and a
difference between cached keys can come from position alone. One forward for each of a few positions shows it for
all layers at once. What no rotation explains is refused, before any text.

The shift test then asks for the whole: eight tokens far out must give the logits that they give at the start.
It sees what keys cannot show, such as queries scaled by absolute position.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from sinkchat.cache.forward import Forward
from sinkchat.cache.rope import Rotation, rotate
from sinkchat.errors import CannotStream

PROBE_POSITIONS = (1, 8, 64, 512, 1024)
PROBE_ROWS = 8
# Largest relative error that rounding explains. float32: the model's own angles err by 6e-5 at position 1,024.
KEY_TOLERANCE = {torch.float64: 3e-4, torch.float32: 3e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Measured on SmolLM2 at position 16,000: 1e-4 in float32, 0.03 to 0.08 in bfloat16. Absolute positions: 0.5 and more.
SHIFT_TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01, torch.float16: 0.1, torch.bfloat16: 0.25}
HINT = "a model with rotary positions, such as `sinkchat run smollm2`"


@dataclass(frozen=True, slots=True, eq=False)
class LayerLayout:
    """What one layer caches: keys (B, `heads`, T, `key_width`), values likewise, and how the keys turn.

    `rotation` is None where keys do not depend on position.
    """

    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device
    rotation: Rotation | None


def layer_shapes(model: nn.Module, *, name: str = "") -> tuple[LayerLayout, ...]:
    """What every layer caches, taking its keys as immovable: enough for a cache that forgets nothing."""
    forward = Forward(model)
    input_ids = _probe_ids(model, forward, rows=1, count=1)
    return tuple(
        _layout(keys, values, None) for keys, values in _cached(forward, input_ids, 0, name or type(model).__name__)
    )


def probe(model: nn.Module, *, position_limit: int, name: str = "") -> tuple[LayerLayout, ...]:
    """The layout of every layer's cache. `position_limit` bounds the positions that the model may be shown.

    Raises `CannotStream`, with the reason, where keys do not merely turn; `name` is what it calls the model.
    """
    forward = Forward(model)
    name = name or type(model).__name__
    if not forward.takes_positions:
        raise CannotStream(f"{name} cannot stream: it takes no positions, so tokens cannot be placed", hint=HINT)
    input_ids = _probe_ids(model, forward, rows=PROBE_ROWS, count=1)
    start = _cached(forward, input_ids, 0, name)
    others = {p: _cached(forward, input_ids, p, name) for p in PROBE_POSITIONS if p < position_limit}
    tables = _frequency_tables(model)
    known: list[Rotation] = []
    layouts = []
    for index, (keys, values) in enumerate(start):
        moved = {position: layers[index][0] for position, layers in others.items()}
        rotation = _explain(keys, moved, tables, known, name)
        if _unlike(values, (layers[index][1] for layers in others.values())) > KEY_TOLERANCE[values.dtype]:
            raise CannotStream(f"{name} cannot stream: its cached values change with position", hint=HINT)
        layouts.append(_layout(keys, values, rotation))
    return tuple(layouts)


def _layout(keys: Tensor, values: Tensor, rotation: Rotation | None) -> LayerLayout:
    return LayerLayout(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device, rotation)


def shift_test(model: nn.Module, *, last_position: int, name: str = "") -> float:
    """How much the logits of eight tokens change when they move from position 0 to `last_position` and before it.

    Root mean square in units of the logits' standard deviation, median over the tokens: in bfloat16 single tokens
    jump by a quarter for no reason but rounding. Raises `CannotStream` where it is more than rounding explains.
    """
    forward = Forward(model)
    input_ids = _probe_ids(model, forward, rows=1, count=8)
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


def _explain(
    keys: Tensor,
    moved: Mapping[int, Tensor],
    tables: Sequence[Tensor],
    known: list[Rotation],
    name: str,
) -> Rotation | None:
    """The rotation that takes `keys`, written at position 0, to what they are at each other position."""
    tolerance = KEY_TOLERANCE[keys.dtype]
    if _unlike(keys, moved.values()) <= tolerance:
        return None
    lengths = keys.float().norm(dim=-1)
    stretch = max(_relative(other.float().norm(dim=-1), lengths) for other in moved.values())
    if stretch > tolerance:
        raise CannotStream(
            f"{name} cannot stream: it learns absolute positions, so its cached keys cannot move "
            f"(their lengths change by {stretch:.0%} with position)",
            hint=f"{HINT}, or --policy dense",
        )
    for rotation in chain(known, _candidates(keys.shape[-1], tables)):
        expected = [rotate(keys.float(), position, rotation) for position in moved]
        if max(map(_relative, expected, moved.values())) <= tolerance:
            if rotation not in known:
                known.append(rotation)
            return rotation
    raise CannotStream(
        f"{name} cannot stream: its cached keys turn with position in a way that no known rotary layout explains",
        hint=HINT,
    )


def _candidates(width: int, tables: Sequence[Tensor]) -> Iterator[Rotation]:
    """Every way in which keys of `width` dimensions can turn at one of the model's own rates, widest first."""
    for table in tables:
        turning = 2 * len(table)
        if turning <= width:
            for start in sorted({0, width - turning}):
                yield from (Rotation(pairing, start, table) for pairing in ("half", "interleaved"))


def _frequency_tables(model: nn.Module) -> list[Tensor]:
    """The rotary frequencies that the model carries, in radians per position, float64, widest first.

    The model's own table is exact where a fit is not: in bfloat16 the slow dimensions hardly move.
    """
    tables: list[Tensor] = []
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.ndim == 1:
            table = buffer.detach().double().cpu()
            if not any(torch.equal(table, other) for other in tables):
                tables.append(table)
    return sorted(tables, key=len, reverse=True)


def _cached(forward: Forward, input_ids: Tensor, position: int, name: str) -> list[tuple[Tensor, Tensor]]:
    """Keys and values (B, H, 1, D) that each layer caches for `input_ids` (B, 1) at `position`."""
    cache = DynamicCache()
    try:
        forward(input_ids, _positions(forward, position, 1), cache)
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise CannotStream(
            f"{name} cannot stream: it does not run with a plain cache ({error})", hint=HINT
        ) from error
    layers = []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, CacheLayerMixin) or layer.keys is None or layer.values is None:
            raise CannotStream(f"{name} cannot stream: layer {index} keeps a state, not keys and values", hint=HINT)
        layers.append((layer.keys, layer.values))
    if not layers:
        raise CannotStream(f"{name} cannot stream: it cached nothing", hint=HINT)
    return layers


def _probe_ids(model: nn.Module, forward: Forward, *, rows: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vocabulary: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    return torch.randint(vocabulary, (rows, count), generator=generator).to(forward.device)


def _positions(forward: Forward, first: int, count: int) -> Tensor:
    return torch.arange(first, first + count, device=forward.device).unsqueeze(0)


def _unlike(tensor: Tensor, others: Iterable[Tensor]) -> float:
    return max((_relative(other, tensor) for other in others), default=0.0)


def _relative(tensor: Tensor, reference: Tensor) -> float:
    return float((tensor.double() - reference.double()).norm() / reference.double().norm())
