"""What must be known about a family because no measurement shows it. Most need no entry here.

Where a model's frequencies depend on how far it has read (dynamic NTK, longrope), positions must stay below the
point where they switch. Where every layer has a window of its own, no token beyond it is ever seen, so a larger
cache would hold what nothing can reach.
"""

from dataclasses import dataclass
from typing import Any

from sinkchat.cache.cache import POSITION_LIMIT
from sinkchat.models.checkpoint import trained_length

LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stream a model can be shown at once, in tokens."""

    trained: int | None
    """positions that it was trained on, None where it does not say"""
    window: int | None
    """the window that all of its layers have, None where some layer sees everything"""
    switch: int | None
    """positions below which its rotary frequencies stay the same, None where they always do"""

    @property
    def capacity(self) -> int | None:
        """The largest cache that makes sense."""
        known = [limit for limit in (self.trained, self.window, self.switch) if limit is not None]
        return min(known, default=None)

    def positions(self, capacity: int) -> int:
        """The first position that the model must not be given, with a cache of `capacity`."""
        return max(POSITION_LIMIT, 2 * capacity) if self.switch is None else self.switch


def limits_of(config: Any) -> Limits:
    """The limits of a model, from its configuration."""
    text = config.get_text_config(decoder=True)
    trained = trained_length(config)
    return Limits(trained, _common_window(text), _switch(text, trained))


def _common_window(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return None
    types = getattr(config, "layer_types", None) or ["sliding_attention"]
    return int(window) if all(kind == "sliding_attention" for kind in types) else None


def _switch(config: Any, trained: int | None) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    switches = [
        kind.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or trained
        for kind in kinds
        if kind.get("rope_type") in LENGTH_DEPENDENT
    ]
    return min((int(switch) for switch in switches if switch), default=None)
