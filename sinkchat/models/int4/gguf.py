"""Which 4-bit blocks of a GGUF file a weight was made from, found by its numbers.

transformers gives every tensor its own name and its own order of rows: the rotated halves of llama's queries and keys
lie interleaved in the file. No table of names and orders is kept here. A weight and a tensor belong together where
they have the same rows, in whatever order; then the codes are taken from the file, rows put in the weight's order,
and nothing is quantised a second time.
"""

from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from sinkchat.models.int4.blocks import Blocks, blocks_of

_ROWS_AT_ONCE = 1024


class GgufBlocks:
    """The 4-bit tensors of a file, by the sum of what their rows hash to."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        """`dtype` is the one that the file's weights were opened to."""
        self._dtype = dtype
        self._tensors: dict[tuple[int, ...], Any] = {}
        for tensor in gguf.GGUFReader(path).tensors:
            if tensor.tensor_type.name in ("Q4_0", "Q4_1") and len(tensor.shape) == 2:
                opened = self._opened(tensor)
                self._tensors[(*opened.shape, int(_hashed(opened).sum()))] = tensor

    def of(self, weight: Tensor) -> Blocks | None:
        """The blocks that `weight` (N, K) was opened from, rows in its order; None where there are none."""
        numbers = weight.detach().to(self._dtype)
        wanted = _hashed(numbers)
        tensor = self._tensors.get((*weight.shape, int(wanted.sum())))
        if tensor is None:
            return None
        opened = self._opened(tensor)
        order = torch.empty_like(wanted)
        order[wanted.argsort(stable=True)] = _hashed(opened).argsort(stable=True)
        if not torch.equal(opened[order], numbers):
            return None
        blocks = blocks_of(tensor)
        return None if blocks is None else blocks.rows(order)

    def _opened(self, tensor: Any) -> Tensor:
        return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).to(self._dtype)


def _hashed(rows: Tensor) -> Tensor:
    """A number of 64 bits for each row."""
    generator = torch.Generator().manual_seed(0)
    bits = rows.contiguous().view(torch.int16)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator)
    return torch.cat([(part.long() * factors).sum(1) for part in torch.split(bits, _ROWS_AT_ONCE)])
