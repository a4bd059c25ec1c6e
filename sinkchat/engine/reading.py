"""A number that a device has computed, read without holding up what it is asked to do next."""

from collections.abc import Callable

import torch
from torch import Tensor


def reading(number: Tensor) -> Callable[[], int]:
    """Begins to read the integer `number`, (); what comes back waits until it is there, and for nothing later."""
    if number.device.type != "cuda":
        return number.item  # type: ignore[return-value]
    landing = torch.empty((), dtype=number.dtype, pin_memory=True)
    landing.copy_(number, non_blocking=True)
    landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    landed.record(torch.cuda.current_stream(number.device))

    def read() -> int:
        landed.synchronize()
        return int(landing)

    return read
