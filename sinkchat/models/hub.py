"""A model repository on the Hugging Face Hub as a folder on this machine.

What lies in the Hub's own cache (`HF_HOME`) is taken as it is, without a question to the network.
Otherwise the Hub is asked once, with a short time limit, before anything is downloaded: its client
would try a name that cannot be resolved five times, 23 seconds a file. The client's exceptions
become ours here and nowhere else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    get_token,
    is_offline_mode,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from sinkchat.errors import HubUnreachable, ModelError, ModelGated, ModelNotFound
from sinkchat.models.cachedir import disk_full, disk_space_told, free_bytes
from sinkchat.models.progress import Progress, byte_counter, quiet_libraries, silent

ANSWER_SECONDS = 5.0
"""how long the Hub has to answer the first question"""

_SMALL_FILE = re.compile(r"(additional_chat_templates/)?[^/]+\.(json|txt|model|jinja|py|tiktoken|bpe)")
_SHARD = re.compile(r"(?P<stem>model|pytorch_model)-\d+-of-(?P<count>\d+)\.(?P<suffix>safetensors|bin)")
_TOKENIZER = re.compile(r"tokenizer(_config)?\.json|vocab\.(json|txt)|spiece\.model|tokenizer.*\.model|.*\.tiktoken")


def weight_files(names: Iterable[str]) -> tuple[str, ...]:
    """The names among `names` that hold a model's weights; none where they are missing or not all there.

    Safetensors come before pickles; other copies of the same weights (`consolidated`, `fp16`) are left.
    """
    present = set(names)
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        if f"{stem}.{suffix}" in present:
            return (f"{stem}.{suffix}",)
        shards = [m for m in map(_SHARD.fullmatch, present) if m and m["stem"] == stem and m["suffix"] == suffix]
        if shards and len(shards) == int(shards[0]["count"]):
            return tuple(sorted(shard[0] for shard in shards))
    return ()


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether any of `names` is a file that a tokenizer is read from."""
    return any(_TOKENIZER.fullmatch(name) for name in names)


def on_disk(repo_id: str, *, revision: str | None = None, weights: bool = True) -> Path | None:
    """The folder of `repo_id` in the Hub's cache, if all that a chat needs lies there, or all but the weights."""
    found = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    names = [path.name for path in folder.iterdir() if path.exists()]
    return folder if has_tokenizer(names) and (weight_files(names) or not weights) else None


def is_offline(asked: bool) -> bool:
    """Whether nothing may be fetched: because that was asked, or by HF_HUB_OFFLINE."""
    return asked or is_offline_mode()


def fetch(
    repo_id: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    weights: bool = True,
    progress: Progress = silent,
) -> Path:
    """The folder of `repo_id`: from the Hub's cache, else downloaded into it.

    Without `weights` only configuration, tokenizer and template are; a later download goes on from them. Raises
    HubUnreachable, ModelNotFound, ModelGated, ModelError and, when the disk is full, ResourceError.
    """
    folder = on_disk(repo_id, revision=revision, weights=weights)
    if folder is not None:
        return folder
    if is_offline(offline):
        raise HubUnreachable(
            f"{repo_id} is not on this machine, and nothing is fetched while offline",
            hint=f"sinkchat pull {repo_id}, once, without --offline and HF_HUB_OFFLINE",
        )
    with quiet_libraries(), _hub_errors(repo_id, revision):
        return _download(repo_id, revision, weights, progress)


def _download(repo_id: str, revision: str | None, with_weights: bool, progress: Progress) -> Path:
    progress(f"asking the Hub for {repo_id}")
    info = HfApi().model_info(repo_id, revision=revision, timeout=ANSWER_SECONDS, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    small = [name for name in sizes if _SMALL_FILE.fullmatch(name)]
    weights = weight_files(sizes)
    if "config.json" not in sizes or not weights:
        raise _nothing_to_load(repo_id, sizes)
    wanted = (*small, *weights) if with_weights else small
    missing = sum(
        sizes[name]
        for name in wanted
        if not isinstance(try_to_load_from_cache(repo_id, name, revision=info.sha), str)
    )
    if missing > free_bytes(Path(constants.HF_HUB_CACHE)):
        raise disk_full(Path(constants.HF_HUB_CACHE), missing)
    counter = byte_counter(repo_id.split("/")[-1], sum(sizes[name] for name in weights), progress)
    try:
        # Weights come last: where they are whole, an earlier download was not broken off before its end.
        bars = byte_counter("", 0, silent)
        folder = snapshot_download(repo_id, revision=revision, allow_patterns=small, tqdm_class=bars)
        if with_weights:
            folder = snapshot_download(repo_id, revision=revision, allow_patterns=list(weights), tqdm_class=counter)
        return Path(folder)
    except HfHubHTTPError:
        raise
    except HTTPError as error:
        raise HubUnreachable(
            f"the download of {repo_id} broke off ({type(error).__name__})",
            hint="the same command again: it goes on where this one stopped",
        ) from error


def _nothing_to_load(repo_id: str, names: Iterable[str]) -> ModelError:
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf:
        return ModelError(
            f"{repo_id} holds only GGUF files ({len(gguf)}), and which one is meant is not said",
            hint=f"hf download {repo_id} {gguf[0]}, then sinkchat run with the path that it prints",
        )
    return ModelError(
        f"{repo_id} has no config.json with safetensors or .bin weights beside it",
        hint="a repository made for transformers",
    )


@contextmanager
def _hub_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turns what huggingface_hub raises into errors a person can act on. No message repeats a token."""
    try:
        with disk_space_told(Path(constants.HF_HUB_CACHE)):
            yield
    except GatedRepoError as error:
        raise _gated(repo_id) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"{repo_id} has no revision {revision or 'main'}",
            hint=f"a branch, tag or commit of {constants.ENDPOINT}/{repo_id}, or no --revision",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the Hub has no model {repo_id}" + ("" if get_token() else ", or it is private"),
            hint="check the spelling" + ("" if get_token() else "; for a private model, hf auth login"),
        ) from error
    except HfHubHTTPError as error:
        raise _refused(repo_id, error) from error
    except (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise HubUnreachable(
            f"the Hub does not answer at {constants.ENDPOINT} ({type(error.__cause__ or error).__name__}), "
            f"and {repo_id} is not on this machine",
            hint="check the connection, or name a folder or a .gguf file",
        ) from error
    except (EntryNotFoundError, FileMetadataError, json.JSONDecodeError) as error:
        raise HubUnreachable(
            f"what answers at {constants.ENDPOINT} is not the Hub",
            hint="check HF_ENDPOINT, and whether the network asks for a login first",
        ) from error
    except OSError as error:
        if "onsistency check failed" not in str(error):
            raise
        raise HubUnreachable(
            f"a file of {repo_id} arrived damaged", hint="the same command again: what is whole is kept"
        ) from error


def _gated(repo_id: str) -> ModelGated:
    missing = "this account has no access yet" if get_token() else "no token is set"
    return ModelGated(
        f"{repo_id} is gated and {missing}",
        hint="open its page on the Hub, accept the licence, then `hf auth login`",
    )


def _refused(repo_id: str, error: HfHubHTTPError) -> ModelError:
    status = error.response.status_code
    if status in (401, 403):
        if not get_token():
            return ModelGated(f"the Hub gives {repo_id} to nobody without a token", hint="hf auth login")
        return ModelGated(
            f"the Hub refuses this token for {repo_id} (status {status})",
            hint="hf auth login with a token that may read it, or unset HF_TOKEN",
        )
    if status == 429:
        return HubUnreachable(
            f"the Hub has had too many requests and refuses {repo_id} for now",
            hint="wait some minutes, or hf auth login for a higher limit",
        )
    return HubUnreachable(
        f"the Hub at {constants.ENDPOINT} fails with status {status}",
        hint="the same command in some minutes",
    )
