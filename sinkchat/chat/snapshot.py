"""Memory as a file, so that a conversation goes on tomorrow as if it had not been left, to the bit.

What the cache holds cannot be made again of the ids: each key was written when the model saw what has been forgotten
since. So keys and values themselves are saved, with the last logits and the state of the random numbers. They are
good for the very model, cache and moment that wrote them. A file says what it is of; one that is of anything else,
or that is damaged, is recognised before a number of it is used.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sinkchat.cache.moments import Snapshot
from sinkchat.cache.storage import KeysValues
from sinkchat.chat.options import ModelCard
from sinkchat.chat.outline import Outline
from sinkchat.engine.engine import Engine, Image
from sinkchat.engine.sections import tensors_of
from sinkchat.errors import SinkchatError

_FORM = 1
_SAMPLES = 64
"""numbers of each parameter that tell one model from another"""


@dataclass(frozen=True, slots=True, eq=False)
class SavedMemory:
    """All that an engine needs to go on: what it remembers, and the state of its random numbers."""

    image: Image
    draws: Tensor

    @classmethod
    def of(cls, engine: Engine) -> "SavedMemory":
        """A copy; the engine may go on."""
        return cls(engine.image(), engine.generator.get_state())

    def is_of(self, outline: Outline) -> bool:
        """Whether this is the memory that the outline describes."""
        image, cache = self.image, self.image.cache
        return (
            image.held_ids == (*outline.pinned, *outline.window)
            and image.pending == outline.pending
            and (cache.evicted, cache.pinned, cache.borders) == (outline.evicted, outline.to_pin, outline.borders)
        )


@dataclass(frozen=True, slots=True)
class Unusable:
    """There is no memory to go on with; `reason` says why."""

    reason: str


def identity_of(engine: Engine, card: ModelCard) -> dict[str, str]:
    """What must be the same for a saved memory to be good, by its name."""
    cache = engine.cache
    rotations = [layout.rotation for layout in cache.layouts]
    layers = [
        (layout.heads, layout.key_width, layout.value_width, str(layout.dtype))
        + (() if turn is None else (turn.pairing, turn.start, turn.frequencies.tolist()))
        for layout, turn in zip(cache.layouts, rotations, strict=True)
    ]
    return {
        "model": _fingerprint(engine.model),
        "quantisation": card.quant,
        "dtype": card.dtype,
        "cache size": f"{cache.capacity}",
        "policy": f"{cache.policy}",
        "position limit": f"{cache.position_limit}",
        "layout of layers": hashlib.sha256(repr(layers).encode()).hexdigest(),
    }


def save_snapshot(path: Path, memory: SavedMemory, *, identity: Mapping[str, str], at: str) -> None:
    """Writes `memory` to `path`, where it takes the place of another in one step; only its owner may read it.

    `at` names the moment in the conversation. Raises SinkchatError where the file cannot be written; then what was
    at `path` is still there.
    """
    tensors = dict(_tensors(memory))
    cache = memory.image.cache
    about = {
        "form": _FORM,
        "identity": dict(identity),
        "at": at,
        "seen": cache.seen,
        "evicted": cache.evicted,
        "base": cache.base,
        "pinned": cache.pinned,
        "tensors": {name: _seal(tensor) for name, tensor in tensors.items()},
    }
    text = json.dumps(about)
    try:
        number, name = tempfile.mkstemp(prefix=".unfinished-", dir=path.parent)
        os.close(number)
        try:
            save_file(tensors, name, metadata={"about": text, "sum": _sum(text.encode())})
            os.chmod(name, 0o600)
            _settle(name)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, SafetensorError) as error:
        raise SinkchatError(
            f"memory cannot be saved in {path.parent}: {_why(error)}",
            hint="the conversation itself is kept; what is remembered will be read again",
        ) from error


def load_snapshot(path: Path, *, identity: Mapping[str, str], at: str) -> SavedMemory | Unusable:
    """The memory at `path`, if it is whole, of this identity and of this moment."""
    if not path.exists():
        return Unusable("there is no saved memory")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("sum") != _sum(metadata.get("about", "").encode()):
                return Unusable("the saved memory is damaged")
            about = json.loads(metadata["about"])
            if reason := _unlike(about, identity, at):
                return Unusable(reason)
            tensors = {name: file.get_tensor(name) for name in about["tensors"]}
        if any(_seal(tensors[name]) != seal for name, seal in about["tensors"].items()):
            return Unusable("the saved memory is damaged")
        torch.Generator().set_state(tensors["draws"])
        return SavedMemory(_image(about, tensors), tensors["draws"].clone())
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        return Unusable(f"the saved memory cannot be read: {_why(error)}")


def _unlike(about: Mapping[str, Any], identity: Mapping[str, str], at: str) -> str:
    """Why what is written about a memory does not fit, or nothing."""
    if about["form"] != _FORM:
        return "another version of sinkchat saved this memory"
    for name in identity:
        if about["identity"].get(name) != identity[name]:
            return f"the saved memory is of another {name}"
    return "" if about["at"] == at else "the saved memory is of another moment"


def _fingerprint(model: nn.Module) -> str:
    """Stands for the weights: the names and shapes of all, and some numbers of each that is in memory.

    Of a weight that is cut across processes these are the numbers of this one.
    """
    digest = hashlib.sha256()
    for name, weight in tensors_of(model).items():  # quantised weights are buffers
        own = weight.to_local() if hasattr(weight, "to_local") else weight
        flat = own.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _SAMPLES)][:_SAMPLES]
        digest.update(f"{name} {tuple(own.shape)} {weight.dtype}\n".encode())
        if not some.is_meta:  # it lies on disk
            digest.update(_bytes(some.cpu()))
    return digest.hexdigest()


def _tensors(memory: SavedMemory) -> Iterator[tuple[str, Tensor]]:
    image = memory.image
    groups = {"held": image.cache.held, "pristine": image.cache.pristine or ()}
    for name, tokens in groups.items():
        for index, each in enumerate(tokens):
            yield f"{name}.keys.{index}", each.keys.contiguous()
            yield f"{name}.values.{index}", each.values.contiguous()
    for name, numbers in (("ids", image.held_ids), ("pending", image.pending), ("borders", image.cache.borders)):
        yield name, torch.tensor(numbers, dtype=torch.int64)
    yield "draws", memory.draws
    if image.logits is not None:
        yield "logits", image.logits.cpu().clone()


def _image(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Image:
    # What stays in use is copied: these tensors are the file itself, seen as memory.
    held, pristine = _groups("held", tensors), _groups("pristine", tensors)
    logits = tensors.get("logits")
    return Image(
        Snapshot(
            seen=about["seen"],
            evicted=about["evicted"],
            base=about["base"],
            pinned=about["pinned"],
            borders=tuple(tensors["borders"].tolist()),
            held=held,
            pristine=tuple(KeysValues(each.keys.clone(), each.values.clone()) for each in pristine) or None,
        ),
        tuple(tensors["ids"].tolist()),
        tuple(tensors["pending"].tolist()),
        None if logits is None else logits.clone(),
    )


def _groups(name: str, tensors: Mapping[str, Tensor]) -> tuple[KeysValues, ...]:
    count = sum(each.startswith(f"{name}.keys.") for each in tensors)
    return tuple(
        KeysValues(tensors[f"{name}.keys.{index}"], tensors[f"{name}.values.{index}"]) for index in range(count)
    )


def _seal(tensor: Tensor) -> list[Any]:
    """What a tensor must be: its type, its shape, the sum of its bytes."""
    return [str(tensor.dtype), list(tensor.shape), _sum(_bytes(tensor))]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _sum(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


def _settle(name: str) -> None:
    number = os.open(name, os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _why(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (reason.splitlines() or [type(error).__name__])[0].lower()
