"""In how many bits the weights are held: one small class per method, chosen by `--quant`.

Each class says whether it can be had here (`check`), what it asks of transformers (`apply`) and how
many bytes the weights will take (`nbytes`). A further method is a further class and an entry in
`METHODS`. nf4, fp4 and int8 are by bitsandbytes: NF4 is from QLoRA, arXiv 2305.14314, int8 from arXiv 2208.07339.
int4 is torch's own kernel on a CPU, and torchao's on CUDA.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel, TorchAoConfig

from sinkchat.errors import DeviceUnavailable, UsageError
from sinkchat.models.checkpoint import Weight
from sinkchat.models.int4.packing import is_fast_here, is_here
from sinkchat.models.int4.replace import to_int4
from sinkchat.models.int4.stored import METHOD as PACKED
from sinkchat.models.int4.stored import off_the_disk
from sinkchat.models.placement import cpu_has_bfloat16

_SCALE_BYTES = 4 / 64
"""one float32 for each block of 64 weights"""
_INT4_BYTES = 0.5 + 4 / 32
"""a bfloat16 scale and zero for each group of 32"""


class Quantization(Protocol):
    """One way to hold weights."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device) -> tuple[str, ...]:
        """Sentences worth saying about this method on `device`. Raises where it cannot be had."""

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        """What the method computes in, where `chosen` would be computed in without it."""

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """The arguments of `from_pretrained` that make it so."""

    def finish(self, model: PreTrainedModel) -> None:
        """Does to the loaded model what transformers has not done."""

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        """About how many bytes the weights take in memory."""


@dataclass(frozen=True, slots=True)
class Unquantized:
    """Weights in the dtype that is computed in."""

    name: str = "none"

    def check(self, device: torch.device) -> tuple[str, ...]:
        return ()

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return chosen

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        return {}

    def finish(self, model: PreTrainedModel) -> None:
        pass

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return sum(weight.parameters for weight in weights) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Shipped:
    """Weights that are quantised on disk already, loaded as they are."""

    name: str

    def check(self, device: torch.device) -> tuple[str, ...]:
        return (f"the checkpoint is quantised already ({self.name}) and is loaded as shipped",)

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return chosen

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        return {}

    def finish(self, model: PreTrainedModel) -> None:
        pass

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return sum(weight.stored_bytes for weight in weights)


@dataclass(frozen=True, slots=True)
class FourBit:
    """4-bit weights by bitsandbytes, in blocks of 64: `nf4` (levels of a normal distribution) or `fp4`."""

    name: str

    def check(self, device: torch.device) -> tuple[str, ...]:
        return _bitsandbytes_on(device, self.name)

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return chosen

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=self.name, bnb_4bit_compute_dtype=dtype)
        return {"quantization_config": settings}

    def finish(self, model: PreTrainedModel) -> None:
        pass

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return _matrices_at(0.5 + _SCALE_BYTES, weights, dtype)


@dataclass(frozen=True, slots=True)
class EightBit:
    """8-bit weights by bitsandbytes (LLM.int8), which multiplies in float16 whatever it is given."""

    name: str = "int8"

    def check(self, device: torch.device) -> tuple[str, ...]:
        return _bitsandbytes_on(device, self.name)

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.float16

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}

    def finish(self, model: PreTrainedModel) -> None:
        pass

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        return _matrices_at(1.0, weights, dtype)


@dataclass(frozen=True, slots=True)
class Int4:
    """4-bit integers with a scale for each group: on a CPU of 32, the head in 8 bits; on CUDA of 128, by torchao."""

    name: str = PACKED

    def check(self, device: torch.device) -> tuple[str, ...]:
        if device.type == "cuda":
            return _torchao_on(device)
        if device.type != "cpu" or not is_here():
            raise DeviceUnavailable(
                f"torch {torch.__version__} has no int4 for {device.type}", hint="--quant none, or --device cpu"
            )
        return ()

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def apply(self, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        if device.type != "cuda":
            return {}
        from torchao.quantization import Int4WeightOnlyConfig

        settings = Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
        return {"quantization_config": TorchAoConfig(settings)}

    def finish(self, model: PreTrainedModel) -> None:
        if getattr(model.config, "quantization_config", None) is None:
            to_int4(model)
        else:
            off_the_disk(model)

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        weights = tuple(weights)
        if any(weight.name.endswith(".packed") for weight in weights):
            return sum(weight.stored_bytes for weight in weights)
        return _matrices_at(_INT4_BYTES, weights, dtype) + _second_head(weights, dtype)


METHODS: Mapping[str, Quantization] = MappingProxyType(
    {
        "none": Unquantized(),
        "nf4": FourBit("nf4"),
        "fp4": FourBit("fp4"),
        "int8": EightBit(),
        "int4": Int4(),
    }
)


def require_known(asked: str) -> None:
    """Raises UsageError where `asked` is no word of `--quant`: a slip is told before gigabytes are fetched."""
    if asked != "auto" and asked not in METHODS:
        raise UsageError(f"--quant {asked} is not known", hint=f"--quant auto, {', '.join(METHODS)}")


def choose_quantization(
    asked: str, device: torch.device, *, shipped: str | None, blocks: str = "none", dtype: str = "auto"
) -> tuple[Quantization, tuple[str, ...]]:
    """The method for `--quant`, and sentences that say why.

    `shipped` names the method of weights that are quantised already, `blocks` the kind of most blocks of a GGUF file,
    `dtype` is the word of `--dtype`. Raises UsageError where they do not go together, and what `check` raises.
    """
    require_known(asked)
    if shipped is not None:
        if asked not in ("auto", shipped):
            raise UsageError(
                f"--quant {asked} cannot be: the checkpoint is quantised already ({shipped})",
                hint="--quant auto, which loads it as shipped",
            )
        method: Quantization = Shipped(shipped)
        return method, method.check(device)
    if asked != "auto":
        method = METHODS[asked]
        return method, method.check(device)
    if device.type != "cuda":
        kept = device.type == "cpu" and blocks in ("Q4_0", "Q4_1") and dtype in ("auto", "bfloat16")
        fast = kept and cpu_has_bfloat16() and is_fast_here()
        return METHODS["int4" if fast else "none"], ()
    if not _has_bitsandbytes():
        return METHODS["none"], ("weights are not quantised: bitsandbytes is not installed",)
    method = METHODS["nf4"]
    chosen = "weights in 4 bits (nf4), as always on CUDA; --quant none holds them whole"
    return method, (chosen, *method.check(device))


def _matrices_at(bytes_each: float, weights: Iterable[Weight], dtype: torch.dtype) -> int:
    """Bytes where the matrices of the layers take `bytes_each` a weight and all else is in `dtype`.

    Embeddings and the head are left as they are, as transformers leaves them.
    """
    total = 0.0
    for weight in weights:
        in_layers = len(weight.shape) == 2 and not any(
            part in weight.name for part in ("embed", "lm_head", "wte", "wpe")
        )
        total += weight.parameters * (bytes_each if in_layers else dtype.itemsize)
    return int(total)


def _second_head(weights: tuple[Weight, ...], dtype: torch.dtype) -> int:
    """What the head in 8 bits takes more than it took: one of its own where it was the embedding."""
    heads = [weight for weight in weights if weight.name.endswith(("lm_head.weight", "embed_out.weight"))]
    if heads:
        return heads[0].parameters * (1 - dtype.itemsize)
    embeddings = [weight for weight in weights if "embed_tokens" in weight.name or "wte" in weight.name]
    return max((weight.parameters for weight in embeddings), default=0)


def _torchao_on(device: torch.device) -> tuple[str, ...]:
    if importlib.util.find_spec("torchao") is None:
        raise UsageError(
            f"--quant int4 on {device.type} needs the package torchao, which is not installed",
            hint="pip install torchao, or --quant nf4",
        )
    return ()


def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def _bitsandbytes_on(device: torch.device, method: str) -> tuple[str, ...]:
    if not _has_bitsandbytes():
        raise UsageError(
            f"--quant {method} needs the package bitsandbytes, which is not installed",
            hint="pip install bitsandbytes, or --quant none",
        )
    import bitsandbytes

    if device.type not in getattr(bitsandbytes, "supported_torch_devices", {"cuda"}):
        raise DeviceUnavailable(
            f"bitsandbytes {bitsandbytes.__version__} has no {method} for {device.type}",
            hint="--quant none",
        )
    if device.type == "cpu":
        return (f"{method} on a CPU saves memory and costs time: --quant none answers faster",)
    return ()
