"""Where sinkchat keeps what it made itself, and how a folder appears there: whole or not at all.

A folder is filled under another name and then renamed, so a reader never sees half of one, and two
processes that make the same folder at once end with one of the two. A list of sizes lies inside,
so that a folder that lost something later is recognised and made anew.
"""

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from sinkchat.errors import ResourceError
from sinkchat.models.progress import file_size

MANIFEST = "files.json"
UNFINISHED = ".unfinished-"
UNFINISHED_KEPT_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """`SINKCHAT_CACHE_DIR`, else the platform's folder for caches."""
    named = os.environ.get("SINKCHAT_CACHE_DIR")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("sinkchat", appauthor=False)


def is_whole(folder: Path) -> bool:
    """Whether `folder` was published and each of its files still has its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder` when the block ends, and vanishes if it raises.

    Where another process published the same folder meanwhile, theirs is kept.
    """
    with disk_space_told(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        workplace = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
        try:
            content = workplace / folder.name
            content.mkdir()
            yield content
            sizes = {
                path.relative_to(content).as_posix(): path.stat().st_size
                for path in content.rglob("*")
                if path.is_file()
            }
            (content / MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
            _rename(content, folder, aside=workplace / "damaged")
        finally:
            shutil.rmtree(workplace, ignore_errors=True)


def _rename(content: Path, folder: Path, *, aside: Path) -> None:
    if folder.exists() and not is_whole(folder):
        os.replace(folder, aside)
    try:
        os.rename(content, folder)
    except OSError:
        if not is_whole(folder):
            raise


def _sweep(parent: Path) -> None:
    """Removes what processes that were killed left behind a day ago."""
    for left in parent.glob(f"{UNFINISHED}*"):
        if left.stat().st_mtime < time.time() - UNFINISHED_KEPT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def disk_space_told(place: Path) -> Iterator[None]:
    """Turns "no space left on device" into an error that says where and how much is free."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full(place) from error


def disk_full(place: Path, needed: int | None = None) -> ResourceError:
    """The error of a disk without room for `needed` more bytes under `place`."""
    free = file_size(free_bytes(place))
    wanted = f"{file_size(needed)} needed, " if needed is not None else ""
    return ResourceError(
        f"no room on the disk of {place}: {wanted}{free} free",
        hint="free some space, or set HF_HOME and SINKCHAT_CACHE_DIR to folders on another disk",
    )


def free_bytes(place: Path) -> int:
    """What is free on the disk of `place`, which need not exist yet."""
    there = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def bytes_in(folder: Path) -> int:
    """What lies under `folder`; a link counts as nothing, its target where it lies."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                path = Path(place, name)
                total += 0 if path.is_symlink() else path.stat().st_size
            except FileNotFoundError:  # removed or moved meanwhile
                continue
    return total
