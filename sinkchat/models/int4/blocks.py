"""Weights as 4-bit codes in groups of 32, each group with a scale and a zero: w = (code - 8) * scale + zero.

The groups are those of GGUF's Q4_0 and Q4_1, so such files become codes without being quantised a second time;
any other weights are rounded to the nearest of 16 evenly spaced values between the least and the greatest of a group.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

GROUP = 32
"""weights along the input that share a scale and a zero"""
MIDDLE = 8
"""the code that stands for the zero itself"""
LARGEST = 15


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight matrix of N outputs and K inputs; the codes are never changed, only scale and zero are rounded."""

    codes: Tensor
    """(N, K) uint8, each 0 to 15"""
    scales: Tensor
    """(N, K/32)"""
    zeros: Tensor
    """(N, K/32)"""

    def dequantized(self) -> Tensor:
        """(N, K) in the dtype of the scales."""
        groups = self.codes.view(*self.scales.shape, GROUP).to(self.scales.dtype) - MIDDLE
        return torch.addcmul(self.zeros.unsqueeze(-1), groups, self.scales.unsqueeze(-1)).flatten(1)

    def rows(self, order: Tensor) -> "Blocks":
        return Blocks(self.codes[order], self.scales[order], self.zeros[order])


def stacked(parts: list[Blocks]) -> Blocks:
    """One matrix with the outputs of all, which have the same inputs."""
    return Blocks(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.zeros for part in parts]),
    )


def quantized(weight: Tensor, dtype: torch.dtype = torch.bfloat16) -> Blocks:
    """The blocks nearest to `weight` (N, K), for scales and zeros that will be kept in `dtype`.

    The codes are chosen for the rounded scale and zero, so their rounding costs nothing once more.
    """
    groups = weight.detach().float().view(weight.shape[0], -1, GROUP)
    least, greatest = groups.amin(-1), groups.amax(-1)
    tiny = torch.finfo(torch.float32).tiny
    scales = ((greatest - least) / LARGEST).to(dtype).float().clamp_min(tiny)
    zeros = (least + MIDDLE * scales).to(dtype).float()
    codes = ((groups - zeros.unsqueeze(-1)) / scales.unsqueeze(-1)).round_().add_(MIDDLE).clamp_(0, LARGEST)
    return Blocks(codes.to(torch.uint8).flatten(1), scales, zeros)


def blocks_of(tensor: Any) -> Blocks | None:
    """The blocks of a tensor of gguf's reader, scales in float32; None where it is of another kind.

    A block is 32 weights of a row: a float16 scale d, in Q4_1 a float16 offset m, and 16 bytes whose low halves
    are the first 16 codes. A weight is d * code + m, in Q4_0 d * (code - 8).
    """
    from gguf import GGMLQuantizationType

    numbers = {GGMLQuantizationType.Q4_0: 1, GGMLQuantizationType.Q4_1: 2}.get(tensor.tensor_type)
    if numbers is None or len(tensor.shape) != 2:
        return None
    inputs, outputs = (int(size) for size in tensor.shape)
    head = 2 * numbers
    stored = torch.from_numpy(np.array(tensor.data)).view(outputs, inputs // GROUP, head + GROUP // 2)
    floats = stored[..., :head].contiguous().view(torch.float16).float()
    pairs = stored[..., head:]
    codes = torch.cat([pairs & LARGEST, pairs >> 4], -1).flatten(1)
    scales = floats[..., 0]
    zeros = floats[..., 1] + MIDDLE * scales if numbers == 2 else torch.zeros_like(scales)
    return Blocks(codes, scales, zeros)
