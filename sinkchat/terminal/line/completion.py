"""What Tab offers: the commands, the words they know, and paths for those that take one."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from sinkchat.terminal.sanitize import visible

Words: TypeAlias = Callable[[str], Iterable[tuple[str, int]]]


class CommandCompleter(Completer):
    """Completes a line that begins with `/`.

    `words` gives what may stand before the cursor, each with how many typed characters it takes the place of;
    `path_commands` are names without their slash.
    """

    def __init__(self, words: Words, path_commands: Collection[str]) -> None:
        self._words = words
        self._path_commands = path_commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        for text, typed in self._words(line):
            yield Completion(text, start_position=-typed)
        name, blank, argument = line.partition(" ")
        if blank and name.startswith("/") and name[1:].lower() in self._path_commands:
            folder, slash, start = argument.lstrip().rpartition("/")
            for entry in paths(folder + slash, start):
                yield Completion(entry, start_position=-len(start))


def paths(folder: str, start: str) -> Iterator[str]:
    """Names in `folder` (`~` is understood) that begin with `start`, folders with a slash behind them.

    Hidden ones only where `start` is hidden too. A name that could steer the terminal is not offered: no
    key could have typed it, and on the line it would read differently from what it is.
    """
    try:
        entries = sorted(Path(os.path.expanduser(folder) or ".").iterdir())
    except (OSError, ValueError):
        return
    for entry in entries:
        name = entry.name
        is_hidden = name.startswith(".") and not start.startswith(".")
        if name.startswith(start) and not is_hidden and visible(name) == name and "\n" not in name:
            yield f"{name}/" if entry.is_dir() else name
