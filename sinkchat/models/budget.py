"""Whether the weights fit, told before they are loaded.

The bytes are counted from the headers of the files and the method they will be held by; what is free
is measured once, before anything is loaded, since after a failed attempt it says little.
"""

from dataclasses import dataclass

import torch

from sinkchat.errors import OutOfMemory
from sinkchat.models.checkpoint import Weight
from sinkchat.models.methods import Quantization
from sinkchat.models.placement import dtype_name
from sinkchat.models.progress import memory_size
from sinkchat.models.quantization import METHODS


@dataclass(frozen=True, slots=True)
class Budget:
    """How the weights will be held, and what was free for them."""

    method: Quantization
    weights: tuple[Weight, ...]
    """empty where the sizes are not known"""
    dtype: torch.dtype
    device: torch.device
    free: int | None
    """bytes; None where the device does not say"""

    @property
    def needed(self) -> int:
        """About how many bytes the weights will take; 0 where that is not known."""
        return self.method.nbytes(self.weights, self.dtype)

    def check(self) -> None:
        """Raises OutOfMemory if the weights cannot fit."""
        if self.free is not None and self.needed > self.free:
            raise self.out_of_memory()

    def out_of_memory(self) -> OutOfMemory:
        """The error, with the numbers that are known and what would fit."""
        where = "out of memory" if self.device.type == "cpu" else "out of GPU memory"
        numbers = []
        if self.weights:
            held_in = dtype_name(self.dtype) if self.method.name == "none" else self.method.name
            numbers.append(f"{memory_size(self.needed)} needed in {held_in}")
        if self.free is not None:
            numbers.append(f"{memory_size(self.free)} free on {self.device}")
        return OutOfMemory(f"{where} loading weights: {', '.join(numbers)}", hint=self._what_would_fit())

    def _what_would_fit(self) -> str:
        quantized = METHODS["nf4"].nbytes(self.weights, self.dtype)
        ways = []
        if self.method.name == "none" and self.weights and (self.free is None or quantized < self.free):
            ways.append(f"--quant nf4 (about {memory_size(quantized)})")
        ways.append("a smaller model" if self.device.type == "cpu" else "--device cpu")
        return ", or ".join(ways)
