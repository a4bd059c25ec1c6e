"""How weights are held in memory: one small class per method.

Each class says whether it can be had here (`check`), what it asks of transformers (`apply`) and how many bytes the
weights will take (`nbytes`). nf4, fp4 and int8 are by bitsandbytes: NF4 and the second quantisation of its scales are
from QLoRA, arXiv 2305.14314, int8 from arXiv 2208.07339. int4 is torch's own kernel on a CPU, and torchao's on CUDA.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel, TorchAoConfig

from sinkchat.errors import DeviceUnavailable, UsageError
from sinkchat.models.checkpoint import Weight
from sinkchat.models.int4.blocks import GROUP
from sinkchat.models.int4.packing import fits, is_here
from sinkchat.models.int4.replace import to_int4
from sinkchat.models.int4.stored import METHOD as PACKED
from sinkchat.models.int4.stored import off_the_disk
from sinkchat.models.packages import is_installed, quietly_imported

_BLOCK = 64
"""weights that share a scale in nf4 and fp4"""
_SCALES = 256
"""scales that share a scale where they are quantised too"""
_FLOAT = 4
_TORCHAO_GROUP = 128


class Quantization(Protocol):
    """One way to hold weights."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device) -> tuple[str, ...]:
        """Sentences worth saying about this method on `device`. Raises where it cannot be had."""
        return ()

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        """What the method computes in, where `chosen` would be computed in without it."""
        return chosen

    def prepare(self, config: PreTrainedConfig) -> None:
        """Does to the configuration what must be done before the weights are read."""
        return

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """The arguments of `from_pretrained` that make it so."""
        return {}

    def finish(self, model: PreTrainedModel) -> None:
        """Does to the loaded model what transformers has not done."""
        return

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        """How many bytes the weights take in memory once they are loaded: exact for a model without experts."""


@dataclass(frozen=True, slots=True)
class Unquantized(Quantization):
    """Weights in the dtype that is computed in."""

    name: str = "none"

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return sum(weight.parameters for weight in weights) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class FourBit(Quantization):
    """4-bit weights by bitsandbytes, in blocks of 64: `nf4` (levels of a normal distribution) or `fp4`.

    A CPU with AVX512-BF16 halves the scales at its first forward.
    """

    name: str

    def check(self, device: torch.device) -> tuple[str, ...]:
        return _bitsandbytes_on(device, self.name)

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=self.name, bnb_4bit_compute_dtype=dtype)
        return {"quantization_config": settings}

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return _with_matrices(self._matrix, weights, dtype)

    @staticmethod
    def _matrix(outputs: int, inputs: int) -> int:
        """Two weights a byte, a float32 for each block, and the sixteen levels."""
        count = outputs * inputs
        return _ceiling(count, 2) + _ceiling(count, _BLOCK) * _FLOAT + 16 * _FLOAT


@dataclass(frozen=True, slots=True)
class DoubleFourBit(Quantization):
    """nf4 whose scales are quantised once more, to 8 bits in blocks of 256: 0.37 bits a weight less."""

    name: str = "nf4-dq"

    def check(self, device: torch.device) -> tuple[str, ...]:
        return _bitsandbytes_on(device, self.name)

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        settings = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
        return {"quantization_config": settings}

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return _with_matrices(self._matrix, weights, dtype)

    @staticmethod
    def _matrix(outputs: int, inputs: int) -> int:
        """As nf4, with a byte for each block, a float32 for 256 of them, their 256 levels and their mean."""
        count = outputs * inputs
        blocks = _ceiling(count, _BLOCK)
        scales = blocks + _ceiling(blocks, _SCALES) * _FLOAT + 256 * _FLOAT + _FLOAT
        return _ceiling(count, 2) + scales + 16 * _FLOAT


@dataclass(frozen=True, slots=True)
class EightBit(Quantization):
    """8-bit weights by bitsandbytes (LLM.int8), which multiplies in float16 whatever it is given."""

    name: str = "int8"

    def check(self, device: torch.device) -> tuple[str, ...]:
        return _bitsandbytes_on(device, self.name)

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.float16

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        """A byte a weight, a float32 a row."""
        return _with_matrices(lambda outputs, inputs: outputs * (inputs + _FLOAT), weights, dtype)


@dataclass(frozen=True, slots=True)
class Int4(Quantization):
    """4-bit integers on a CPU, a scale and a zero for each 32, by torch's own kernel; the head in 8 bits."""

    name: str = PACKED

    def check(self, device: torch.device) -> tuple[str, ...]:
        if device.type != "cpu" or not is_here():
            raise DeviceUnavailable(
                f"torch {torch.__version__} has no int4 for {device.type}", hint="--quant none, or --device cpu"
            )
        return ()

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def finish(self, model: PreTrainedModel) -> None:
        if getattr(model.config, "quantization_config", None) is None:
            to_int4(model)
        else:
            off_the_disk(model)

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        weights = tuple(weights)
        if any(weight.name.endswith(".packed") for weight in weights):
            return sum(weight.stored_bytes for weight in weights)
        return _with_matrices(lambda n, k: self._matrix(n, k, dtype), weights, dtype) + _second_head(weights, dtype)

    @staticmethod
    def _matrix(outputs: int, inputs: int, dtype: torch.dtype) -> int:
        if not fits(outputs, inputs):
            return outputs * inputs * dtype.itemsize
        return outputs * inputs // 2 + outputs * (inputs // GROUP) * 2 * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Int4OnCuda(Quantization):
    """4-bit integers on CUDA by torchao, in the order of tinygemm's kernels, a scale and a zero for each 128.

    Matrices whose rows are no multiple of 128 stay whole, as do embeddings and head.
    """

    name: str = PACKED

    def check(self, device: torch.device) -> tuple[str, ...]:
        if not is_installed("torchao"):
            raise UsageError(
                f"--quant int4 on {device.type} needs the package torchao, which is not installed",
                hint="pip install torchao, or --quant nf4",
            )
        if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
            raise DeviceUnavailable(
                f"--quant int4 needs a CUDA device of compute capability 8.0, and {device} has less",
                hint="--quant nf4",
            )
        return ()

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        torchao = quietly_imported("torchao.quantization")
        settings = torchao.Int4WeightOnlyConfig(group_size=_TORCHAO_GROUP, int4_packing_format="tile_packed_to_4d")
        return {"quantization_config": TorchAoConfig(settings)}

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return _with_matrices(lambda n, k: self._matrix(n, k, dtype), weights, dtype)

    @staticmethod
    def _matrix(outputs: int, inputs: int, dtype: torch.dtype) -> int:
        """The kernel's tiles want rows of a multiple of 1,024 and a multiple of 8 rows: the rest is filled."""
        if inputs % _TORCHAO_GROUP:
            return outputs * inputs * dtype.itemsize
        rows, row = 8 * _ceiling(outputs, 8), 1024 * _ceiling(inputs, 1024)
        return rows * row // 2 + rows * (row // _TORCHAO_GROUP) * 2 * dtype.itemsize


def _ceiling(count: int, size: int) -> int:
    return -(-count // size)


def _with_matrices(matrix: Callable[[int, int], int], weights: Iterable[Weight], dtype: torch.dtype) -> int:
    """Bytes where a matrix (N, K) of the layers takes `matrix(N, K)` and all else is in `dtype`.

    Embeddings and the head are left as they are, as transformers leaves them. So are experts, which it holds as one
    tensor of three dimensions.
    """
    return sum(
        matrix(*weight.shape) if _is_in_layers(weight) else weight.parameters * dtype.itemsize for weight in weights
    )


def _is_in_layers(weight: Weight) -> bool:
    outside = ("embed", "lm_head", "wte", "wpe", ".experts.")
    return len(weight.shape) == 2 and not any(part in weight.name for part in outside)


def _second_head(weights: tuple[Weight, ...], dtype: torch.dtype) -> int:
    """What a head in 8 bits, with a scale a row, takes more than it took: all of it where it was the embedding."""
    heads = [weight for weight in weights if weight.name.endswith(("lm_head.weight", "embed_out.weight"))]
    if heads:
        return heads[0].parameters * (1 - dtype.itemsize) + heads[0].shape[0] * dtype.itemsize
    embeddings = [weight for weight in weights if "embed_tokens" in weight.name or "wte" in weight.name]
    return max((one.parameters + one.shape[0] * dtype.itemsize for one in embeddings), default=0)


def _bitsandbytes_on(device: torch.device, method: str) -> tuple[str, ...]:
    if not is_installed("bitsandbytes"):
        raise UsageError(
            f"--quant {method} needs the package bitsandbytes, which is not installed",
            hint="pip install bitsandbytes, or --quant none",
        )
    bitsandbytes = quietly_imported("bitsandbytes")
    if device.type not in getattr(bitsandbytes, "supported_torch_devices", {"cuda"}):
        raise DeviceUnavailable(
            f"bitsandbytes {bitsandbytes.__version__} has no {method} for {device.type}",
            hint="--quant none",
        )
    if device.type == "cpu":
        return (f"{method} on a CPU saves memory and costs time: it reads three to five times as slowly",)
    return ()
