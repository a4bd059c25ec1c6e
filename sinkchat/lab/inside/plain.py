"""Reading without forgetting, and reading anew: what a streaming cache is compared with.

*Dense* attention keeps every key, and grows until memory ends; past the length that a model was trained on it says
nonsense, and both are to be seen. *Recomputation* reads the last tokens afresh for every token that is wanted: exact,
and as slow as it sounds.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from sinkchat.cache.forward import Forward

CHUNK_SIZE = 256


class DenseStream:
    """A model that reads a stream and keeps all of it, at the positions of the stream."""

    def __init__(self, model: nn.Module, *, chunk_size: int = CHUNK_SIZE) -> None:
        self.seen = 0
        self._cache = DynamicCache()
        self._forward = Forward(model)
        self._chunk_size = chunk_size

    def read(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """Logits (T, V) of the tokens `ids`, chunk by chunk."""
        for start in range(0, len(ids), self._chunk_size):
            chunk = ids[start : start + self._chunk_size]
            input_ids = torch.tensor([chunk], device=self._forward.device)
            positions = torch.arange(self.seen, self.seen + len(chunk), device=self._forward.device).unsqueeze(0)
            logits = self._forward(input_ids, positions, self._cache, logits_to_keep=0)
            self.seen += len(chunk)
            yield logits[0]


def read_afresh(model: nn.Module, windows: Tensor) -> Tensor:
    """Logits (B, V) of the last tokens of the `windows` (B, T), which are read together, each by itself."""
    forward = Forward(model)
    windows = windows.to(forward.device)
    positions = torch.arange(windows.shape[1], device=forward.device).expand(windows.shape)
    return forward(windows, positions, DynamicCache())[:, -1]
