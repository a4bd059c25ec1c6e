"""Linear layers with 4-bit and 8-bit weights for CPUs: few rows by torch's kernels, many by an ordinary matmul.

A kernel works through the codes anew for each row. Beyond `FEW_ROWS` the weights are unpacked for the moment of one
matmul, whose time hardly depends on how many rows there are.
"""

import torch
from torch import Tensor, nn

from sinkchat.models.int4.blocks import GROUP, MIDDLE, Blocks
from sinkchat.models.int4.packing import blocks_for, halves, pack, row_order

FEW_ROWS = 64
"""where both take about the same time: all layers of SmolLM2 on two cores, 82 and 94 ms"""
FEW_ROWS_OF_EIGHT_BITS = 4


class Int4Linear(nn.Module):
    """y = x W^T + b with W in 4-bit blocks; x in the dtype of the scales.

    `packed` is (N, K/2) uint8 in the kernel's own order, `scales_and_zeros` (K/32, N, 2).
    """

    packed: Tensor
    scales_and_zeros: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("packed", torch.empty(out_features, in_features // 2, dtype=torch.uint8))
        self.register_buffer("scales_and_zeros", torch.empty(in_features // GROUP, out_features, 2, dtype=dtype))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype) if bias else None)
        self._blocks = blocks_for(out_features)
        for _, rows in self._blocks:
            row_order(rows)  # asked now, so that a compiler need not

    @classmethod
    def of(cls, blocks: Blocks, *, bias: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> "Int4Linear":
        """The layer whose weights are `blocks`, scales and zeros rounded to `dtype`."""
        outputs, inputs = blocks.codes.shape
        with torch.device("meta"):
            layer = cls(inputs, outputs, bias=bias is not None, dtype=dtype)
        layer.packed = pack(blocks.codes)
        layer.scales_and_zeros = torch.stack([blocks.scales.T, blocks.zeros.T], -1).to(dtype).contiguous()
        layer.bias = None if bias is None else bias.detach().to(dtype)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] <= FEW_ROWS:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(
                rows.contiguous(), self.packed, GROUP, self.scales_and_zeros
            )
        else:
            y = rows @ self.transposed()
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)  # type: ignore[no-any-return]

    def transposed(self) -> Tensor:
        """W^T (K, N), unpacked: what the kernel multiplies by, rounded to the dtype of the scales."""
        # One run each: addition and product are five times as fast then.
        scales, zeros = (part.contiguous().unsqueeze(1) for part in self.scales_and_zeros.unbind(-1))
        weights = scales.new_empty(self.in_features, self.out_features)
        start = 0
        for low, high in halves(self.packed, self._blocks):
            count, _, half = low.shape
            block = weights[:, start : start + 2 * count * half].unflatten(1, (count, 2 * half))  # type: ignore[no-untyped-call]
            start += 2 * count * half
            for codes, place in ((low, block[..., :half]), (high, block[..., half:])):
                place.copy_(codes.view(torch.int8).sub_(MIDDLE).transpose(0, 1))
            order = row_order(2 * half)
            if order != tuple(range(2 * half)):
                block.copy_(block[..., order])
        groups = weights.view(-1, GROUP, self.out_features)
        torch.addcmul(zeros, groups, scales, out=groups)
        return weights

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(nn.Module):
    """y = x W^T + b with each row of W in 8 bits and a scale: enough for the head, which 4 bits hurt.

    `codes` is (N, K) int8, `scales` (N,) in the dtype of x, which the kernel is fast with in bfloat16 only.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("codes", torch.empty(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scales", torch.empty(out_features, dtype=dtype))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype) if bias else None)

    @classmethod
    def of(cls, weight: Tensor, *, bias: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> "Int8Linear":
        """The layer nearest to `weight` (N, K); a part at a time, as a head is large."""
        outputs, inputs = weight.shape
        with torch.device("meta"):
            layer = cls(inputs, outputs, bias=bias is not None, dtype=dtype)
        layer.codes = torch.empty(outputs, inputs, dtype=torch.int8)
        layer.scales = torch.empty(outputs, dtype=dtype)
        layer.bias = None if bias is None else bias.detach().to(dtype)
        for start in range(0, outputs, 4096):
            part = weight[start : start + 4096].detach().float()
            scales = (part.abs().amax(1) / 127).to(dtype)
            nonzero = scales.float().clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
            layer.scales[start : start + 4096] = scales
            layer.codes[start : start + 4096] = (part / nonzero).round_().clamp_(-127, 127).to(torch.int8)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] <= FEW_ROWS_OF_EIGHT_BITS:
            y = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), self.codes, self.scales)
        else:
            y = (rows @ self.codes.to(rows.dtype).T) * self.scales
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
