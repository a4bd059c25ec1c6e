"""Where a copied text goes: a program of this machine's desktop, or the terminal itself.

The programs are tried in turn, those first that can be sure; the terminal comes last, since it may be
set to refuse and never answers. It is asked by OSC 52, which reaches the person's own clipboard even
from a machine far away. Text is made visible first: what is pasted lands in shells and editors.
"""

import base64
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO, TypeAlias

from sinkchat.errors import UsageError
from sinkchat.terminal.sanitize import visible

SEQUENCE_LIMIT = 100_000
"""the longest sequence that terminals agree to take; xterm and hterm drop a longer one"""
TIMEOUT_SECONDS = 5.0
_SCREEN_PIECE = 76
"""GNU screen passes at most a few hundred bytes in one sequence"""

Run: TypeAlias = Callable[[Sequence[str], bytes], None]
"""Runs a program with this on its stdin. Raises OSError or SubprocessError where that does not work."""


class Clipboard(Protocol):
    """A place to paste from."""

    def copy(self, text: str) -> str:
        """Puts the text there and says how. Raises UsageError where it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class Program:
    """A program that reads what it copies from stdin."""

    arguments: tuple[str, ...]
    encoding: str = "utf-8"
    remark: str = ""

    @property
    def name(self) -> str:
        return self.arguments[0]


def run_program(arguments: Sequence[str], text: bytes) -> None:
    """Runs it in a session of its own, as some stay to serve the text and must not hear of Ctrl-C."""
    subprocess.run(
        arguments,
        input=text,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )


class FirstThatWorks:
    """The first of some programs that takes the text, else what comes after them."""

    def __init__(self, programs: Sequence[Program], otherwise: Clipboard, *, run: Run) -> None:
        self._programs = programs
        self._otherwise = otherwise
        self._run = run

    def copy(self, text: str) -> str:
        text = visible(text)
        for program in self._programs:
            try:
                self._run(program.arguments, text.encode(program.encoding))
            except (OSError, subprocess.SubprocessError):
                continue
            return f"copied {_amount(text)} with {program.name}{program.remark}"
        return self._otherwise.copy(text)


class TerminalClipboard:
    """The clipboard of the terminal behind a stream, reached by OSC 52."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def copy(self, text: str) -> str:
        text = visible(text)
        sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode('ascii')}\x1b\\"
        if len(sequence) > SEQUENCE_LIMIT:
            most = (SEQUENCE_LIMIT - len("\x1b]52;c;\x1b\\")) // 4 * 3
            raise UsageError(
                f"{len(text.encode()):,} bytes are too many for the terminal's clipboard, which takes {most:,}",
                hint="/export FILE writes the conversation to a file",
            )
        self._stream.write(self._wrapped(sequence))
        self._stream.flush()
        return f"{_amount(text)} sent to the terminal's clipboard{self._doubt()}"

    def _wrapped(self, sequence: str) -> str:
        return sequence

    def _doubt(self) -> str:
        return "; if nothing arrives, the terminal is set to refuse (OSC 52)"


class TmuxClipboard(TerminalClipboard):
    """The same inside tmux, which reads the sequence itself."""

    def _doubt(self) -> str:
        return "; if nothing arrives: tmux set -g set-clipboard on"


class ScreenClipboard(TerminalClipboard):
    """The same through GNU screen, which hands on what is wrapped, in small pieces.

    A wrapped sequence ends in BEL, as the usual end would end the wrapping.
    """

    def _wrapped(self, sequence: str) -> str:
        inner = f"{sequence.removesuffix(chr(0x1B) + chr(0x5C))}\a"
        pieces = (inner[at : at + _SCREEN_PIECE] for at in range(0, len(inner), _SCREEN_PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)


class NoClipboard:
    """Nothing to copy to."""

    def copy(self, text: str) -> str:
        raise UsageError(
            "there is no clipboard here: no program for it was found, and stdout is no terminal that has one",
            hint="/export FILE writes the conversation to a file",
        )


def for_environment(
    variables: Mapping[str, str],
    stream: TextIO,
    *,
    which: Callable[[str], str | None] = shutil.which,
    run: Run = run_program,
    platform: str = sys.platform,
) -> Clipboard:
    """The clipboard of the person at this terminal."""
    programs = [program for program in _programs(variables, platform) if which(program.name)]
    return FirstThatWorks(programs, _terminal(variables, stream), run=run)


def _programs(variables: Mapping[str, str], platform: str) -> list[Program]:
    """What could work here, the surest first. Over SSH a desktop's programs would fill the far clipboard."""
    programs = []
    if not variables.get("SSH_CONNECTION"):
        if platform == "darwin":
            programs.append(Program(("pbcopy",)))
        if variables.get("WAYLAND_DISPLAY"):
            programs.append(Program(("wl-copy", "--type", "text/plain")))
        if platform == "win32" or variables.get("WSL_DISTRO_NAME"):
            programs.append(Program(("clip.exe",), encoding="utf-16-le"))
    if variables.get("DISPLAY"):
        programs.append(Program(("xclip", "-selection", "clipboard")))
        programs.append(Program(("xsel", "--clipboard", "--input")))
    if variables.get("TMUX"):
        programs.append(Program(("tmux", "load-buffer", "-w", "-"), remark="; inside it, prefix ] pastes"))
    return programs


def _terminal(variables: Mapping[str, str], stream: TextIO) -> Clipboard:
    if not stream.isatty() or variables.get("TERM") == "dumb":
        return NoClipboard()
    if variables.get("TMUX"):
        return TmuxClipboard(stream)
    if variables.get("STY"):
        return ScreenClipboard(stream)
    return TerminalClipboard(stream)


def _amount(text: str) -> str:
    return f"{len(text):,} character{'' if len(text) == 1 else 's'}"
