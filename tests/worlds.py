"""Worlds to run the program in: scripted stdin, streams that remember, a clock that stands still."""

import io
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripted import ScriptedConversation

from sinkchat.cli import main
from sinkchat.terminal.asked.request import Request
from sinkchat.terminal.environment import Environment


class Terminal(io.StringIO):
    """An output stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class KeyboardBytes(io.BytesIO):
    """An input stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def stdin_of(pieces: list[bytes]) -> io.BufferedReader:
    """A stream that gives one piece a read, however many bytes are asked for: a pipe whose writer is slow."""
    return io.BufferedReader(_Pieces(pieces), buffer_size=1 << 20)


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        piece = next(self._pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)


@dataclass
class Outcome:
    status: int
    stdout: str
    stderr: str
    conversation: ScriptedConversation
    requests: list[Request]


def environment(
    stdin: io.BytesIO | io.BufferedReader,
    *,
    stdout: io.StringIO | None = None,
    stderr: io.StringIO | None = None,
    variables: Mapping[str, str] | None = None,
    state_folder: Path = Path("/nonexistent"),
    config_folder: Path = Path("/nonexistent"),
    clock: Callable[[], float] = lambda: 0.0,
) -> Environment:
    return Environment(
        stdin=stdin,
        stdout=stdout if stdout is not None else io.StringIO(),
        stderr=stderr if stderr is not None else io.StringIO(),
        variables=variables or {},
        state_folder=state_folder,
        config_folder=config_folder,
        clock=clock,
    )


def sinkchat(
    command: str,
    stdin: bytes | list[bytes] | io.BytesIO = b"",
    *,
    conversation: ScriptedConversation | None = None,
    **streams: object,
) -> Outcome:
    """Runs `sinkchat COMMAND` with a scripted conversation, and gives all that came out."""
    conversation = conversation if conversation is not None else ScriptedConversation()
    if isinstance(stdin, bytes):
        stdin = io.BytesIO(stdin)
    world = environment(stdin_of(stdin) if isinstance(stdin, list) else stdin, **streams)  # type: ignore[arg-type]
    requests: list[Request] = []

    def start(request: Request, progress: Callable[[str], None]) -> ScriptedConversation:
        requests.append(request)
        progress("loading Echo-1")
        if request.system is not None:
            conversation.set_system(request.system)
        return conversation

    status = main(shlex.split(command), environment=world, start=start)
    return Outcome(status, _text(world.stdout), _text(world.stderr), conversation, requests)


def _text(stream: object) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()
