"""Checkpoints whose weights are quantised on disk: loaded as they were shipped, where that can be here.

transformers reads many such forms, most of them with a package that it does not bring, some only on CUDA, and skips
in silence a form that it does not know. What is missing is told here, before any weights are read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from transformers import PreTrainedConfig, __version__
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from sinkchat.errors import DeviceUnavailable, ModelError
from sinkchat.models.checkpoint import Weight
from sinkchat.models.methods import EightBit, Quantization
from sinkchat.models.packages import is_installed, quietly_imported

USUAL = ("nf4", "int8", "fp8", "mxfp4", "gptq", "awq", "compressed-tensors", "torchao")
"""forms that checkpoints on the Hub often have; nf4, fp4 and int8 are by bitsandbytes"""

_BITSANDBYTES = ("nf4", "fp4", "int8")

_PACKAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {method: {"bitsandbytes": "bitsandbytes"} for method in _BITSANDBYTES}
    | {
        "gptq": {"gptqmodel": "gptqmodel", "optimum": "optimum"},
        "awq": {"gptqmodel": "gptqmodel"},
        "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
        "torchao": {"torchao": "torchao"},
        "aqlm": {"aqlm": "aqlm"},
        "auto-round": {"auto_round": "auto-round"},
        "eetq": {"kernels": "kernels"},
        "fbgemm_fp8": {"fbgemm_gpu": "fbgemm-gpu"},
        "fp_quant": {"fp_quant": "fp_quant"},
        "higgs": {"flute": "flute-kernel", "fast_hadamard_transform": "fast_hadamard_transform"},
        "hqq": {"hqq": "hqq"},
        "quanto": {"optimum.quanto": "optimum-quanto"},
        "quark": {"quark": "amd-quark"},
        "sinq": {"sinq": "sinq"},
        "spqr": {"spqr_quant": "spqr_quant[gpu]"},
        "vptq": {"vptq": "vptq"},
    }
)
"""for each method, the modules that transformers imports for it, and what pip calls them"""

_ONLY_ON_CUDA = frozenset({"eetq", "fbgemm_fp8", "fp_quant", "higgs", "hqq", "nvfp4", "spqr", "vptq"})

_KEPT_WITH_KERNELS = frozenset({"fp8", "mxfp8", "mxfp4"})
"""on CUDA; what is there multiplied by kernels of the package of that name is opened elsewhere, by transformers"""

_PLAIN = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Shipped(Quantization):
    """Weights that are quantised on disk already, loaded as they are."""

    name: str

    def check(self, device: torch.device) -> tuple[str, ...]:
        _require(self.name, device)
        return (f"the checkpoint is quantised already ({self.name}) and is loaded as shipped",)

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return EightBit().dtype(chosen) if self.name == "int8" else chosen

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        """Codes and scales as they are stored, plain weights in `dtype`."""
        return sum(_held_bytes(weight, dtype) for weight in weights)


@dataclass(frozen=True, slots=True)
class Opened(Quantization):
    """Weights that are quantised on disk and become plain numbers while they are loaded.

    compressed-tensors would open them at the first forward, and fill memory then.
    """

    name: str

    def check(self, device: torch.device) -> tuple[str, ...]:
        _require(self.name, device)
        return (
            f"the checkpoint is quantised already ({self.name}), and is opened to plain numbers on {device.type}",
        )

    def prepare(self, config: PreTrainedConfig) -> None:
        """To the settings of the checkpoint itself: an argument beside them would be warned of."""
        config.quantization_config |= {"dequantize": True}
        if self.name == "compressed-tensors":  # transformers 5.17 knows it by this name
            config.quantization_config |= {"run_compressed": False}

    def nbytes(self, weights: Iterable[Weight], dtype: torch.dtype) -> int:
        """Each weight in `dtype`, without its scales."""
        return sum(map(_opened_parameters, weights)) * dtype.itemsize


def shipped_method(name: str, device: torch.device) -> Quantization:
    """How weights that are quantised by `name` on disk are held on `device`."""
    kept = device.type == "cuda" and is_installed("kernels")
    if name == "compressed-tensors" or (name in _KEPT_WITH_KERNELS and not kept):
        return Opened(name)
    return Shipped(name)


def _require(name: str, device: torch.device) -> None:
    """Raises where weights that are quantised by `name` cannot be read on `device`; else imports what reads them."""
    _refuse_unknown(name)
    if name in _ONLY_ON_CUDA and device.type != "cuda":
        raise DeviceUnavailable(
            f"the checkpoint is quantised already ({name}), which works on CUDA alone, not on {device.type}",
            hint="--device cuda, or the same model in another form",
        )
    packages = _PACKAGES.get(name, {})
    missing = [package for module, package in packages.items() if not is_installed(module)]
    if missing:
        raise ModelError(
            f"the checkpoint is quantised already ({name}), and that needs "
            f"{' and '.join(missing)}, not installed here",
            hint=f"pip install {' '.join(missing)}",
        )
    for module in packages:
        quietly_imported(module)


def _refuse_unknown(name: str) -> None:
    known = {method.removesuffix("_4bit").removesuffix("_8bit") for method in AUTO_QUANTIZATION_CONFIG_MAPPING}
    if name not in (*known, *_BITSANDBYTES):
        raise ModelError(
            f"the checkpoint is quantised already ({name}), which transformers {__version__} does not know",
            hint="pip install --upgrade transformers, or the same model in another form",
        )


def _held_bytes(weight: Weight, dtype: torch.dtype) -> int:
    if ".quant_state.bitsandbytes" in weight.name or weight.name.endswith(".weight_format"):
        return 0  # read and not kept
    if weight.name.endswith(".nested_absmax"):
        return weight.stored_bytes + 4  # with the mean of the scales
    if weight.dtype in _PLAIN and weight.name.endswith((".weight", ".bias")):
        return weight.parameters * dtype.itemsize
    return weight.stored_bytes


def _opened_parameters(weight: Weight) -> int:
    """How many plain numbers come of a stored tensor: of scales none, of packed 4 bits two a byte."""
    if weight.name.endswith(("_scale_inv", "_scale", "_scales", "_zero_point", "_shape")):
        return 0
    packed = weight.name.endswith(("_packed", "_blocks"))
    return 2 * weight.stored_bytes if packed else weight.parameters
