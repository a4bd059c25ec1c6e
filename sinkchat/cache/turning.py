"""Which rotation explains how a cached tensor changes with position, if any does.

The rates come from the model's own tables, which are exact where a fit is not: in bfloat16 the slow dimensions
hardly move. Which table, which dimensions and which pairing is found by trying them all on what was measured.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from sinkchat.cache.rope import Rotation, rotate

# Largest relative error that rounding explains. float32: the model's own angles err by 6e-5 at position 1,024.
TOLERANCE = {torch.float64: 3e-4, torch.float32: 3e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def best_rotation(start: Tensor, moved: Mapping[int, Tensor], rotations: Iterable[Rotation]) -> Rotation | None:
    """The one of `rotations` that best takes `start`, written at position 0, to what it is at each other position.

    All tensors are (..., D). None where no rotation does so within rounding.
    """
    best, least = None, TOLERANCE[start.dtype]
    for rotation in rotations:
        residual = max(
            relative(rotate(start.float(), position, rotation), there) for position, there in moved.items()
        )
        if residual < least:
            best, least = rotation, residual
    return best


def rotations_of(width: int, tables: Sequence[Tensor]) -> Iterator[Rotation]:
    """Every way in which `width` dimensions can turn at the rates of one of `tables`, the widest tables first.

    Nearly all models turn one way; nanochat turns the other way, which is as good.
    """
    for table in tables:
        turning = 2 * len(table)
        if turning <= width:
            for rates in (table, -table):
                for start in sorted({0, width - turning}):
                    yield from (Rotation(pairing, start, rates) for pairing in ("half", "interleaved"))


def frequency_tables(model: nn.Module) -> list[Tensor]:
    """The rotary frequencies that the model carries, in radians per position, float64, widest first, each once."""
    tables: list[Tensor] = []
    for name, buffer in model.named_buffers():
        table = _frequencies(name, buffer)
        if table is not None and not any(torch.equal(table, other) for other in tables):
            tables.append(table)
    return sorted(tables, key=len, reverse=True)


def _frequencies(name: str, buffer: Tensor) -> Tensor | None:
    if name.endswith("inv_freq") and buffer.ndim == 1:
        return buffer.detach().double().cpu()
    if buffer.ndim == 2 and buffer.shape[0] > 1 and buffer.shape[1] % 2 == 0 and buffer.is_floating_point():
        return _frequencies_of_sines(buffer)
    return None


def _frequencies_of_sines(table: Tensor) -> Tensor | None:
    """The frequencies f of a table (positions, 2 F) of sin(p f) and cos(p f), as GPT-J has it; None for any other."""
    at_start, beside = table[0].detach().cpu().chunk(2)  # one row: buffers that are no such table may be large
    if at_start.any() or not (beside == 1).all():
        return None
    sines, cosines = table.detach().double().cpu().chunk(2, dim=-1)
    angles = torch.atan2(sines, cosines)
    frequencies = angles[1]
    position = 2
    while position < len(table):  # each doubling halves the error that rounding leaves
        turns = ((frequencies * position - angles[position]) / (2 * math.pi)).round()
        frequencies = (angles[position] + 2 * math.pi * turns) / position
        position *= 2
    return frequencies


def unlike(tensor: Tensor, others: Iterable[Tensor]) -> float:
    """The largest relative difference between `tensor` and one of `others`."""
    return max((relative(other, tensor) for other in others), default=0.0)


def stretch(tensor: Tensor, others: Iterable[Tensor]) -> float:
    """The largest relative difference between the lengths of the rows of `tensor` and of one of `others`."""
    return unlike(tensor.float().norm(dim=-1), (other.float().norm(dim=-1) for other in others))


def relative(tensor: Tensor, reference: Tensor) -> float:
    """The length of the difference, in lengths of `reference`."""
    return float((tensor.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-30))
