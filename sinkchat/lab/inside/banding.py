"""Whether a model can be read in bands: tried, not looked up.

A short stream is read twice, in bands and token by token, and must come out alike. That shows every attention that
does not take the band, and all that it leaves out; only windows of a layer's own, longer than the trial, must be
asked for.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import LayerLayout
from sinkchat.lab.inside.band import CannotBand
from sinkchat.lab.inside.banded import BandedStream

TRIAL_TOKENS, TRIAL_CAPACITY, TRIAL_PINNED = 24, 8, 2
# Largest difference of logits, root mean square in their standard deviations, that rounding explains.
# Measured on SmolLM2: 2e-6 in float32, 0.05 in bfloat16; where queries do not turn to meet the sinks: 0.12.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


def why_not_banded(model: nn.Module, layouts: Sequence[LayerLayout], *, capacity: int, position_limit: int) -> str:
    """Why this model cannot be read in bands through a cache of `capacity`; empty where it can."""
    if position_limit < 2 * capacity:
        return f"only {position_limit:,} positions can be told apart"
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    if (own := _own_window(text)) is not None and own < capacity:
        return f"some of its layers see only {own:,} tokens"
    try:
        difference = _difference(model, layouts)
    except CannotBand as reason:
        return str(reason)
    if not difference <= TOLERANCE[next(model.parameters()).dtype]:
        return f"read many at once, its logits differ by {difference:.1%} of their spread"
    return ""


def one_by_one(model: nn.Module, cache: SinkCache, ids: Sequence[int]) -> Tensor:
    """Logits (T, V) of `ids`, each read in a forward of its own."""
    forward = Forward(model)
    rows = []
    for token in ids:
        cache.make_room()
        rows.append(forward(torch.tensor([[token]], device=forward.device), cache.positions(1), cache)[0, -1])
        cache.commit(1)
    return torch.stack(rows)


def _difference(model: nn.Module, layouts: Sequence[LayerLayout]) -> float:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(Forward(model).vocabulary_size, (TRIAL_TOKENS,), generator=generator).tolist()
    cache = SinkCache(layouts, EvictTokens(1), capacity=TRIAL_CAPACITY, pinned=TRIAL_PINNED)
    stream = BandedStream(model, layouts, capacity=TRIAL_CAPACITY, pinned=TRIAL_PINNED, chunk_size=TRIAL_TOKENS // 2)
    in_bands = torch.cat(list(stream.read(ids))).double()
    expected = one_by_one(model, cache, ids).double()
    return ((in_bands - expected).square().mean(-1).sqrt() / expected.std(-1)).median().item()


def _own_window(text_config: Any) -> int | None:
    """The shortest window that some layer has, None where every layer sees all."""
    if getattr(text_config, "use_sliding_window", True) is False:
        return None
    windows = (getattr(text_config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((int(window) for window in windows if window), default=None)
