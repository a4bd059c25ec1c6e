"""What can be said of this machine before a model is chosen, one finding at a time.

Each probe looks at one thing and imports what it needs itself, so that a torch that cannot even be imported is a
finding like any other, and the first lines come before the slow ones. A probe that raises has found something too.
"""

import concurrent.futures
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

Status: TypeAlias = Literal["ok", "warn", "FAIL"]

OLDEST_PYTHON = (3, 10)
ANSWER_SECONDS = 3.0
"""how long the Hub has to answer"""
LITTLE_SPACE = 2 * 10**9
"""bytes: less would not hold a small model"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. `fix` is what to do about it, where something is to be done."""

    subject: str
    fact: str
    status: Status = "ok"
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """Looks at one thing. `fix` is what to do where looking already fails."""

    subject: str
    look: Callable[[], Finding | Iterable[Finding]]
    fix: str = ""


def examined(probes: Iterable[Probe]) -> Iterator[Finding]:
    """What each probe finds, as soon as it is known. One that raises has found a failure."""
    for probe in probes:
        try:
            found = probe.look()
            yield from [found] if isinstance(found, Finding) else list(found)
        except Exception as error:
            lines = str(error).strip().splitlines()
            fact = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            yield Finding(probe.subject, fact, "FAIL", probe.fix)


def machine_probes(*, offline: bool) -> tuple[Probe, ...]:
    """What sinkchat runs on, the quick things first. With `offline` the Hub is not asked."""
    return (
        Probe("python", _python),
        Probe("sinkchat", lambda: Finding("sinkchat", importlib.metadata.version("sinkchat")), "pip install -e ."),
        Probe("hub token", _hub_token),
        Probe("hub", lambda: _hub(offline=offline)),
        Probe("hub cache", _hub_cache),
        Probe("cache", _own_cache),
        Probe("torch", _torch, "pip install torch, see https://pytorch.org/get-started"),
        Probe("compiler", _compiler),
        Probe("device", _devices, "pip install torch accelerate"),
        Probe("transformers", lambda: _package("transformers"), "pip install --upgrade transformers"),
        Probe("accelerate", lambda: _package("accelerate"), "pip install --upgrade accelerate"),
        Probe("gguf", lambda: _package("gguf"), "pip install --upgrade gguf"),
        Probe("bitsandbytes", _bitsandbytes, "pip install --upgrade bitsandbytes, or --quant none"),
        Probe("weights", _weights, "--quant none"),
    )


def _python() -> Finding:
    fact = (
        f"{platform.python_version()} ({platform.python_implementation()}), {platform.system()} {platform.machine()}"
    )
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", fact, "FAIL", "install Python 3.10 or newer")
    return Finding("python", fact)


def _package(name: str) -> Finding:
    importlib.import_module(name)
    return Finding(name, importlib.metadata.version(name))


def _torch() -> Finding:
    import torch

    from sinkchat.models.placement import cpu_has_bfloat16

    threads = torch.get_num_threads()
    bfloat16 = "native" if cpu_has_bfloat16() else "not native, so auto computes in float32"
    fact = f"{torch.__version__}, {threads} thread{'' if threads == 1 else 's'}, bfloat16 on the CPU {bfloat16}"
    return Finding("torch", fact)


def _compiler() -> Finding:
    from sinkchat.models.placement import cxx_compiler

    if (path := cxx_compiler()) is not None:
        return Finding("compiler", f"{path}: on a CPU the decode step is compiled while you type")
    return Finding("compiler", "no g++ or clang++: answers come slower on a CPU", "warn", "install g++ or clang++")


def _devices() -> Iterator[Finding]:
    import torch
    from accelerate.utils import is_mps_available

    from sinkchat.models.placement import free_memory
    from sinkchat.models.progress import memory_size

    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        about = f"{torch.cuda.get_device_name(number)}, {memory_size(free)} free of {memory_size(total)}"
        yield Finding(f"cuda:{number}", about)
    if is_mps_available():
        yield Finding("mps", f"{memory_size(free_memory(torch.device('mps')) or 0)} free")
    elif not torch.cuda.is_available():
        yield _no_accelerator(torch)
    yield Finding("cpu", f"{memory_size(free_memory(torch.device('cpu')) or 0)} free")


def _no_accelerator(torch: Any) -> Finding:
    if not Path("/proc/driver/nvidia/version").exists():
        return Finding("device", "no CUDA or MPS device: models run on the CPU")
    built = torch.version.cuda is not None
    fact = "an NVIDIA driver is here, and this torch " + ("sees no device" if built else "is built without CUDA")
    fix = "see nvidia-smi and CUDA_VISIBLE_DEVICES" if built else "install a torch built for CUDA"
    return Finding("device", fact, "warn", fix)


def _bitsandbytes() -> Finding:
    try:
        importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError:
        return Finding("bitsandbytes", "not installed: weights stay whole", "warn", "pip install bitsandbytes")
    from sinkchat.models.packages import quietly_imported

    bitsandbytes, cextension = map(quietly_imported, ("bitsandbytes", "bitsandbytes.cextension"))
    devices = sorted(getattr(bitsandbytes, "supported_torch_devices", {"cuda"}) & {"cpu", "cuda", "mps"})
    native = "CUDA" if getattr(cextension.lib, "compiled_with_cuda", False) else "CPU"
    fact = f"{bitsandbytes.__version__}, kernels for {native}, 4 and 8 bits on {', '.join(devices)}"
    if native == "CPU":
        import torch

        if torch.cuda.is_available():
            fix = "pip install --upgrade bitsandbytes, built for this CUDA, or --quant none"
            return Finding("bitsandbytes", fact, "warn", fix)
    return Finding("bitsandbytes", fact)


def _weights() -> Iterator[Finding]:
    """In which ways weights can be held here, and which checkpoints that come quantised can be read."""
    from sinkchat.models.placement import choose_device
    from sinkchat.models.quantization import methods_on
    from sinkchat.models.shipped import USUAL, shipped_method

    device = choose_device("auto")
    held = [word for word, method in methods_on(device).items() if _lacks(method, device) is None]
    yield Finding("weights", f"on {device}: --quant {', '.join(held)}")
    lacking = {form: _lacks(shipped_method(form, device), device) for form in USUAL}
    facts = [f"checkpoints by {', '.join(form for form, lack in lacking.items() if lack is None)}"]
    facts += [f"by {form} after {lack}" for form, lack in lacking.items() if lack is not None]
    yield Finding("weights", "; ".join(facts))


def _lacks(method: Any, device: Any) -> str | None:
    """What to do before `method` can be had on `device`; None where nothing is to be done."""
    from sinkchat.errors import SinkchatError

    try:
        method.check(device)
    except SinkchatError as error:
        return error.hint
    return None


def _hub_token() -> Finding:
    from huggingface_hub import get_token

    if not get_token():
        return Finding("hub token", "none: public models only; `hf auth login` keeps one")
    return Finding("hub token", "set by HF_TOKEN" if os.environ.get("HF_TOKEN") else "present")


def _hub(*, offline: bool) -> Finding:
    from huggingface_hub import constants, is_offline_mode

    address = urlsplit(constants.ENDPOINT)
    name = f"{address.scheme}://{address.hostname}" + (f":{address.port}" if address.port else "")
    if offline or is_offline_mode():
        return Finding("hub", f"{name} was not asked: offline")
    fix = "check the connection and HF_ENDPOINT; models on this machine run with --offline"
    try:
        status = _within(ANSWER_SECONDS, lambda: _status_of(constants.ENDPOINT))
    except concurrent.futures.TimeoutError:  # another class than the builtin before Python 3.11
        return Finding("hub", f"{name} gave no answer within {ANSWER_SECONDS:.0f} s", "warn", fix)
    except Exception as error:  # the client's own; its message may carry the whole address
        return Finding("hub", f"{name} cannot be reached ({type(error).__name__})", "warn", fix)
    if status >= 500:
        return Finding("hub", f"{name} answers with status {status}", "warn", "the same command in some minutes")
    return Finding("hub", f"{name} answers")


def _status_of(address: str) -> int:
    from huggingface_hub.utils import get_session

    return int(get_session().head(address, timeout=ANSWER_SECONDS).status_code)


def _within(seconds: float, ask: Callable[[], int]) -> int:
    """What `ask` gives, or TimeoutError: a name that is looked up in vain obeys no limit of the client's."""
    answer: Future[int] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    return answer.result(seconds)


def _hub_cache() -> Finding:
    from huggingface_hub import constants

    return _folder("hub cache", Path(constants.HF_HUB_CACHE), "set HF_HOME to a folder of yours, on a disk with room")


def _own_cache() -> Finding:
    from sinkchat.models.cachedir import cache_folder

    return _folder("cache", cache_folder(), "set SINKCHAT_CACHE_DIR to a folder of yours, on a disk with room")


def _folder(subject: str, folder: Path, fix: str) -> Finding:
    from sinkchat.models.cachedir import bytes_in, free_bytes
    from sinkchat.models.progress import file_size

    free = free_bytes(folder)
    fact = f"{folder}, {file_size(bytes_in(folder))} kept, {file_size(free)} free"
    if not is_writable(folder):
        return Finding(subject, f"{fact}, and it cannot be written", "FAIL", fix)
    return Finding(subject, fact, *(("warn", fix) if free < LITTLE_SPACE else ()))


def is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or it can be made itself."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
