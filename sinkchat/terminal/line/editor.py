"""A text in the person's own editor: $VISUAL, then $EDITOR, then the first that is installed."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shutil import which

from sinkchat.errors import UsageError
from sinkchat.terminal.sanitize import one_line

_EDITORS = ("editor", "nano", "vim", "vi", "notepad")


def edited(text: str, *, variables: Mapping[str, str] = os.environ) -> str:
    """The text as it is when the editor ends, without the line feed that editors end a file with.

    Unchanged where the editor fails. Blocks, with the terminal the editor's. Raises UsageError.
    """
    command = _command(variables)
    with tempfile.TemporaryDirectory(prefix="sinkchat-") as folder:  # of mode 0700
        path = Path(folder, "message.txt")
        path.write_text(text, encoding="utf-8", newline="\n")
        try:
            status = subprocess.call([*command, str(path)])
        except OSError as error:
            raise UsageError(
                f"the editor {one_line(command[0])} cannot be started: {(error.strerror or str(error)).lower()}",
                hint="export VISUAL=nano, or whichever you like",
            ) from error
        if status != 0:
            return text
        changed = path.read_text(encoding="utf-8", errors="replace")
    return changed.removesuffix("\n") if not text.endswith("\n") else changed


def _command(variables: Mapping[str, str]) -> list[str]:
    chosen = variables.get("VISUAL") or variables.get("EDITOR") or ""
    try:
        words = shlex.split(chosen)
    except ValueError as error:
        raise UsageError(f"VISUAL or EDITOR is {one_line(chosen)}: a quote is not closed") from error
    if words:
        return words
    installed = next((path for name in _EDITORS if (path := which(name))), None)
    if installed is None:
        raise UsageError("no editor is installed", hint="export VISUAL=nano, or whichever you like")
    return [installed]
