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
from sinkchat.errors import CannotStream, SinkchatError
from sinkchat.models.budget import Budget
from sinkchat.models.checkpoint import Weight, read_config, read_weights, shipped_quantization
from sinkchat.models.conversion import kept_conversion
from sinkchat.models.families import limits_of
from sinkchat.models.gguf_header import kind_of_blocks, read_gguf_header, refuse_unknown_blocks
from sinkchat.models.int4.stored import unpacked_config
from sinkchat.models.loading import LoadOptions, load_tokenizer
from sinkchat.models.methods import Quantization
from sinkchat.models.placement import choose_device, choose_dtype, dtype_name, free_memory
from sinkchat.models.progress import Progress, quiet_libraries, silent
from sinkchat.models.quantization import choose_quantization, methods_on
from sinkchat.models.shipped import shipped_method
from sinkchat.models.sources import Fetching, Located, find_source
from sinkchat.models.speeds import MEASURED_ON, speed_of
from sinkchat.models.spread import places, process_counts

SMALLEST_CACHE = 256
LARGEST_CACHE = 32_768
"""where a model does not say what it was trained on"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one cache size, and whether the device has room: None where either is not known."""

    choice: str
    nbytes: int | None
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Way:
    """One word of `--quant`: the bytes of weights and of keys and values beside them, and whether both have room."""

    choice: str
    nbytes: int | None
    kv_nbytes: int | None
    fits: bool | None
    writes: float | None
    """tokens a second as multiples of bfloat16's on such a device; None where that was not measured"""
    reads: float | None
    obstacle: str
    """why it cannot be had here, or empty"""
    is_auto: bool
    """whether it is what `--quant auto` means here"""
    places: tuple[str, ...]
    """where the weights would lie, each place filled before the next; empty: nowhere, or not known"""


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
    processes: tuple[int, ...] | None
    """how many can share it; None: any number"""
    stored: str
    """how the weights are quantised on disk, or "none\""""
    dtype: str
    device: str
    free: int | None
    kv_bytes_per_token: int | None
    cache_size: int
    """tokens that `weights` counts with"""
    weights: tuple[Way, ...]
    """for each word of --quant"""
    measured_on: str
    """what the speeds among them were measured with, or empty"""
    caches: tuple[Cost, ...]
    """for sizes from 256 up, beside weights as the first of `weights` holds them"""


def describe(
    name: str, options: LoadOptions, *, cache_size: int, progress: Progress = silent
) -> tuple[Description, PreTrainedTokenizerBase]:
    """The model that `name` means, and its tokenizer. Raises what `load_model` raises before weights.

    Weights are counted with a cache of `cache_size` tokens, or of what the model was trained on where that is less.
    """
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
    text = config.get_text_config(decoder=True)
    kv = sum(one.heads * (one.key_width + one.value_width) * one.dtype.itemsize for one in layouts) or None
    cache_size = min(cache_size, limits.capacity or cache_size)
    held = _Held(
        dtype,
        device,
        free,
        None if kv is None else kv * cache_size,
        _auto(located, config, device, options),
        options.device,
    )
    weights = held.shipped(config, folder, located.name) or held.ways(model)
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
        processes=(1,) if shipped_quantization(config) else process_counts(config),
        stored=_stored(located, config),
        dtype=dtype_name(dtype),
        device=str(device),
        free=free,
        kv_bytes_per_token=kv,
        cache_size=cache_size,
        weights=weights,
        measured_on=MEASURED_ON if any(way.writes is not None for way in weights) else "",
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


def _auto(located: Located, config: PreTrainedConfig, device: torch.device, options: LoadOptions) -> str:
    """The word that `--quant auto` stands for here; empty where the weights can not be had at all."""
    is_file = located.path.is_file()
    shipped = None if is_file else shipped_quantization(config)
    blocks = kind_of_blocks(located.path) if is_file else "none"
    try:
        return choose_quantization("auto", device, shipped=shipped, blocks=blocks, dtype=options.dtype)[0].name
    except SinkchatError:
        return ""


@dataclass(frozen=True, slots=True)
class _Held:
    """What each way is measured by."""

    dtype: torch.dtype
    device: torch.device
    free: int | None
    kv: int | None
    """bytes in `dtype`"""
    auto: str
    asked: str
    """the word of `--device`"""

    def ways(self, model: nn.Module) -> tuple[Way, ...]:
        weights = tuple(Weight(name, tuple(one.shape), 0) for name, one in model.named_parameters())
        return tuple(self._way(word, method, weights) for word, method in methods_on(self.device).items())

    def shipped(self, config: PreTrainedConfig, folder: Path | None, name: str) -> tuple[Way, ...]:
        """The one way of weights that are quantised on disk; none where they are whole."""
        form = shipped_quantization(config)
        if form is None:
            return ()
        stored = read_weights(folder, name=name) if folder is not None else ()
        return (self._way(form, shipped_method(form, self.device), stored),)

    def _way(self, word: str, method: Quantization, weights: tuple[Weight, ...]) -> Way:
        dtype = method.dtype(self.dtype)
        nbytes = method.nbytes(weights, dtype) or None
        kv = None if self.kv is None else self.kv * dtype.itemsize // self.dtype.itemsize
        known = nbytes is not None and kv is not None and self.free is not None
        speed = speed_of(method.name, dtype, self.device)
        return Way(
            choice=word,
            nbytes=nbytes,
            kv_nbytes=kv,
            fits=nbytes + kv <= self.free if known else None,  # type: ignore[operator]
            writes=None if speed is None else speed.writes,
            reads=None if speed is None else speed.reads,
            obstacle=self._obstacle(method),
            is_auto=word == self.auto,
            places=places(Budget(method, weights, dtype, self.device, self.free), self.asked) if nbytes else (),
        )

    def _obstacle(self, method: Quantization) -> str:
        try:
            method.check(self.device)
        except SinkchatError as error:
            return error.message
        return ""


def _cost(choice: str, nbytes: int | None, free: int | None, *, beside: int | None) -> Cost:
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
