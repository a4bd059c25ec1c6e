"""What is told of one family, and the bounds that hold for all; plain values."""

from dataclasses import dataclass
from typing import TypeAlias

CAPACITY, PINNED = 16, 4
"""of the cache in all checks but the long run"""
LONG_CAPACITY, LONG_TOKENS = 256, 20_000
"""of the long run"""

ONE_LAYER_BOUND = 1e-5
REFERENCE_BOUND = 1e-4
CHUNKS_BOUND = 3e-5
REBASE_BOUND = 3e-5
CONTROL_BOUND = 0.1
"""what the control exceeds"""
BFLOAT16_BOUND = 0.1
DRIFT_BOUND = 1.25
"""how many times the early error the late one may be"""


@dataclass(frozen=True, slots=True)
class Streams:
    """A family that streams. Errors are the largest difference of logits, in their standard deviations."""

    family: str
    layout: str
    """what the probe found, in words"""
    one_layer: float
    """one layer against a fresh forward over what is kept"""
    reference: float
    """three layers against the plain reference"""
    chunks: float
    """chunks of any size against one token at a time"""
    rebase: float
    """positions turned back again and again against positions that only grow"""
    control: float
    """one layer again, with the sinks not moved; where no key turns, with no sinks"""
    early: float
    """one layer in bfloat16, after 300 tokens against float32 read afresh; root mean square, median of many tokens"""
    late: float
    """the same after 20,000 tokens"""

    @property
    def holds(self) -> bool:
        """Whether all is within the bounds."""
        return (
            self.one_layer < ONE_LAYER_BOUND
            and self.reference < REFERENCE_BOUND
            and self.chunks < CHUNKS_BOUND
            and self.rebase < REBASE_BOUND
            and self.control > CONTROL_BOUND
            and self.early < BFLOAT16_BOUND
            and self.late < DRIFT_BOUND * self.early
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A family that cannot stream, and why."""

    family: str
    reason: str
    is_known: bool = True
    """False where the installed transformers lacks it"""


Row: TypeAlias = Streams | Refused
