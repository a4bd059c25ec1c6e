"""What a model is and what it would cost here, without its weights.

The model is built on torch's `meta` device, where tensors have shapes and no numbers, and is shown one token
there: so the bytes of its cache are those of its own code, not of a formula about its configuration.
"""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from sinkchat.cache.probe import LayerLayout, layer_shapes
from sinkchat.errors import CannotStream
from sinkchat.models.checkpoint import Weight, read_config, read_weights, shipped_quantization
from sinkchat.models.conversion import kept_conversion
from sinkchat.models.families import limits_of
from sinkchat.models.gguf_header import read_gguf_header, refuse_unknown_blocks
from sinkchat.models.int4.stored import unpacked_config
from sinkchat.models.loading import LoadOptions, load_tokenizer
from sinkchat.models.methods import Quantization
from sinkchat.models.placement import choose_device, choose_dtype, dtype_name, free_memory
from sinkchat.models.progress import Progress, quiet_libraries, silent
from sinkchat.models.quantization import METHODS
from sinkchat.models.shipped import Shipped
from sinkchat.models.sources import Fetching, Located, find_source

SMALLEST_CACHE = 256
LARGEST_CACHE = 32_768
"""where a model does not say what it was trained on"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one choice, and whether the device has room: None where either is not known."""

    choice: str
    nbytes: int | None
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Description:
    """One model on one device, as plain values."""

    name: str
    path: Path
    family: str
    parameters: int
    trained: int | None
    window: int | None
    largest_cache: int | None
    layers: int
    heads: int | None
    kv_heads: tuple[int, ...]
    """each number that some layer has; empty where the model cannot be asked without its weights"""
    head_dim: tuple[int, ...]
    stored: str
    """how the weights are quantised on disk, or "none\""""
    dtype: str
    device: str
    free: int | None
    kv_bytes_per_token: int | None
    weights: tuple[Cost, ...]
    """for each word of --quant"""
    caches: tuple[Cost, ...]
    """for sizes from 256 up, beside weights as the first of `weights` holds them"""


def describe(
    name: str, options: LoadOptions, *, progress: Progress = silent
) -> tuple[Description, PreTrainedTokenizerBase]:
    """The model that `name` means, and its tokenizer. Raises what `load_model` raises before weights."""
    device = choose_device(options.device)
    choose_dtype(options.dtype, device, stored=None)
    fetching = Fetching(options.revision, options.offline, weights=False)
    located = find_source(name).locate(fetching, progress=progress)
    progress(f"reading {located.name}")
    folder, config, tokenizer = _read(located, options)
    dtype = choose_dtype(options.dtype, device, stored=config.dtype)
    model = _without_numbers(config, dtype, options)
    layouts = _layouts(model, located.name)
    limits, free = limits_of(config), free_memory(device)
    weights = _weights(model, folder, located.name, config, dtype, free)
    text = config.get_text_config(decoder=True)
    kv = sum(one.heads * (one.key_width + one.value_width) * one.dtype.itemsize for one in layouts) or None
    description = Description(
        name=located.name,
        path=located.path,
        family=config.model_type,
        parameters=sum(weight.numel() for weight in model.parameters()),
        trained=limits.trained,
        window=limits.window,
        largest_cache=limits.capacity,
        layers=int(text.num_hidden_layers),
        heads=getattr(text, "num_attention_heads", None),
        kv_heads=tuple(sorted({one.heads for one in layouts})),
        head_dim=tuple(sorted({one.key_width for one in layouts})),
        stored=_stored(located, config),
        dtype=dtype_name(dtype),
        device=str(device),
        free=free,
        kv_bytes_per_token=kv,
        weights=weights,
        caches=tuple(_caches(kv, limits.capacity, weights[0].nbytes, free)),
    )
    return description, tokenizer


def _read(located: Located, options: LoadOptions) -> tuple[Path | None, PreTrainedConfig, PreTrainedTokenizerBase]:
    """The folder of the weights where they lie in one, the configuration and the tokenizer."""
    folder = located.path if located.path.is_dir() else kept_conversion(located.path, identity=located.identity)
    if folder is not None:
        config = read_config(folder, name=located.name, trust_remote_code=options.trust_remote_code)
        if located.path.is_file():
            config = unpacked_config(config)
        return folder, config, load_tokenizer(folder, located.name, replace(options, needs_template=False))
    read_gguf_header(located.path)  # refuses a file that is none, before the slow readers
    refuse_unknown_blocks(located.path)
    with quiet_libraries(), redirect_stderr(io.StringIO()):
        config = AutoConfig.from_pretrained(located.path.parent, gguf_file=located.path.name)
        tokenizer = AutoTokenizer.from_pretrained(located.path.parent, gguf_file=located.path.name)
    return None, config, tokenizer


def _stored(located: Located, config: PreTrainedConfig) -> str:
    if located.path.is_file():
        return read_gguf_header(located.path).quantization
    return shipped_quantization(config) or "none"


def _without_numbers(config: PreTrainedConfig, dtype: torch.dtype, options: LoadOptions) -> nn.Module:
    with quiet_libraries(), torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=options.trust_remote_code
        )
    return model.eval()


def _layouts(model: nn.Module, name: str) -> tuple[LayerLayout, ...]:
    """What each layer caches; nothing where its code wants numbers, as GPT-2's does, or keeps something else."""
    try:
        return layer_shapes(model, name=name)
    except (CannotStream, RuntimeError, NotImplementedError):
        return ()


def _weights(
    model: nn.Module, folder: Path | None, name: str, config: PreTrainedConfig, dtype: torch.dtype, free: int | None
) -> tuple[Cost, ...]:
    shipped = shipped_quantization(config)
    if shipped is not None:
        stored = read_weights(folder, name=name) if folder is not None else ()
        return (_cost(shipped, Shipped(shipped).nbytes(stored, dtype) or None, free),)
    held = tuple(
        Weight(name, tuple(one.shape), one.numel() * dtype.itemsize) for name, one in model.named_parameters()
    )
    return tuple(_cost(word, _nbytes(method, held, dtype), free) for word, method in METHODS.items())


def _nbytes(method: Quantization, held: tuple[Weight, ...], dtype: torch.dtype) -> int:
    return method.nbytes(held, method.dtype(dtype))


def _cost(choice: str, nbytes: int | None, free: int | None, *, beside: int | None = 0) -> Cost:
    known = nbytes is not None and free is not None and beside is not None
    return Cost(choice, nbytes, nbytes + beside <= free if known else None)  # type: ignore[operator]


def _caches(kv: int | None, largest: int | None, beside: int | None, free: int | None) -> Iterator[Cost]:
    """Doubling from the smallest to the largest that makes sense."""
    last = largest or LARGEST_CACHE
    sizes = {last} if last < SMALLEST_CACHE else {last, *_doubling(last)}
    for size in sorted(sizes):
        yield _cost(str(size), None if kv is None else kv * size, free, beside=beside)


def _doubling(last: int) -> Iterator[int]:
    size = SMALLEST_CACHE
    while size <= last:
        yield size
        size *= 2
