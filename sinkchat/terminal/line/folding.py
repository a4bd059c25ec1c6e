"""Long texts stand on the line as placeholders: what is sent is the text itself.

A line of a megabyte cannot be edited, and a screen full of pasted text hides the question. So a paste of
more than a few lines, and every attached file, is folded: `[pasted 212 lines, 3,410 tokens: pushes out
turns 4–6]`. A placeholder stands for its text where it stands letter for letter, whoever typed it; one
that was changed is nothing but the letters that are left. What a text holds is never unfolded again.
"""

import difflib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sinkchat.chat.options import Weight
from sinkchat.errors import UsageError
from sinkchat.terminal import wording
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.sanitize import one_line, visible

PASTE_LINES = 8
PASTE_CHARACTERS = 4_000
"""what a line or the history holds as it is; longer texts are folded, and not written down"""

_WEIGHED_CHARACTERS = 2_000_000  # a second of tokenising
_FILE_BYTES = 64 * 2**20
_NAME_CHARACTERS = 40
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")

Weigh: TypeAlias = Callable[[str], Weight | None]
"""What sending a text now would cost, or None while no model can tell."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file as text. `bad_bytes` were not UTF-8 and are U+FFFD now."""

    name: str
    text: str
    bad_bytes: int


class Folds:
    """The placeholders of one prompt, and the texts they stand for."""

    def __init__(self, weigh: Weigh = lambda text: None) -> None:
        self._weigh = weigh
        self._texts: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def pasted(self, text: str) -> str:
        """The text as it is, or the placeholder of a long one."""
        return self._placeholder("pasted ", text) if _is_long(text) else text

    def draft(self, text: str) -> str:
        """The text as it is, or the placeholder of one too long to be edited: its author knows its lines."""
        return self._placeholder("pasted ", text) if len(text) > PASTE_CHARACTERS else text

    def attached(self, file: TextFile) -> str:
        """The placeholder of a file, however short."""
        name = one_line(file.name)
        shown = name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…"
        return self._placeholder(f"file {shown}: ", file.text)

    def unfolded(self, line: str) -> str:
        """The line with the text itself in place of each placeholder."""
        return self._pattern.sub(lambda found: self._texts[found.group()], line) if self._pattern else line

    def folded(self, text: str) -> str:
        """The text with a placeholder wherever a long text stands that has one: undoes `unfolded`."""
        for placeholder in sorted(self._texts, key=lambda one: -len(self._texts[one])):
            if _is_long(self._texts[placeholder]):  # a file of one letter is not looked for
                text = text.replace(self._texts[placeholder], placeholder)
        return text

    def found(self, line: str) -> list[tuple[int, int]]:
        """Where placeholders stand in `line`."""
        return [found.span() for found in self._pattern.finditer(line)] if self._pattern else []

    def keep(self, lines: Iterable[str]) -> None:
        """Forgets every text whose placeholder stands in none of the lines."""
        used = {line[start:stop] for line in lines for start, stop in self.found(line)}
        if used != self._texts.keys():
            self._texts = {placeholder: text for placeholder, text in self._texts.items() if placeholder in used}
            self._compile()

    def _placeholder(self, kind: str, text: str) -> str:
        label = f"{kind}{self._measure(text)}"
        placeholder, number = f"[{label}]", 2
        while self._texts.get(placeholder, text) != text:  # the same words already stand for another text
            placeholder, number = f"[{label} #{number}]", number + 1
        self._texts[placeholder] = text
        self._compile()
        return placeholder

    def _measure(self, text: str) -> str:
        lines = _count(_lines(text), "line")
        weight = self._weigh(text) if len(text) <= _WEIGHED_CHARACTERS else None
        if weight is None:
            return f"{lines}, {_count(len(text), 'character')}"
        loss = f": pushes out {wording.turn_numbers(weight.pushes_out)}" if weight.pushes_out else ""
        return f"{lines}, {_count(weight.tokens, 'token')}{loss}"

    def _compile(self) -> None:
        longest_first = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def read_file(typed: str) -> TextFile:
    """The text of the file that `typed` names, `~` and a shell's quotes understood. Raises UsageError."""
    path, name = _path(typed), one_line(typed)
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            raise UsageError(f"{name} is a folder", hint=f"/file {name.rstrip('/')}/ and Tab lists what is in it")
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{name} is a device or a pipe, not a file")
        if about.st_size > _FILE_BYTES:
            size, most = wording.memory_size(about.st_size), wording.memory_size(_FILE_BYTES)
            raise UsageError(
                f"{name} is {size}, and a message holds {most}",
                hint=f"sinkchat run < {name} reads it in constant memory",
            )
        with path.open("rb") as stream:
            intake = Intake(stream, waiting=nullcontext)
            text = "".join(intake.pieces())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"there is no file {name}", hint=_nearby(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name} cannot be read: {reason.lower()}") from error
    if not text:
        raise UsageError(f"{name} is empty")
    odd = intake.bad_bytes + len(_NOT_TEXT.findall(text))
    if odd * 10 > len(text):
        raise UsageError(
            f"{name} is not UTF-8 text: {odd:,} of {_count(len(text), 'character')} cannot be read as such",
            hint="iconv -f UTF-16 -t UTF-8 turns one kind of text into the other",
        )
    return TextFile(path.name, visible(text), intake.bad_bytes)


def _path(typed: str) -> Path:
    """The path as typed; where there is none, as a shell would understand it (dropped files come quoted)."""
    path = Path(os.path.expanduser(typed))
    try:
        words = shlex.split(typed)
        if len(words) == 1 and not path.exists():
            return Path(os.path.expanduser(words[0]))
    except (OSError, ValueError):  # a quote that is not closed, a name too long: it was no shell's word
        pass
    return path


def _nearby(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except (OSError, ValueError):
        near = []
    return f"did you mean {one_line(str(path.with_name(near[0])))}?" if near else "Tab after /file completes paths"


def _is_long(text: str) -> bool:
    return len(text) > PASTE_CHARACTERS or _lines(text) > PASTE_LINES


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
