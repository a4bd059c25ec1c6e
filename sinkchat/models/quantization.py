"""In how many bits the weights are held: what `--quant` chooses among the methods."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from sinkchat.errors import UsageError
from sinkchat.models.int4.packing import is_fast_here
from sinkchat.models.methods import DoubleFourBit, EightBit, FourBit, Int4, Int4OnCuda, Quantization, Unquantized
from sinkchat.models.packages import is_installed
from sinkchat.models.placement import cpu_has_bfloat16
from sinkchat.models.shipped import shipped_method

__all__ = ["METHODS", "Quantization", "choose_quantization", "methods_on", "require_known"]

METHODS: Mapping[str, Quantization] = MappingProxyType(
    {
        "none": Unquantized(),
        "nf4": FourBit("nf4"),
        "nf4-dq": DoubleFourBit(),
        "fp4": FourBit("fp4"),
        "int8": EightBit(),
        "int4": Int4(),
    }
)
"""every word of `--quant` but auto, with its method on a CPU"""

_ON_CUDA: Mapping[str, Quantization] = MappingProxyType({**METHODS, "int4": Int4OnCuda()})


def methods_on(device: torch.device) -> Mapping[str, Quantization]:
    """The method that each word of `--quant` means on `device`."""
    return _ON_CUDA if device.type == "cuda" else METHODS


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
        method = shipped_method(shipped, device)
        return method, method.check(device)
    methods = methods_on(device)
    if asked != "auto":
        method = methods[asked]
        return method, method.check(device)
    if device.type != "cuda":
        kept = device.type == "cpu" and blocks in ("Q4_0", "Q4_1") and dtype in ("auto", "bfloat16")
        fast = kept and cpu_has_bfloat16() and is_fast_here()
        return methods["int4" if fast else "none"], ()
    if not is_installed("bitsandbytes"):
        return methods["none"], ("weights are not quantised: bitsandbytes is not installed",)
    method = methods["nf4"]
    chosen = "weights in 4 bits (nf4), as always on CUDA; --quant none holds them whole"
    return method, (chosen, *method.check(device))
