"""The commands that bring text in and out: files, the clipboard, saved conversations."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from sinkchat.chat import export as exports
from sinkchat.chat.events import PromptProgress, PromptRead, TurnCancelled
from sinkchat.chat.messages import read_messages
from sinkchat.errors import InputError, UsageError
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing.markdown import code_blocks
from sinkchat.terminal.line.folding import read_file
from sinkchat.terminal.pipe.exchanges import Exchange, PastExchange, Question, SystemLine, exchanges_of
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.slash.desk import Desk, Draft, Output

_FORMS_READ = "/load reads what /save and /export chat.json write, and the forms of OpenAI and ShareGPT"
_MANY = 100  # turns from which on it is announced what will be read


def attach(desk: Desk, argument: str) -> Iterator[Output]:
    if not argument:
        raise UsageError("/file needs a path", hint="/file notes.txt; Tab completes it")
    file = read_file(argument)
    if file.bad_bytes:
        yield _not_utf_8(file.bad_bytes, one_line(file.name))
    yield Draft(f"{desk.attach(file)} ")


def copy(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    if argument not in ("", "code"):
        raise UsageError(f"/copy {one_line(argument)}: use code, or nothing for the whole answer")
    if not conversation.latest:
        raise UsageError("nothing was said yet")
    text = conversation.said(conversation.latest).answer
    if argument == "code":
        blocks = code_blocks(text)
        if not blocks:
            raise UsageError("the latest answer has no code block", hint="/copy copies all of it")
        text = "\n\n".join(blocks)
    yield desk.clipboard.copy(text)


def save(desk: Desk, argument: str) -> Iterator[Output]:
    yield _written(desk.conversation, _new_file(argument, "/save", "chat.jsonl"), exports.as_jsonl)


def export(desk: Desk, argument: str) -> Iterator[Output]:
    path = _new_file(argument, "/export", "chat.md")
    if (form := exports.FORMS.get(path.suffix.lower())) is None:
        raise UsageError(
            f"{one_line(path.name)} does not say in which form; end it in .md, .json or .jsonl",
            hint="/export chat.md",
        )
    yield _written(desk.conversation, path, form)


def load(desk: Desk, argument: str) -> Iterator[Output]:
    """Reads a conversation of any length, under its own system prompt; an unanswered last message is the next line.

    The file is read twice: all of it is checked before anything is changed, and JSON lines are never held at once.
    """
    if not argument:
        raise UsageError("/load needs a path", hint="/load chat.jsonl; Tab completes it")
    conversation, name = desk.conversation, one_line(_path(argument).name)
    with _file_to_read(argument) as stream:
        intake = Intake(stream, waiting=nullcontext)
        exchanges = sum(1 for _ in _exchanges_in(intake, name))
        if not exchanges:
            raise InputError(f"{name} is empty", hint=_FORMS_READ)
        if intake.bad_bytes:
            yield _not_utf_8(intake.bad_bytes, name)
        if exchanges >= _MANY:
            yield f"reads {exchanges:,} turns · Ctrl-C stops"
        stream.seek(0)
        yield from _entered(_exchanges_in(Intake(stream, waiting=nullcontext), name), conversation)


def _entered(exchanges: Iterator[Exchange], conversation: Conversation) -> Iterator[Output]:
    """A new conversation, which they enter as one long reading; then how far that came, and an unanswered message."""
    first = next(exchanges)
    if isinstance(first, SystemLine):
        conversation.set_system(first.text)
    elif conversation.system is not None:
        conversation.set_system(None)
        yield "this conversation had no system prompt, so the one that was set is none of it; /system sets it again"
    else:
        conversation.clear()
    asked, stopped, seconds = None, "", 0.0
    for exchange in chain([first], exchanges):
        if asked is not None:
            yield f"{asked.place} has no answer and is left out: {one_line(str(asked.text)[:80])}"
        asked = exchange if isinstance(exchange, Question) else None
        if isinstance(exchange, PastExchange):
            try:
                for event in exchange.enter(conversation):
                    match event:
                        case PromptProgress():
                            yield replace(event, read=event.state.seen, total=None, seconds=seconds + event.seconds)
                        case PromptRead():
                            seconds += event.seconds
                        case _:
                            yield event
            except TurnCancelled:
                stopped = "stopped; "
                break
    yield f"{stopped}{_turns(conversation)} read: {wording.memory(conversation.state)}"
    if asked is not None:
        yield Draft(str(asked.text))


def _exchanges_in(intake: Intake, name: str) -> Iterator[Exchange]:
    try:
        yield from exchanges_of(read_messages(intake.lines(), name))
    except InputError as error:
        raise InputError(error.message, hint=error.hint or _FORMS_READ) from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _file_to_read(argument: str) -> BinaryIO:
    path, name = _path(argument), one_line(argument)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe waits, and it can be read once
            raise UsageError(f"{name} is a device or a pipe, not a file", hint="copy what it gives to a file")
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _not_utf_8(bad_bytes: int, name: str) -> str:
    those, are, were = ("byte", "is", "was") if bad_bytes == 1 else ("bytes", "are", "were")
    return f"{bad_bytes:,} {those} of {name} {are} not UTF-8 and {were} read as U+FFFD"


def _new_file(argument: str, command: str, example: str) -> Path:
    """The path, where there is no file yet: nothing of a person's is written over."""
    if not argument:
        raise UsageError(f"{command} needs a path", hint=f"{command} {example}")
    path = _path(argument)
    if os.path.lexists(path):
        raise UsageError(f"{one_line(argument)} is there already, and nothing is written over", hint="another name")
    return path


def _path(argument: str) -> Path:
    """The path as a shell would understand it: `~` of nobody stays what it is."""
    return Path(os.path.expanduser(argument))


def _turns(conversation: Conversation) -> str:
    return f"{conversation.latest:,} turn{'' if conversation.latest == 1 else 's'}"


def _written(conversation: Conversation, path: Path, form: exports.Export) -> str:
    """Writes the whole file or none of it, for its owner alone."""
    if not conversation.latest:
        raise UsageError("nothing was said yet")
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(form(conversation))
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(
            f"{one_line(str(path))} cannot be written: {(error.strerror or str(error)).lower()}",
            hint="another folder",
        ) from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # it has become the file
                os.unlink(temporary)
    return f"{_turns(conversation)} written to {one_line(str(path))}"
