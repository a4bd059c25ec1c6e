"""Blocks of GGUF files written by hand: random codes and scales, their bytes, and the weights that they stand for.

The weights follow from the codes by the formula of each kind; nothing here reads bytes back. Scales are powers of
two, so the weights are exact in float32. Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Drawn = tuple[Bytes, Floats]
"""of N blocks: (N, bytes of a block) and (N, weights of a block)"""


def _scales(draw: np.random.Generator, count: int, largest: float) -> Floats:
    """(N, 1): powers of two, so that codes up to `largest` stand for weights of a healthy size."""
    exponent = np.floor(np.log2(0.2 / largest)) + draw.integers(-1, 1, (count, 1))
    return np.exp2(exponent).astype(np.float32)


def _half(numbers: Floats) -> Bytes:
    return numbers.astype(np.float16).view(np.uint8)


def _pairs(low: NDArray, high: NDArray) -> Bytes:
    """Two codes a byte."""
    return (low | high << 4).astype(np.uint8)


def _bits(bits: NDArray) -> Bytes:
    """(N, 8 * B) of 0 and 1 as (N, B), the first in the lowest place."""
    return np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")


def q8_0(draw: np.random.Generator, count: int) -> Drawn:
    codes, d = draw.integers(-127, 128, (count, 32)), _scales(draw, count, 127)
    return np.hstack([_half(d), codes.astype(np.int8).view(np.uint8)]), (d * codes).astype(np.float32)


def q4_0(draw: np.random.Generator, count: int) -> Drawn:
    codes, d = draw.integers(0, 16, (count, 32)), _scales(draw, count, 8)
    return np.hstack([_half(d), _pairs(codes[:, :16], codes[:, 16:])]), (d * (codes - 8)).astype(np.float32)


def q4_1(draw: np.random.Generator, count: int) -> Drawn:
    codes, d = draw.integers(0, 16, (count, 32)), _scales(draw, count, 8)
    m = d * draw.integers(-10, -5, (count, 1))
    stored = np.hstack([_half(d), _half(m), _pairs(codes[:, :16], codes[:, 16:])])
    return stored, (d * codes + m).astype(np.float32)


def q5_0(draw: np.random.Generator, count: int) -> Drawn:
    codes, d = draw.integers(0, 32, (count, 32)), _scales(draw, count, 16)
    low = codes & 15
    stored = np.hstack([_half(d), _bits(codes >> 4), _pairs(low[:, :16], low[:, 16:])])
    return stored, (d * (codes - 16)).astype(np.float32)


def q5_1(draw: np.random.Generator, count: int) -> Drawn:
    codes, d = draw.integers(0, 32, (count, 32)), _scales(draw, count, 16)
    m, low = d * draw.integers(-20, -10, (count, 1)), codes & 15
    stored = np.hstack([_half(d), _half(m), _bits(codes >> 4), _pairs(low[:, :16], low[:, 16:])])
    return stored, (d * codes + m).astype(np.float32)


def _k_scales(scales: NDArray, mins: NDArray) -> Bytes:
    """Eight scales and eight mins of 6 bits in 12 bytes: four whole of each, of the others the halves apart."""
    return np.hstack(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            mins[:, :4] | (mins[:, 4:] >> 4) << 6,
            scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4,
        ]
    ).astype(np.uint8)


def _q_k(draw: np.random.Generator, count: int, bits: int) -> Drawn:
    """256 weights in eight groups of 32, each with a scale and a min of its own in 6 bits."""
    codes = draw.integers(0, 2**bits, (count, 8, 32))
    scales, mins = draw.integers(1, 64, (count, 8)), draw.integers(0, 64, (count, 8))
    d = _scales(draw, count, 40 * 2 ** (bits - 1))
    dmin = d * 2 ** (bits - 1)
    weights = (d * scales)[..., None] * codes - (dmin * mins)[..., None]
    low = codes & 15
    parts = [_half(d), _half(dmin), _k_scales(scales, mins)]
    if bits == 5:  # the fifth bits of the eight groups lie side by side
        parts.append(_bits((codes >> 4).transpose(0, 2, 1).reshape(count, 256)))
    parts.append(_pairs(low[:, ::2], low[:, 1::2]).reshape(count, 128))
    return np.hstack(parts), weights.reshape(count, 256).astype(np.float32)


def q4_k(draw: np.random.Generator, count: int) -> Drawn:
    return _q_k(draw, count, 4)


def q5_k(draw: np.random.Generator, count: int) -> Drawn:
    return _q_k(draw, count, 5)


def q6_k(draw: np.random.Generator, count: int) -> Drawn:
    """256 weights in sixteen groups of 16; four codes of 6 bits, 32 apart, share a byte of their upper two bits."""
    codes = draw.integers(0, 64, (count, 2, 4, 32))
    scales, d = draw.integers(-127, 128, (count, 16)), _scales(draw, count, 64 * 32)
    weights = d[:, None] * scales[..., None] * (codes.reshape(count, 16, 16) - 32)
    low, high = codes & 15, codes >> 4
    lows = _pairs(low[:, :, :2], low[:, :, 2:]).reshape(count, 128)
    highs = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(count, 64)
    stored = np.hstack([lows, highs.astype(np.uint8), scales.astype(np.int8).view(np.uint8), _half(d)])
    return stored, weights.reshape(count, 256).astype(np.float32)


KINDS: dict[str, tuple[int, Callable[[np.random.Generator, int], Drawn]]] = {
    "Q8_0": (32, q8_0),
    "Q4_0": (32, q4_0),
    "Q4_1": (32, q4_1),
    "Q5_0": (32, q5_0),
    "Q5_1": (32, q5_1),
    "Q4_K": (256, q4_k),
    "Q5_K": (256, q5_k),
    "Q6_K": (256, q6_k),
}
"""weights of a block, and what draws blocks"""


def drawn(kind: str, shape: tuple[int, int], seed: int) -> Drawn:
    """A matrix of `shape` (N, K): its rows as bytes, and its weights. F32, F16 and BF16 are numbers of that kind."""
    draw, (rows, columns) = np.random.default_rng(seed), shape
    if kind in KINDS:
        size, blocks_of = KINDS[kind]
        stored, weights = blocks_of(draw, rows * columns // size)
        return stored.reshape(rows, -1), weights.reshape(shape)
    numbers = (draw.standard_normal(shape) * 0.1).astype(np.float32)
    if kind == "F16":
        numbers = numbers.astype(np.float16).astype(np.float32)
        return numbers.astype(np.float16).view(np.uint8), numbers
    if kind == "BF16":
        halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return halves.view(np.uint8), (halves.astype(np.uint32) << 16).view(np.float32)
    return numbers.view(np.uint8), numbers
