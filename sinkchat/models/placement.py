"""Where a model runs and in which numbers: device, dtype, and what is free there.

`auto` means the fastest device there is, and the smallest dtype that the device computes in natively.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from shutil import which
from types import MappingProxyType

import torch
import torch.distributed as dist
from accelerate.utils import get_max_memory, is_mps_available

from sinkchat.errors import DeviceUnavailable, UsageError
from sinkchat.parallel.ranks import Ranks

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)

_LONGEST_STEP = timedelta(minutes=10)
"""for which one process waits for another while all compute; one that has died is noticed otherwise"""


def choose_device(asked: str) -> torch.device:
    """The device for `auto`, `cuda`, `cuda:N`, `mps` or `cpu`.

    Raises UsageError for another word and DeviceUnavailable for a device that is not there.
    """
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if is_mps_available() else "cpu")
    if asked == "cpu":
        return torch.device("cpu")
    if asked == "mps":
        if not is_mps_available():
            raise DeviceUnavailable("this machine has no MPS device (Apple silicon)", hint="--device cpu")
        return torch.device("mps")
    if re.fullmatch(r"cuda(:\d+)?", asked):
        return _cuda(asked)
    raise UsageError(f"--device {asked} is not a device", hint="--device auto, cuda, cuda:N, mps or cpu")


def _cuda(asked: str) -> torch.device:
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceUnavailable(
            f"--device {asked} needs CUDA, and this torch ({torch.__version__}) is built without it",
            hint="--device cpu, or install a torch built for CUDA",
        )
    present = torch.cuda.device_count()
    if not present:
        raise DeviceUnavailable(
            f"--device {asked} needs a CUDA device, and none is visible", hint="--device cpu, or see nvidia-smi"
        )
    number = int(asked.partition(":")[2] or torch.cuda.current_device())
    if number >= present:
        raise DeviceUnavailable(
            f"--device {asked} is not there: CUDA devices visible are {present}, counted from 0",
            hint=f"--device cuda:{present - 1}",
        )
    return torch.device("cuda", number)


def device_of_rank(asked: str, ranks: Ranks) -> torch.device:
    """The device for one of several processes: the CUDA device of its number, or the CPU where there is none."""
    if asked not in ("auto", "cuda") and (asked != "cpu" or torch.cuda.is_available()):
        raise UsageError(
            f"--device {asked} is one place, and these are {ranks.count} processes",
            hint='--device auto; CUDA_VISIBLE_DEVICES says which devices, "" the CPU',
        )
    device = choose_device(asked)
    if device.type == "mps":
        raise DeviceUnavailable("MPS devices cannot share a model", hint="--processes 1")
    if device.type == "cuda":
        if ranks.count > torch.cuda.device_count():
            raise DeviceUnavailable(
                f"{ranks.count} processes need as many CUDA devices, and {torch.cuda.device_count()} are visible",
                hint=f"--processes {torch.cuda.device_count()}",
            )
        return torch.device("cuda", ranks.rank)
    return device


def join(ranks: Ranks, device: torch.device) -> None:
    """Has this process compute together with the others from now on, if it does not yet. It waits for all."""
    if dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=ranks.rank,
        world_size=ranks.count,
        timeout=_LONGEST_STEP,
        device_id=device if device.type == "cuda" else None,
    )


def choose_dtype(asked: str, device: torch.device, *, stored: torch.dtype | None) -> torch.dtype:
    """The dtype to compute in; `stored` is the checkpoint's own, None where it has none."""
    if asked != "auto":
        if asked not in DTYPES:
            raise UsageError(f"--dtype {asked} is not known", hint=f"--dtype auto, {', '.join(DTYPES)}")
        return DTYPES[asked]
    if device.type == "cpu":
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if stored == torch.float16:
        return torch.float16
    return torch.bfloat16 if _accelerator_has_bfloat16(device) else torch.float16


def dtype_name(dtype: torch.dtype) -> str:
    """The word of `--dtype` for it, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 by instructions of its own.

    Without them it is slower than float32: SmolLM2-135M on a Xeon without AVX512-BF16 decodes 3 times
    slower. torch says which instructions there are since 2.10; before that the answer is no.
    """
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _accelerator_has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.mps.is_macos_or_newer(14, 0))


def free_memory(device: torch.device) -> int | None:
    """Bytes free for weights on `device`, as accelerate sees them; None where it cannot tell."""
    memory = get_max_memory()
    free = memory.get(device.index if device.type == "cuda" else device.type)
    return int(free) if free is not None else None


def cxx_compiler() -> str | None:
    """The program that compiles C++ here: the one that CXX names, else g++ or clang++."""
    return next((path for name in (os.environ.get("CXX"), "g++", "clang++") if name and (path := which(name))), None)
