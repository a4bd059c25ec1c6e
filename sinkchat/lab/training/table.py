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


PAPER = {
    "vanilla": (27.87, 18.49, 18.05, 18.05),
    "zero sink": (29_214.0, 19.90, 18.27, 18.01),
    "learnable sink": (1_235.0, 18.01, 18.01, 18.02),
}
"""Table 3 itself: perplexities of tokens, models of 160 million parameters, a cache of 1,024"""

HARDLY = 0.05
"""what a model loses without its sinks is this share of its perplexity, or it hardly has any"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one model came to."""

    kind: str
    loss: float
    """of its last step in training, in nats a byte"""
    perplexities: tuple[float, ...]
    """of a byte, a column each of `SINKS`"""

    @property
    def loss_without(self) -> float:
        """By which share perplexity is higher without sinks than with the most of them."""
        return self.perplexities[0] / self.perplexities[-1] - 1
