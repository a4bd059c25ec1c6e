"""How the next token is drawn from logits.

Each method is a value: equal settings draw equal tokens from equal generators. The order is that of transformers:
penalty, temperature, top-k, top-p, min-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sinkchat.errors import UsageError

# The head of a distribution in which top-p is first sought: 0.95 lies there nearly always, and sorting it takes a
# hundredth of the time that sorting a vocabulary takes.
HEAD = 256


class Sampler(Protocol):
    """Draws one token."""

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> int:
        """A token id. `logits` is (V,), on any device; `held_ids` are the tokens in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Greedy:
    """The most likely token, after the repetition penalty."""

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _check_penalty(self.repetition_penalty)

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> int:
        return int(penalize(logits, held_ids, self.repetition_penalty).argmax())


@dataclass(frozen=True, slots=True)
class Sampling:
    """Random, from what the filters leave over. The defaults filter nothing; a chat's are in `ChatOptions`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _check_penalty(self.repetition_penalty)
        if not self.temperature > 0:
            raise UsageError(f"temperature {self.temperature} cannot be drawn from", hint="0 for greedy, or 0.7")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p {self.top_p} is not in (0, 1]", hint="--top-p 0.95")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p {self.min_p} is not in [0, 1]", hint="--min-p 0.05")
        if self.top_k < 0:
            raise UsageError(f"top-k {self.top_k} is negative", hint="--top-k 40, or 0 for no limit")

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> int:
        probabilities, ids = self.distribution(logits, held_ids)
        return int(ids[torch.multinomial(probabilities, 1, generator=generator)])

    def distribution(self, logits: Tensor, held_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Probabilities (K,) of the K tokens that can be drawn, most likely first, and their ids (K,); on the CPU."""
        logits = penalize(logits, held_ids, self.repetition_penalty) / self.temperature
        count = min(self.top_k or len(logits), len(logits))
        top_logits, ids = logits.topk(min(count, HEAD))
        total = logits.logsumexp(0) if count == len(logits) else None
        if len(ids) < count and not self._head_suffices(top_logits, total):
            top_logits, ids = logits.topk(count)
        probabilities = (top_logits - (top_logits.logsumexp(0) if total is None else total)).exp().cpu()
        # A token is kept while those before it hold less than top_p: the one that crosses the line is kept too.
        kept = probabilities.cumsum(0) - probabilities < self.top_p
        if self.min_p > 0:
            kept &= probabilities >= self.min_p * probabilities[0]
        kept[0] = True
        probabilities = probabilities[kept]
        return probabilities / probabilities.sum(), ids.cpu()[kept]

    def _head_suffices(self, head: Tensor, total: Tensor | None) -> bool:
        if total is None:
            return False
        probabilities = (head - total).exp()
        return bool(probabilities.sum() >= self.top_p) or bool(probabilities[-1] < self.min_p * probabilities[0])


def penalize(logits: Tensor, held_ids: Sequence[int], penalty: float) -> Tensor:
    """Float32 logits (V,) in which tokens in memory are `penalty` times less attractive (CTRL, arXiv 1909.05858)."""
    logits = logits.float()
    if penalty == 1.0 or not held_ids:
        return logits
    ids = torch.tensor(sorted(set(held_ids)), device=logits.device)
    scores = logits[ids]
    return logits.index_copy(0, ids, torch.where(scores < 0, scores * penalty, scores / penalty))


def _check_penalty(penalty: float) -> None:
    if penalty <= 0:
        raise UsageError(f"repetition penalty {penalty} is not positive", hint="--repetition-penalty 1.1")
