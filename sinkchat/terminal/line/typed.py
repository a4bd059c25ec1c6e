"""The lines typed before, in this run and in earlier ones."""

import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory, History

from sinkchat.terminal.line.folding import PASTE_CHARACTERS, Folds
from sinkchat.terminal.sanitize import visible


class TypedLines(History):
    """Lines as they were typed, placeholders and all, until this run ends; for later ones those that are short.

    What is written down is whole: a placeholder would mean nothing next time. The file at `path` is readable
    by its owner alone. Raises OSError when it cannot be written.
    """

    def __init__(self, path: Path | None, folds: Folds) -> None:
        super().__init__()
        self._folds = folds
        self._file = None if path is None else FileHistory(_private(path))

    def append_string(self, string: str) -> None:
        self._loaded_strings.insert(0, string)
        whole = self._folds.unfolded(string)
        if len(whole) <= PASTE_CHARACTERS:
            self.store_string(visible(whole))

    def load_history_strings(self) -> Iterable[str]:
        return map(visible, self._file.load_history_strings()) if self._file else ()

    def store_string(self, string: str) -> None:
        if self._file:
            self._file.store_string(string)


def _private(path: Path) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    path.chmod(0o600)
    return path
