"""The order in which torch's int4 kernel for CPUs wants the codes, found by asking it.

`_convert_weight_to_int4pack_for_cpu` puts two codes in a byte, in blocks of rows; how many rows, and which two,
depends on the instructions of the processor. No table of that is kept here: matrices whose codes tell their own row
are packed, and what comes out is read. Packed weights are therefore good only where `layout_name` is the same.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from sinkchat.models.int4.blocks import GROUP

ROWS = 16
"""The kernel wants a multiple of this many outputs."""

_MOST_ROWS = 256

P = ParamSpec("P")
R = TypeVar("R")


def is_here() -> bool:
    """Whether this torch has the kernel, since 2.6, and packs for it in a way that can be read."""
    try:
        return hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu") and block_rows() > 0
    except (NotImplementedError, RuntimeError):
        return False


def is_fast_here() -> bool:
    """Whether the kernel was written for this processor and measured there, which is so for AVX-512."""
    return is_here() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def fits(outputs: int, inputs: int) -> bool:
    """Whether the kernel takes a matrix of this size."""
    return outputs % ROWS == 0 and inputs % GROUP == 0


def pack(codes: Tensor) -> Tensor:
    """(N, K) codes as (N, K/2) bytes in the kernel's order."""
    return _pack(codes.to(torch.int32))


def unpack(packed: Tensor) -> Tensor:
    """The (N, K) codes, uint8, that `pack` was given."""
    inputs = 2 * packed.shape[1]
    blocks = [torch.cat(pair, -1) for pair in halves(packed, blocks_for(packed.shape[0]))]
    ordered = [block[..., row_order(block.shape[-1])] for block in blocks]
    return torch.cat([block.permute(0, 2, 1).reshape(-1, inputs) for block in ordered])


def halves(packed: Tensor, blocks: tuple[tuple[int, int], ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """The codes in the low and in the high halves of the bytes: for each (count, rows), two of (count, K, rows/2).

    A row of a block is found by its `row_order` in the two, one behind the other.
    """
    flat, inputs, start = packed.reshape(-1), 2 * packed.shape[1], 0
    for count, rows in blocks:
        size = count * inputs * rows // 2
        pairs = flat[start : start + size].view(count, inputs, rows // 2)
        start += size
        yield pairs & 15, pairs >> 4


def _asked_once(probe: Callable[P, R]) -> Callable[P, R]:
    """Keeps the answer; asks on the CPU, also where a model is being built on `meta`."""

    @lru_cache
    @wraps(probe)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.device("cpu"):
            return probe(*args, **kwargs)

    return asked  # type: ignore[return-value]


@lru_cache
def blocks_for(outputs: int) -> tuple[tuple[int, int], ...]:
    """How many blocks of how many rows the kernel makes of that many outputs: whole ones, then a smaller one."""
    rows = block_rows()
    whole, rest = divmod(outputs, rows)
    return tuple((count, size) for count, size in ((whole, rows), (1, rest)) if count and size)


@_asked_once
def block_rows() -> int:
    """The smallest number of rows that are packed without regard to the others."""
    codes = torch.randint(0, 16, (_MOST_ROWS, GROUP), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    whole = _pack(codes).flatten()
    for rows in (16, 32, 64, 128, 256):
        if torch.equal(whole, torch.cat([_pack(part.contiguous()).flatten() for part in torch.split(codes, rows)])):
            return rows
    raise NotImplementedError("torch packs 4-bit weights in a way that is not known")


@_asked_once
def row_order(rows: int) -> tuple[int, ...]:
    """Where each row of a block stands among the low halves of its bytes, followed by the high halves."""
    numbers = torch.arange(rows, dtype=torch.int32)
    place = torch.zeros(rows, dtype=torch.long)
    for shift in (0, 4):
        digits = ((numbers >> shift) & 15).unsqueeze(1).expand(rows, GROUP)
        pairs = _pack(digits.contiguous()).flatten()[: rows // 2].long()
        place += torch.cat([pairs & 15, pairs >> 4]) << shift
    return tuple(place.argsort().tolist())


@_asked_once
def layout_name() -> str:
    """A short name of the order on this machine: packed weights are exchanged only under the same one."""
    orders = [row_order(rows) for rows in range(ROWS, block_rows() + 1, ROWS)]
    return hashlib.sha256(repr(orders).encode()).hexdigest()[:8]


def _pack(codes: Tensor) -> Tensor:
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    return packed
