"""A measurement as a file, so that hours of it are not lost: what was found, and where the method under way is.

Keys and values are saved with it, to the bit: what a cache remembers cannot be read off the text again. A file is
good for the very model, numbers and text that wrote it.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sinkchat.errors import UsageError
from sinkchat.lab.perplexity.scores import Method, Result, Scores
from sinkchat.models.loading import LoadedModel

_FORM = 1
_SAMPLES = 16
"""numbers of each tensor that tell one model from another"""


class Nowhere:
    """Keeps nothing: the measurement begins anew each time."""

    def result_of(self, method: Method) -> Result | None:
        return None

    def left_at(self, method: Method) -> tuple[Scores, Mapping[str, Tensor]] | None:
        return None

    def keep(self, result: Result) -> None:
        """Nothing to do."""

    def leave(self, method: Method, scores: Scores, state: Mapping[str, Tensor]) -> None:
        """Nothing to do."""


class MeasurementFile:
    """What was measured so far, at `path`. `identity` names what must be the same for it to be gone on with.

    Raises `UsageError` where there is a file that is not one of these, or of something else.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self._path, self._identity = path, dict(identity)
        self._results: dict[Method, Result] = {}
        self._left: tuple[Method, Scores, Mapping[str, Tensor]] | None = None
        if path.exists():
            self._read()
        elif not path.parent.is_dir():
            raise UsageError(f"--resume {path}: there is no folder {path.parent}", hint="a folder that is there")

    def result_of(self, method: Method) -> Result | None:
        """What the method came to, if it came to an end before."""
        return self._results.get(method)

    def left_at(self, method: Method) -> tuple[Scores, Mapping[str, Tensor]] | None:
        """Where the method was left, and what it remembered there."""
        if self._left is None or self._left[0] != method:
            return None
        return self._left[1:]

    def keep(self, result: Result) -> None:
        """A method came to an end."""
        self._results[result.method] = result
        self._write(None, {})

    def leave(self, method: Method, scores: Scores, state: Mapping[str, Tensor]) -> None:
        """A method is so far."""
        self._write({"method": asdict(method), "scores": asdict(scores)}, state)

    def _write(self, underway: dict[str, Any] | None, state: Mapping[str, Tensor]) -> None:
        about = {
            "form": _FORM,
            "identity": self._identity,
            "results": [result.as_record() for result in self._results.values()],
            "underway": underway,
        }
        tensors = {name: tensor.contiguous().cpu() for name, tensor in state.items()}
        try:
            number, name = tempfile.mkstemp(prefix=".unfinished-", dir=self._path.parent)
            os.close(number)
            try:
                save_file(tensors, name, metadata={"about": json.dumps(about)})
                with open(name, "r+b") as file:
                    os.fsync(file.fileno())
                os.replace(name, self._path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UsageError(
                f"--resume {self._path} cannot be written: {reason.lower()}", hint="another place"
            ) from error

    def _read(self) -> None:
        try:
            with safe_open(self._path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                form, identity = about["form"], about["identity"]
                results = [Result.of_record(record) for record in about["results"]]
                underway = about["underway"]
                left = None
                if underway is not None:
                    tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                    left = Method(**underway["method"]), Scores(**underway["scores"]), tensors
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"--resume {self._path} holds no measurement of perplexity",
                hint="a new file, or one written by --resume",
            ) from error
        for name in {"form": form} | self._identity:
            if (name == "form" and form != _FORM) or (name != "form" and identity.get(name) != self._identity[name]):
                raise UsageError(
                    f"--resume {self._path} was measured with another {name}", hint="the same again, or another file"
                )
        self._results = {result.method: result for result in results}
        self._left = left


def identity_of(loaded: LoadedModel, ids: Sequence[int], *, first: int, every: int) -> dict[str, str]:
    """What must be the same for a measurement to be gone on with, by its name."""
    return {
        "model": _fingerprint(loaded.model),
        "quantisation": loaded.quant,
        "dtype": loaded.dtype,
        "text, or number of tokens": hashlib.sha256(repr(list(ids)).encode()).hexdigest(),
        "largest cache": str(first),
        "--every": str(every),
    }


def _fingerprint(model: nn.Module) -> str:
    """Stands for the weights: the names and shapes of all, and some numbers of each; buffers may be weights too."""
    digest = hashlib.sha256()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _SAMPLES)][:_SAMPLES]
        digest.update(f"{name} {tuple(tensor.shape)} {some.cpu().tolist()}\n".encode())
    return digest.hexdigest()
