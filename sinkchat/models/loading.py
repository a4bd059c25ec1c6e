"""From the word MODEL to a model, its tokenizer and its chat template, ready to think.

One procedure in five stages; whatever can be refused is refused before the weights are touched.
A model lies on one device as a whole; what does not fit is spread, what several processes load is cut.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError

import torch
from jinja2 import TemplateError, TemplateSyntaxError
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sinkchat.errors import ModelError, NoChatTemplate, UsageError
from sinkchat.models.budget import Budget
from sinkchat.models.checkpoint import (
    auto_class,
    damaged,
    first_line,
    missing_package,
    read_config,
    read_weights,
    refuse_missing,
    shipped_quantization,
    trained_length,
)
from sinkchat.models.conversion import converted, packed
from sinkchat.models.families import refuse_unmovable
from sinkchat.models.gguf_header import kind_of_blocks
from sinkchat.models.hub import has_tokenizer, weight_files
from sinkchat.models.methods import Quantization
from sinkchat.models.placement import choose_device, choose_dtype, device_of_rank, dtype_name, free_memory, join
from sinkchat.models.progress import Progress, quiet_libraries, silent
from sinkchat.models.quantization import choose_quantization, require_known
from sinkchat.models.sources import DEFAULT_MODEL, Fetching, Located, find_source
from sinkchat.models.spread import DeviceMap, Placement, place
from sinkchat.parallel.ranks import Ranks

__all__ = ["DEFAULT_MODEL", "LoadOptions", "LoadedModel", "Progress", "load_model", "load_tokenizer", "silent"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded; the words are those of the command line."""

    quant: str = "auto"
    """auto or a word of `METHODS`; auto is nf4 on CUDA; on a CPU int4 for a file of such blocks, else none"""
    dtype: str = "auto"
    """auto, float32, bfloat16 or float16"""
    device: str = "auto"
    """auto, cuda, cuda:N, mps or cpu"""
    device_map: DeviceMap | None = None
    """accelerate's, in place of what `device` would be"""
    ranks: Ranks | None = None
    """which of several processes this is that share the model"""
    threads: int | None = None
    """of this process, on a CPU; None: as torch has it"""
    revision: str | None = None
    offline: bool = False
    trust_remote_code: bool = False
    chat_template: Path | None = None
    must_stream: bool = False
    """refuse what cannot forget, as far as its configuration tells, before any weights are read"""
    needs_template: bool = True
    """False for measurements on base models, which have none"""
    compile: bool = False
    """compile the decode step beside the chat, where that can be"""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode without gradients, and what is worth knowing about it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """as shown to people, e.g. "SmolLM2-135M-Instruct\""""
    quant: str
    """the method that was applied, or "none\""""
    dtype: str
    device: str
    max_length: int | None
    """positions it was trained on, where its configuration says so"""
    notes: tuple[str, ...]
    """sentences worth saying at the start"""
    compiles: bool = False
    """whether its decode step is to be compiled"""


def load_model(
    name: str = DEFAULT_MODEL, options: LoadOptions = LoadOptions(), *, progress: Progress = silent
) -> LoadedModel:
    """Load the model that `name` means. Raises a SinkchatError that says why it cannot be had."""
    # 1. Where it will run, and where its files lie.
    options = options if options.ranks is None else _uncut(options)
    device = choose_device(options.device) if options.ranks is None else device_of_rank(options.device, options.ranks)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    unstored = choose_dtype(options.dtype, device, stored=None)
    require_known(options.quant)
    located = find_source(name).locate(Fetching(options.revision, options.offline), progress=progress)
    folder = _as_folder(located, unstored, device, options, progress)

    # 2. What it is: refused here if it is no causal language model, or damaged.
    progress(f"loading {located.name}")
    config = read_config(folder, name=located.name, trust_remote_code=options.trust_remote_code)
    if options.must_stream:
        refuse_unmovable(config, name=located.name)
    weights = read_weights(folder, name=located.name)

    # 3. How it is spoken to.
    tokenizer = load_tokenizer(folder, located.name, options)

    # 4. In which numbers, and whether they fit.
    dtype = choose_dtype(options.dtype, device, stored=config.dtype)
    method, why = _choose(located, device, options, shipped=shipped_quantization(config))
    dtype = _compute_dtype(method, dtype, asked=options.dtype)
    budget = Budget(method, weights, dtype, device, free=free_memory(device))
    asked, device_map = options.device, options.device_map
    placement = place(budget, config, name=located.name, asked=asked, device_map=device_map, ranks=options.ranks)

    # 5. The weights.
    if options.ranks is not None:
        join(options.ranks, device)
    with quiet_libraries(), _weight_errors(folder, located.name, budget):
        model = _load_weights(folder, located.name, config, budget, placement, options)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        name=located.name,
        quant=method.name,
        dtype=dtype_name(dtype),
        device=placement.device(model),
        max_length=trained_length(config),
        notes=(*located.notes, *why, *placement.notes(model)),
        compiles=options.compile and placement.is_whole,
    )


def _uncut(options: LoadOptions) -> LoadOptions:
    """What can be cut across processes: weights as they are."""
    if options.quant not in ("auto", "none"):
        raise UsageError(f"--quant {options.quant} cannot be cut across processes", hint="--quant none")
    return replace(options, quant="none")


def _as_folder(
    located: Located, dtype: torch.dtype, device: torch.device, options: LoadOptions, progress: Progress
) -> Path:
    if located.path.is_dir():
        return located.path
    method, _ = _choose(located, device, options, shipped=None)
    if method.name == "int4" and device.type == "cpu":
        _compute_dtype(method, dtype, asked=options.dtype)
        return packed(located.path, identity=located.identity, progress=progress)
    return converted(located.path, dtype, identity=located.identity, progress=progress)


def _choose(
    located: Located, device: torch.device, options: LoadOptions, *, shipped: str | None
) -> tuple[Quantization, tuple[str, ...]]:
    """The method for what was located; a file's own conversion is not how it was shipped."""
    if options.ranks is not None and shipped is not None:
        raise UsageError(
            f"{located.name} comes quantised ({shipped}), and is not cut across processes", hint="one process"
        )
    asked, dtype = options.quant, options.dtype
    if located.path.is_dir():
        return choose_quantization(asked, device, shipped=shipped, dtype=dtype)
    return choose_quantization(asked, device, shipped=None, blocks=kind_of_blocks(located.path), dtype=dtype)


def _compute_dtype(method: Quantization, chosen: torch.dtype, *, asked: str) -> torch.dtype:
    dtype = method.dtype(chosen)
    if asked not in ("auto", dtype_name(dtype)):
        raise UsageError(
            f"--quant {method.name} computes in {dtype_name(dtype)}, not in {asked}", hint="--dtype auto"
        )
    return dtype


def load_tokenizer(folder: Path, name: str, options: LoadOptions) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`, with the chat template that `options` ask for: a person's, or the model's own.

    `name` is the model's, for errors. Raises ModelError, NoChatTemplate where one is needed, and UsageError where
    the person's file is no template.
    """
    if not has_tokenizer(os.listdir(folder)):
        raise ModelError(
            f"{name} has no tokenizer: no tokenizer.json or the like lies beside its weights",
            hint=f"copy the tokenizer's files of the model it was made from into {folder}",
        )
    try:
        with quiet_libraries():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    except ImportError as error:
        raise missing_package(name, error) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the tokenizer of {name} cannot be read: {first_line(error)}") from error
    except Exception as error:
        # The Rust library raises the bare class for a tokenizer.json that it cannot parse.
        if type(error) is not Exception:
            raise
        raise ModelError(f"the tokenizer of {name} cannot be read: {first_line(error)}") from error
    tokenizer.chat_template = _chat_template(tokenizer, name, options)
    return tokenizer


def _chat_template(tokenizer: PreTrainedTokenizerBase, name: str, options: LoadOptions) -> str | None:
    if options.chat_template is not None:
        return _read_template(options.chat_template, tokenizer)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template and options.needs_template:
        raise NoChatTemplate(
            f"{name} has no chat template: it is a base model, which continues text and does not answer",
            hint="its instruction-tuned version, or --chat-template FILE",
        )
    return template or None


def _read_template(path: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        template = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {path} is not UTF-8 text", hint="a Jinja file") from error
    except OSError as error:
        raise UsageError(
            f"--chat-template {path} cannot be read: {error.strerror}", hint="the path of a Jinja file"
        ) from error
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], chat_template=template, tokenize=False)
    except TemplateSyntaxError as error:
        raise UsageError(
            f"--chat-template {path} is no Jinja template: line {error.lineno}: {error.message}",
            hint="compare it with the chat_template.jinja of a model that works",
        ) from error
    except (TemplateError, TypeError) as error:
        raise UsageError(
            f"--chat-template {path} fails on a first user message: {first_line(error)}",
            hint="compare it with the chat_template.jinja of a model that works",
        ) from error
    return template


def _load_weights(
    folder: Path, name: str, config: PreTrainedConfig, budget: Budget, placement: Placement, options: LoadOptions
) -> PreTrainedModel:
    budget.method.prepare(config)
    auto = auto_class(config) or AutoModelForCausalLM
    model, info = auto.from_pretrained(
        folder,
        config=config,
        dtype=budget.dtype,
        trust_remote_code=options.trust_remote_code,
        output_loading_info=True,
        **placement.arguments(),
        **budget.method.apply(budget.dtype, budget.device),
    )
    refuse_missing(info["missing_keys"], name=name)
    budget.method.finish(model)
    return model


@contextmanager
def _weight_errors(folder: Path, name: str, budget: Budget) -> Iterator[None]:
    """Turns what transformers, safetensors and torch raise while weights are read into our errors."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise budget.out_of_memory() from error
    except ImportError as error:
        raise missing_package(name, error) from error
    except ValueError as error:
        if "offload" in str(error) or "dispatched" in str(error):  # such weights cannot lie on disk
            raise budget.out_of_memory() from error
        raise
    except (SafetensorError, UnpicklingError) as error:
        raise damaged(folder / weight_files(os.listdir(folder))[0], name, error) from error
    except RuntimeError as error:  # torch says it in words only
        if "DefaultCPUAllocator" in str(error):
            raise budget.out_of_memory() from error
        if "PytorchStreamReader" in str(error):
            raise damaged(folder / weight_files(os.listdir(folder))[0], name, error) from error
        if "size mismatch" in str(error) or "ignore_mismatched_sizes" in str(error):
            raise ModelError(f"the weights of {name} do not fit its config.json: {first_line(error)}") from error
        raise
