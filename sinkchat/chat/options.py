"""What a person can choose about a conversation, each default in one place.

Plain values: the command line, the configuration and the tests build these without a model in sight.
"""

from dataclasses import dataclass

DEFAULT_CACHE_SIZE = 2048


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What is remembered.

    `cache_size=None` is 2,048 tokens, or what the model was trained on where that is less. `sinks=None` pins the
    larger of 4 tokens and the opening (BOS, system block).
    """

    cache_size: int | None = None
    sinks: int | None = None
    evict: str = "turn"
    policy: str = "sink"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How an answer is drawn and when it ends. `temperature=0` is greedy; `max_tokens=0` sets no limit."""

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is loaded, in words: for the start line and for records."""

    name: str
    quant: str
    dtype: str
    device: str
    max_length: int | None
    """positions the model was trained on"""


@dataclass(frozen=True, slots=True)
class Weight:
    """What a message would cost if it were sent now: tokens to read, turns that would lose something."""

    tokens: int
    pushes_out: tuple[int, ...]
