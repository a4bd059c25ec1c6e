"""What must be known about a family because no measurement shows it. Most need no entry here.

Where a model's frequencies depend on how far it has read (dynamic NTK, longrope), where it scales queries from some
position on, or looks its angles up in a table, positions must stay below the point where that changes or ends. Where
every layer has a window of its own, no token beyond it is ever seen, so a larger cache would hold what nothing can
reach. Where scores fall off with distance (ALiBi), there is no length at all beyond which nothing was trained.
"""

from dataclasses import dataclass
from typing import Any

from sinkchat.cache.cache import POSITION_LIMIT
from sinkchat.cache.probe import DENSE_HINT, HINT
from sinkchat.errors import CannotStream
from sinkchat.models.checkpoint import trained_length

LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})
TABLES_OF_ANGLES = frozenset({"gptj", "codegen"})
"""families whose angles lie in a table of as many positions as they were trained on"""
ALWAYS_ALIBI = frozenset({"bloom", "mpt"})
LEARNED_POSITIONS = frozenset({"biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt"})
"""families that add a learned vector for each position to their tokens"""
RECURRENT = frozenset({"falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"})
RUNNING_STATES = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention"})
"""types of layers that keep a state of all that came before"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stream a model can be shown at once, in tokens."""

    trained: int | None
    """positions that it was trained on, None where it does not say"""
    window: int | None
    """the window that all of its layers have, None where some layer sees everything"""
    switch: int | None
    """positions below which it computes all by the same rule, None where it always does"""
    has_alibi: bool = False
    """whether scores fall off with distance, so that it may be shown more than it was trained on"""

    @property
    def length(self) -> int | None:
        """The most that it can be shown with nothing forgotten; None where that has no end."""
        known = [limit for limit in (self.trained, self.switch) if limit is not None]
        return None if self.has_alibi else min(known, default=None)

    @property
    def capacity(self) -> int | None:
        """The largest cache that makes sense for a stream.

        A quarter of the positions below a switch is left to go on in: so a key is turned back three times while it
        is held, and not at each token that comes.
        """
        below_switch = None if self.switch is None else self.switch - self.switch // 4
        known = [limit for limit in (self.length, self.window, below_switch) if limit is not None]
        return min(known, default=None)

    def positions(self, capacity: int) -> int:
        """The first position that the model must not be given, with a cache of `capacity`."""
        return max(POSITION_LIMIT, 2 * capacity) if self.switch is None else self.switch

    def reason(self, name: str) -> str:
        """Why a cache of more than `capacity` makes no sense, in words that follow the number."""
        if self.capacity == self.window:
            return f"tokens that any layer of {name} sees"
        if self.capacity == self.length:
            return f"positions {name} was trained on"
        return f"tokens that leave {name} room to go on below position {self.switch:,}"


def limits_of(config: Any) -> Limits:
    """The limits of a model, from its configuration."""
    text = config.get_text_config(decoder=True)
    trained = trained_length(config)
    return Limits(trained, _common_window(text), _switch(text, trained), has_alibi(config))


def refuse_unmovable(config: Any, *, name: str) -> None:
    """Raises `CannotStream` where a configuration alone says for certain that nothing can leave what it caches.

    What it does not say is measured later (`probe`); this spares a person the weights.
    """
    text = config.get_text_config(decoder=True)
    if text.model_type in LEARNED_POSITIONS:
        reason = "it learns absolute positions, so its cached keys cannot move"
        raise CannotStream(f"{name} cannot stream: {reason}", hint=DENSE_HINT)
    types = getattr(text, "layer_types", None) or ()
    kinds = sorted(set(types) & RUNNING_STATES)
    if kinds or text.model_type in RECURRENT:
        count = sum(kind in kinds for kind in types)
        those = "its layers" if count == len(types) else f"{count} of its {len(types)} layers ({', '.join(kinds)})"
        reason = f"{those} keep a running state of all that came before, from which nothing can leave"
        raise CannotStream(f"{name} cannot stream: {reason}", hint=HINT)


def has_alibi(config: Any) -> bool:
    """Whether scores fall off with distance by a bias on the scores (ALiBi, arXiv 2108.12409)."""
    text = config.get_text_config(decoder=True)
    return text.model_type in ALWAYS_ALIBI or (text.model_type == "falcon" and bool(text.alibi))


def attends_plainly(model: Any) -> bool:
    """Whether each layer attends to all that is held by its scores alone.

    So not where distance is a bias, a layer has a window of its own, or a learned sink takes part.
    """
    text = model.config.get_text_config(decoder=True)
    has_sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    return not (has_alibi(model.config) or has_sinks or _own_windows(text))


def make_bias_for(model: Any, capacity: int) -> None:
    """Lets `model` attend to `capacity` tokens.

    MPT makes its bias for `max_seq_len` keys at each forward. The bias goes on by the same rule for any number of
    keys, so its configuration is told of how many there will be, as its authors do.
    """
    text = model.config.get_text_config(decoder=True)
    if text.model_type == "mpt" and text.max_seq_len < capacity:
        text.max_seq_len = capacity


def _own_windows(config: Any) -> list[bool]:
    """For each layer whether it has a window of its own; empty where none has."""
    if getattr(config, "use_sliding_window", True) is False:
        return []
    if not (getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)):
        return []
    types = getattr(config, "layer_types", None) or ["sliding_attention"]
    own = [kind in ("sliding_attention", "chunked_attention") for kind in types]
    return own if any(own) else []


def _common_window(config: Any) -> int | None:
    own = _own_windows(config)
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    return int(window) if own and all(own) and window else None


def _switch(config: Any, trained: int | None) -> int | None:
    if config.model_type in TABLES_OF_ANGLES:
        return trained
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    switches = [
        kind.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or trained
        for kind in kinds
        if kind.get("rope_type") in LENGTH_DEPENDENT or kind.get("llama_4_scaling_beta")
    ]
    return min((int(switch) for switch in switches if switch), default=None)
