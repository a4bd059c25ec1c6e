"""A GGUF file as a folder that loads in a second.

Reading a GGUF takes ten seconds and more (its vocabulary is parsed in Python, every block of weights
opened), so it is done once: the weights are opened to plain numbers, and saved as safetensors with
tokenizer, template and generation settings. The folder is keyed by the file it came from and the dtype; weights that
stay in 4 bits are kept packed for this kind of processor.
"""

import hashlib
import io
import struct
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from sinkchat.errors import ModelError
from sinkchat.models.cachedir import cache_folder, is_whole, published
from sinkchat.models.checkpoint import first_line, refuse_missing
from sinkchat.models.gguf_header import refuse_unknown_blocks
from sinkchat.models.int4.gguf import GgufBlocks
from sinkchat.models.int4.packing import layout_name
from sinkchat.models.int4.replace import to_int4
from sinkchat.models.int4.stored import describe_in
from sinkchat.models.placement import DTYPES, dtype_name
from sinkchat.models.progress import Progress, quiet_libraries, silent

_FORM = 1
"""Raised when conversions made before are no longer good."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def converted(gguf: Path, dtype: torch.dtype, *, identity: str = "", progress: Progress = silent) -> Path:
    """The folder that `gguf` became, converted now if it was not before.

    `identity` names the content where that is known (a SHA-256); else path, size and time stand for it.
    Raises ModelError where the file is damaged, or its architecture or a kind of its blocks unknown.
    """
    folder = _folder_for(gguf, dtype_name(dtype), identity)
    return folder if is_whole(folder) else _saved(folder, *_opened(gguf, dtype, progress))


def packed(gguf: Path, *, identity: str = "", progress: Progress = silent) -> Path:
    """As `converted`, with weights in 4 bits for the CPU's kernel: the blocks of the file where it has such.

    Other kinds of blocks are opened and quantised.
    """
    folder = _folder_for(gguf, f"int4-{layout_name()}", identity)
    if is_whole(folder):
        return folder
    dtype = torch.bfloat16
    model, tokenizer = _opened(gguf, dtype, progress)
    tied = bool(model.config.tie_word_embeddings)
    describe_in(model.config, to_int4(model, blocks_for=GgufBlocks(gguf, dtype).of), tied=tied)
    return _saved(folder, model, tokenizer)


def kept_conversion(gguf: Path, *, identity: str = "") -> Path | None:
    """A folder that `gguf` became earlier, in whatever dtype or packed; `identity` as in `converted`."""
    forms = (*DTYPES, f"int4-{layout_name()}")
    folders = (_folder_for(gguf, form, identity) for form in forms)
    return next((folder for folder in folders if is_whole(folder)), None)


def _folder_for(gguf: Path, form: str, identity: str) -> Path:
    key = hashlib.sha256(f"{_FORM}:{identity or _identity_of(gguf)}".encode()).hexdigest()[:12]
    return cache_folder() / "converted" / f"{gguf.stem}-{key}-{form}"


def _opened(gguf: Path, dtype: torch.dtype, progress: Progress) -> tuple[Any, Any]:
    refuse_unknown_blocks(gguf)
    progress(f"converting {gguf.name}, once")
    with quiet_libraries(), redirect_stderr(io.StringIO()):
        # The bar of the blocks obeys no setting of transformers; it writes to sys.stderr.
        return _read(gguf, dtype)


def _saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    with quiet_libraries(), published(folder) as fresh:
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
    return folder


def _identity_of(gguf: Path) -> str:
    status = gguf.stat()
    return f"{gguf.resolve()}:{status.st_size}:{status.st_mtime_ns}"


def _read(gguf: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **where,
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    except (ValueError, KeyError, IndexError, OSError, NotImplementedError, struct.error) as error:
        # What the readers of the format raise for a file that is none, or cut short; and what
        # transformers raises for an architecture or a kind of block that it does not know.
        raise ModelError(
            f"{gguf.name} cannot be read as a GGUF model: {first_line(error)}",
            hint="a whole GGUF file of an architecture that transformers converts, e.g. llama or qwen2",
        ) from error
    refuse_missing(info["missing_keys"], name=gguf.name)
    # transformers 5.17 takes BOS for EOS here (5.24 does not); the model's settings are right in both.
    for token in _SPECIAL_TOKENS:
        number = getattr(model.config, f"{token}_id", None)
        if isinstance(number, int):
            setattr(tokenizer, token, tokenizer.convert_ids_to_tokens(number))
    return model, tokenizer
