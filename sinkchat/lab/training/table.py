"""The plan and the rows of the comparison that `sink_training` makes; plain values."""

from dataclasses import dataclass

SINKS = (0, 1, 2, 4)
"""The columns of the paper's table 3."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How three models are trained, alike, and measured. The defaults take a few minutes on two CPU cores."""

    steps: int = 1_000
    length: int = 64
    """bytes of a passage, and tokens of the cache afterwards"""
    batch: int = 16
    layers: int = 3
    heads: int = 4
    width: int = 64
    rate: float = 5e-3
    streams: int = 16
    """texts that are read at once, each four times the cache"""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What one model came to."""

    kind: str
    loss: float
    """of its last step in training, in nats a byte"""
    perplexities: tuple[float, ...]
    """of a byte, a column each of `SINKS`"""
