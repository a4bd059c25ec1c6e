"""From a model's name to what is measured: the model loaded, and whatever else can run it here.

The only place where the bench meets torch, transformers and llama.cpp.
"""

import gc
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from sinkchat.cache.probe import layer_shapes
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.errors import ModelError, UsageError
from sinkchat.lab.bench.bench import SETTLING, Field, Machine, Plan, Sample, Stream, bench
from sinkchat.lab.bench.peers import LlamaCppModel, LlamaCppStream
from sinkchat.lab.bench.report import DENSE, Subject
from sinkchat.lab.bench.roofline import CopyBandwidth, weight_bytes, weight_bytes_if
from sinkchat.lab.bench.streams import EngineStream
from sinkchat.models.checkpoint import shipped_quantization
from sinkchat.models.families import limits_of
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.placement import dtype_name
from sinkchat.models.plain import (
    PlainStream,
    RecomputedWindow,
    Unloaded,
    dynamic_cache,
    static_cache,
    without_weights,
)
from sinkchat.models.progress import Progress, silent
from sinkchat.models.quantization import choose_quantization, methods_on, require_known
from sinkchat.models.sources import Fetching, find_source

SIZES = (256, 1024, 4096)
"""measured where no other are asked for"""


def import_llama_cpp() -> Any:
    """The module `llama_cpp`, or None where it is not installed."""
    try:
        return importlib.import_module("llama_cpp")
    except ImportError:
        return None


@dataclass(frozen=True, slots=True)
class Started:
    """A bench about to run; `samples` are measured as they are pulled."""

    subject: Subject
    plan: Plan
    samples: Iterator[Sample]
    notes: tuple[str, ...]


def start_bench(
    name: str,
    load: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    peers: bool = False,
    llama_cpp: Callable[[], Any] = import_llama_cpp,
    progress: Progress = silent,
) -> Started:
    """Loads the model `name`. `load` has fields of `LoadOptions`, `plan` those of `Plan` that were chosen."""
    options = LoadOptions(**{"compile": True, **load}, needs_template=False)
    Plan(**({"cache_sizes": SIZES} | dict(plan)))  # a slip is told before weights are loaded
    loaded = load_model(name, options, progress=progress)
    chosen = Plan(**({"cache_sizes": sizes_for(loaded.model.config)} | dict(plan)))
    found = _LlamaCpp(None, ())
    if peers:
        found = _llama_cpp(name, options, llama_cpp, on_gpu=loaded.device != "cpu", progress=progress)
    fields = _Fields(loaded, chosen, found.model, with_peers=peers)
    machine = Machine(CopyBandwidth(torch.device(loaded.device), perf_counter), resident_bytes)
    samples = bench(chosen, fields.of_size, machine, progress=progress)
    return Started(subject_of(loaded), chosen, samples, (*loaded.notes, *found.notes))


@dataclass(frozen=True, slots=True)
class Expected:
    """What one token would read, and the sizes that the cache may have."""

    subject: Subject
    cache_sizes: tuple[int, ...]


def expected(name: str, load: Mapping[str, Any], *, progress: Progress = silent) -> Expected:
    """What to expect of the model `name` on this machine. No weights are read."""
    options = LoadOptions(**load, needs_template=False)
    require_known(options.quant)
    unloaded = without_weights(name, options, progress=progress)
    shipped = shipped_quantization(unloaded.model.config)
    method, _ = choose_quantization(
        options.quant, unloaded.device, shipped=shipped, blocks=unloaded.blocks, dtype=options.dtype
    )
    return _expected(unloaded, method.name, str(unloaded.device))


def expected_elsewhere(name: str, load: Mapping[str, Any], *, progress: Progress = silent) -> Expected:
    """As `expected`, on a device that need not be here: what nobody chose is what a GPU would take."""
    device, quant = str(load.get("device", "auto")), str(load.get("quant", "auto"))
    require_known(quant)
    chosen = {option: word for option, word in load.items() if option not in ("device", "quant")}
    options = LoadOptions(**({"dtype": "bfloat16"} | chosen), device="cpu", needs_template=False)
    unloaded = without_weights(name, options, progress=progress)
    shipped = shipped_quantization(unloaded.model.config)
    usual = shipped or ("nf4" if device.startswith("cuda") else "none")
    return _expected(unloaded, usual if quant == "auto" else quant, "any device" if device == "auto" else device)


def _expected(unloaded: Unloaded, quant: str, device: str) -> Expected:
    method = methods_on(torch.device("cuda" if device.startswith("cuda") else "cpu")).get(quant)
    if method is None:
        raise UsageError(
            f"{unloaded.name} is quantised on disk ({quant}): what it takes is known only when it is loaded",
            hint="no --dry-run",
        )
    subject = Subject(
        model=unloaded.name,
        quant=quant,
        dtype=dtype_name(method.dtype(unloaded.dtype)),
        device=device,
        threads=torch.get_num_threads(),
        weight_bytes=weight_bytes_if(method, unloaded.model, unloaded.dtype),
        kv_bytes_per_token=_kv_bytes(unloaded.model, unloaded.name),
    )
    return Expected(subject, sizes_for(unloaded.model.config))


def measured_bandwidth(device: str, rounds: int) -> Iterator[float]:
    """Bytes a second that copies on `device` move, once a round."""
    copy = CopyBandwidth(torch.device(device), perf_counter)
    yield from (copy() for _ in range(rounds))


def subject_of(loaded: LoadedModel) -> Subject:
    return Subject(
        model=loaded.name,
        quant=loaded.quant,
        dtype=loaded.dtype,
        device=loaded.device,
        threads=torch.get_num_threads(),
        weight_bytes=weight_bytes(loaded.model),
        kv_bytes_per_token=_kv_bytes(loaded.model, loaded.name),
    )


def sizes_for(config: Any) -> tuple[int, ...]:
    """The usual cache sizes, as far as the model takes them; else the largest it takes."""
    largest = limits_of(config).capacity
    return tuple(size for size in SIZES if largest is None or size <= largest) or (largest or SIZES[0],)


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM; None where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _kv_bytes(model: Any, name: str) -> int:
    return sum(
        layer.heads * (layer.key_width + layer.value_width) * layer.dtype.itemsize
        for layer in layer_shapes(model, name=name)
    )


@dataclass(frozen=True, slots=True)
class _LlamaCpp:
    model: LlamaCppModel | None
    notes: tuple[str, ...]


def _llama_cpp(
    name: str, options: LoadOptions, find: Callable[[], Any], *, on_gpu: bool, progress: Progress
) -> _LlamaCpp:
    """The GGUF file that the model came from, in llama.cpp; else why not."""
    module = find()
    if module is None:
        return _LlamaCpp(None, ("no llama.cpp beside it: pip install llama-cpp-python",))
    path = find_source(name).locate(Fetching(options.revision, options.offline), progress=progress).path
    if not path.is_file():
        return _LlamaCpp(None, (f"no llama.cpp beside it: {path.name} is no GGUF file",))
    if on_gpu and not module.llama_supports_gpu_offload():
        return _LlamaCpp(None, ("no llama.cpp beside it: this llama-cpp-python is built without a GPU",))
    try:
        return _LlamaCpp(LlamaCppModel(module, path, on_gpu=on_gpu), ())
    except ModelError as error:
        return _LlamaCpp(None, (f"no llama.cpp beside it: {error.message}",))


@dataclass(frozen=True, slots=True)
class _Fields:
    loaded: LoadedModel
    plan: Plan
    llama_cpp: LlamaCppModel | None
    with_peers: bool

    @contextmanager
    def of_size(self, size: int) -> Iterator[Field]:
        """Everything at one cache size, and its memory given back afterwards."""
        model = self.loaded.model
        length = size + self.plan.tokens + SETTLING
        others: list[Stream] = [PlainStream(DENSE, model, dynamic_cache(model))]
        if self.with_peers:
            others.append(PlainStream("static cache", model, static_cache(model, length)))
        llama = None
        if self.llama_cpp is not None:
            llama = LlamaCppStream(self.llama_cpp, length=length, threads=torch.get_num_threads())
            others.append(llama)
        engine = build_engine(self.loaded, MemoryOptions(cache_size=size, evict="token"))
        try:
            yield Field(EngineStream(engine), tuple(others), RecomputedWindow(model, size))
        finally:
            if llama is not None:
                llama.close()
            others.clear()
            gc.collect()
