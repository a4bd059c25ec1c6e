"""The small files of a model: enough to describe it, where its weights may be gigabytes away.

What lies on this machine is taken as `locate` would take it. Of a repository that does not, only configuration,
tokenizer and template are fetched, into the Hub's own cache, where a later download goes on from them.
"""

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

from sinkchat.errors import HubUnreachable, ModelError, ModelNotFound
from sinkchat.models import hub, sources
from sinkchat.models.progress import Progress, byte_counter, quiet_libraries, silent
from sinkchat.models.sources import Alias, Fetching, HubModel, Located, find_source


def preview(word: str, fetching: Fetching, *, progress: Progress = silent) -> Located:
    """Where the small files of the model lie that `word` means. Raises what `locate` raises, in the same words."""
    source = find_source(word)
    if isinstance(source, Alias):
        repo_id = source.repository.repo_id
        if source.packaged.is_here() and hub.on_disk(repo_id) is None and fetching.revision is None:
            return source.locate(fetching, progress=progress)
        try:
            return _of_repository(source.repository, fetching, progress)
        except HubUnreachable as error:
            raise HubUnreachable(error.message, hint=f"sinkchat pull {word}, which knows another way") from error
    if isinstance(source, HubModel):
        return _of_repository(source, fetching, progress)
    return source.locate(fetching, progress=progress)


def _of_repository(source: HubModel, fetching: Fetching, progress: Progress) -> Located:
    repo_id, revision = source.repo_id, fetching.revision
    name = repo_id.split("/")[-1]
    if (folder := hub.on_disk(repo_id, revision=revision) or _small_files(repo_id, revision)) is not None:
        return Located(folder, name)
    if hub.is_offline(fetching.offline):
        return source.locate(fetching, progress=progress)  # says why not
    try:
        with quiet_libraries(), hub._hub_errors(repo_id, revision):
            return Located(_fetch(repo_id, revision, progress), name)
    except ModelNotFound as error:
        near = sources._nearest(repo_id, (*sources.ALIASES, *sources._repositories_on_disk()))
        if near is None or "no revision" in error.message:
            raise
        raise ModelNotFound(f"{error.message}; did you mean {near}?", hint=f"sinkchat show {near}") from error


def _small_files(repo_id: str, revision: str | None) -> Path | None:
    """The folder of an earlier preview, if a configuration and a tokenizer lie there."""
    found = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    return folder if hub.has_tokenizer(path.name for path in folder.iterdir()) else None


def _fetch(repo_id: str, revision: str | None, progress: Progress) -> Path:
    progress(f"asking the Hub for {repo_id}")
    info = HfApi().model_info(repo_id, revision=revision, timeout=hub.ANSWER_SECONDS)
    names = [file.rfilename for file in info.siblings or ()]
    if "config.json" not in names:
        raise hub._nothing_to_load(repo_id, names)
    small = [name for name in names if hub._SMALL_FILE.fullmatch(name)]
    if not hub.has_tokenizer(names):
        raise ModelError(f"{repo_id} has no tokenizer", hint="a repository made for transformers")
    bars = byte_counter("", 0, silent)
    return Path(snapshot_download(repo_id, revision=revision, allow_patterns=small, tqdm_class=bars))
