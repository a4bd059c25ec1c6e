"""How fast each way to hold weights is beside plain bfloat16, where that was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second as multiples of bfloat16's."""

    writes: float
    """one token after the other"""
    reads: float
    """256 at a time"""


MEASURED_ON = "SmolLM2-135M on one core of a Xeon with AVX-512 and AMX"

_SPEEDS: Mapping[tuple[str, str], Speed] = MappingProxyType(
    {
        ("cpu", "bfloat16"): Speed(1.0, 1.0),
        ("cpu", "float32"): Speed(0.9, 0.4),
        ("cpu", "nf4"): Speed(1.2, 0.3),
        ("cpu", "nf4-dq"): Speed(1.2, 0.3),
        ("cpu", "fp4"): Speed(1.0, 0.2),
        ("cpu", "int8"): Speed(0.5, 0.3),
        ("cpu", "int4"): Speed(1.9, 0.7),
    }
)
"""By kind of device and method, plain weights by their dtype.

Seconds of one core (not of the clock), the model's own code, not compiled: five tokens one after the other and 256 at
once beside 300 to 800 in the cache, several times, with SmolLM2 and with a random model of its shapes; the mean of
both. They differ by up to a third, so one digit is kept. bfloat16 wrote 6.9 and 9.6 tokens a second and read 570
and 880. torch 2.13, bitsandbytes 0.50, whose 4-bit kernels want AVX-512 with bfloat16; the first forward opens the
scales of nf4-dq there, which is nf4 from then on.
"""


def speed_of(method: str, dtype: torch.dtype, device: torch.device) -> Speed | None:
    """What was measured for `method` on such a device; None where nothing was."""
    return _SPEEDS.get((device.type, str(dtype).removeprefix("torch.") if method == "none" else method))
