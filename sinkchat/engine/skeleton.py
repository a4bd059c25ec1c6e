"""A model without its weights, as bytes for another process: classes, settings, and the shape of every tensor."""

import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn


class _Pickler(pickle.Pickler):
    """Writes a tensor as what it looks like. Tied weights stay tied."""

    def persistent_id(self, it: Any) -> tuple[Any, ...] | None:
        if not isinstance(it, Tensor):
            return None
        return (id(it), isinstance(it, nn.Parameter), tuple(it.shape), it.stride(), it.dtype, str(it.device))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, pid: tuple[Any, ...]) -> Tensor:
        number, is_parameter, shape, stride, dtype, device = pid
        if number not in self._made:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
            self._made[number] = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
        return self._made[number]


def packed(it: Any) -> bytes:
    """Modules and tensors in whatever structure, without the tensors' contents. Raises what `pickle` raises."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(it)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """What was packed, with tensors of whatever content. Only for bytes that this program has written."""
    return _Unpickler(io.BytesIO(data)).load()
