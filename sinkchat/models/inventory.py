"""Which chat models lie on this machine, without loading any.

Three places are looked at: the Hub's cache, the files taken from packages, and the folders that GGUF files became.
What cannot write text, or is not all there, is left out. Reads kilobytes and imports no torch.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import constants

from sinkchat.errors import ModelError
from sinkchat.models import hub
from sinkchat.models.cachedir import cache_folder, is_whole
from sinkchat.models.gguf_header import open_unnoticed, read_gguf_header
from sinkchat.models.sources import ALIASES

_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_REPOSITORY = "models--"


@dataclass(frozen=True, slots=True)
class KeptModel:
    """One model that `sinkchat run` can have without a network."""

    name: str
    """what to type after `sinkchat run`"""
    kept_in: Literal["hub", "package", "converted"]
    path: Path
    family: str
    parameters: int | None
    """None where the weights are packed, or have no header"""
    nbytes: int
    """on disk"""
    quantization: str
    """"none" where the weights are whole"""
    has_template: bool
    last_used: float
    """seconds since the epoch, as the file system remembers it"""


def kept_models() -> tuple[KeptModel, ...]:
    """Every chat model on this machine, the one used last first."""
    found = (*_in_hub_cache(), *_from_packages(), *_converted())
    return tuple(sorted(found, key=lambda model: (-model.last_used, model.name)))


def _in_hub_cache() -> Iterator[KeptModel]:
    aliases = {alias.repository.repo_id: word for word, alias in ALIASES.items()}
    for repository in _folders(Path(constants.HF_HUB_CACHE), f"{_REPOSITORY}*"):
        repo_id = repository.name.removeprefix(_REPOSITORY).replace("--", "/")
        refs = repository / "refs"
        for ref in sorted(path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file()):
            name = aliases.get(repo_id, repo_id) if ref == "main" else f"{repo_id} --revision {ref}"
            folder = hub.on_disk(repo_id, revision=ref)
            if folder is not None:
                yield from _in_folder(folder, name, "hub")
            elif ref == "main":
                snapshot = repository / "snapshots" / (refs / ref).read_text(encoding="utf-8").strip()
                for path in sorted(snapshot.glob("*.gguf")):
                    yield from _in_file(path, str(path), "hub")


def _from_packages() -> Iterator[KeptModel]:
    for word, alias in ALIASES.items():
        path = alias.packaged.on_disk()
        if path is not None:
            yield from _in_file(path, word, "package")


def _converted() -> Iterator[KeptModel]:
    for folder in _folders(cache_folder() / "converted", "*"):
        if is_whole(folder):
            yield from _in_folder(folder, str(folder), "converted")


def _folders(place: Path, pattern: str) -> list[Path]:
    return sorted(path for path in place.glob(pattern) if path.is_dir() and not path.name.startswith("."))


def _in_folder(folder: Path, name: str, kept_in: Literal["hub", "converted"]) -> Iterator[KeptModel]:
    config = _json(folder / "config.json")
    architectures = config.get("architectures") or []
    if architectures and not any(str(kind).endswith(_WRITES_TEXT) for kind in architectures):
        return
    quantization = _quantization(config)
    files = [path for path in folder.rglob("*") if path.is_file()]
    weights = [folder / weight for weight in hub.weight_files(os.listdir(folder))]
    yield KeptModel(
        name=name,
        kept_in=kept_in,
        path=folder,
        family=str(config.get("model_type", "unknown")),
        parameters=_parameters(weights) if quantization == "none" else None,
        nbytes=sum(path.stat().st_size for path in files),
        quantization=quantization,
        has_template=(folder / "chat_template.jinja").is_file() or _names_template(folder),
        last_used=_last_used(weights),
    )


def _in_file(path: Path, name: str, kept_in: Literal["hub", "package"]) -> Iterator[KeptModel]:
    try:
        header = read_gguf_header(path)
    except ModelError:  # not all there
        return
    yield KeptModel(
        name=name,
        kept_in=kept_in,
        path=path,
        family=header.family,
        parameters=header.parameters,
        nbytes=path.stat().st_size,
        quantization=header.quantization,
        has_template=header.has_template,
        last_used=_last_used([path]),
    )


def _names_template(folder: Path) -> bool:
    files = ("tokenizer_config.json", "chat_template.json")
    return any(_json(folder / name).get("chat_template") for name in files)


def _json(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def _quantization(config: dict[str, Any]) -> str:
    """The method by which the weights are quantised on disk, as `checkpoint.shipped_quantization` names it."""
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        return "none"
    if settings.get("load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", "fp4"))
    return "int8" if settings.get("load_in_8bit") else str(settings.get("quant_method", "unknown"))


def _parameters(weights: list[Path]) -> int | None:
    """How many numbers the safetensors files hold."""
    total = 0
    for path in weights:
        if path.suffix != ".safetensors":
            return None
        with open_unnoticed(path) as file:
            try:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
            except (ValueError, KeyError, TypeError, OverflowError, MemoryError):
                return None
    return total


def _last_used(weights: list[Path]) -> float:
    """When the weights were last read, or written where the file system does not note reading."""
    times = [path.stat() for path in weights]
    return max(max(status.st_atime, status.st_mtime) for status in times)
