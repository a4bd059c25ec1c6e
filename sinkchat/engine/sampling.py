"""How the next token is drawn from logits.

Each method is a value: equal settings draw equal tokens from equal generators. The order is that of transformers:
penalty, temperature, top-k, top-p, min-p. Chance comes from the generator alone, one number for a token, so all the
rest can be computed where the logits are, and nobody waits for that device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sinkchat.errors import UsageError

HEAD = 256
"""The most likely tokens in which a CPU first seeks top-p: 0.95 lies there nearly always, and sorting them takes a
hundredth of the time that sorting a vocabulary takes. A device sorts them all: it would take longer to ask it."""


class Sampler(Protocol):
    """Draws one token."""

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> Tensor:
        """A token id (), where `logits` (V,) are. `held_ids` are the tokens in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Greedy:
    """The most likely token, after the repetition penalty."""

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _check_penalty(self.repetition_penalty)

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> Tensor:
        return penalize(logits, held_ids, self.repetition_penalty).argmax()


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

    def draw(self, logits: Tensor, held_ids: Sequence[int], generator: torch.Generator) -> Tensor:
        probabilities, ids = self.distribution(logits, held_ids)
        chance = torch.rand((), generator=generator).to(logits.device, non_blocking=True)
        below = probabilities.cumsum(0)
        # Rounding may leave the last sum at the very chance that was drawn: then it is the last token that can be.
        rank = torch.minimum((below <= chance * below[-1]).sum(), (probabilities > 0).sum() - 1)
        return ids.take(rank)

    def distribution(self, logits: Tensor, held_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Probabilities (K,) of the K likeliest tokens, in that order, and their ids (K,); 0: never drawn."""
        logits = penalize(logits, held_ids, self.repetition_penalty) / self.temperature
        count = min(self.top_k or len(logits), len(logits))
        top, ids, total = self._head(logits, count)
        probabilities = (top - total).exp()
        # A token is kept while those before it hold less than top_p: the one that crosses the line is kept too.
        kept = probabilities.cumsum(0) - probabilities < self.top_p
        if self.min_p > 0:
            kept &= probabilities >= self.min_p * probabilities[0]
        kept[0] = True
        probabilities = probabilities * kept
        return probabilities / probabilities.sum(), ids

    def _head(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and ids of all tokens that may be drawn, likeliest first, `count` at most; the logsumexp of all."""
        if logits.device.type == "cpu" and HEAD < count == len(logits):
            (top, ids), total = logits.topk(HEAD), logits.logsumexp(0)
            probabilities = (top - total).exp()
            if probabilities.sum() >= self.top_p or probabilities[-1] < self.min_p * probabilities[0]:
                return top, ids, total
        top, ids = logits.topk(count)
        return top, ids, top.logsumexp(0)


def penalize(logits: Tensor, held_ids: Sequence[int], penalty: float) -> Tensor:
    """Float32 logits (V,) in which tokens in memory are `penalty` times less attractive (CTRL, arXiv 1909.05858)."""
    logits = logits.float()
    if penalty == 1.0 or not held_ids:
        return logits
    ids = torch.tensor(sorted(set(held_ids))).to(logits.device, non_blocking=True)
    scores = logits[ids]
    return logits.index_copy(0, ids, torch.where(scores < 0, scores * penalty, scores / penalty))


def _check_penalty(penalty: float) -> None:
    if penalty <= 0:
        raise UsageError(f"repetition penalty {penalty} is not positive", hint="--repetition-penalty 1.1")
