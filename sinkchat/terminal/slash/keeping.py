"""The commands that bring text in and out: files, the clipboard, saved conversations."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from sinkchat.chat import export as exports
from sinkchat.chat.events import TurnCancelled
from sinkchat.errors import InputError, UsageError
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing.markdown import code_blocks
from sinkchat.terminal.line.folding import read_file
from sinkchat.terminal.pipe.exchanges import PastExchange, Question, SystemLine, transcript
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.slash.desk import Desk, Draft, Output


def attach(desk: Desk, argument: str) -> Iterator[Output]:
    if not argument:
        raise UsageError("/file needs a path", hint="/file notes.txt; Tab completes it")
    file = read_file(argument)
    if file.bad_bytes:
        those, are, were = ("byte", "is", "was") if file.bad_bytes == 1 else ("bytes", "are", "were")
        name = one_line(file.name)
        yield f"{file.bad_bytes:,} {those} of {name} {are} not UTF-8 and {were} read as U+FFFD"
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
    """Reads a conversation of any length; of a message that nobody answered, the next line is made."""
    if not argument:
        raise UsageError("/load needs a path", hint="/load chat.jsonl; Tab completes it")
    path = _path(argument)
    conversation = desk.conversation
    try:
        stream = path.open("rb")
    except OSError as error:
        raise UsageError(f"{one_line(argument)} cannot be read: {(error.strerror or str(error)).lower()}") from error
    with stream:
        checked = list(_exchanges_of(Intake(stream, waiting=nullcontext), path.name))
    conversation.clear()
    draft = stopped = ""
    for number, exchange in enumerate(checked, start=1):
        match exchange:
            case SystemLine(text):
                conversation.set_system(text)
            case PastExchange(user, answer):
                try:
                    yield from conversation.read(user, answer)
                except TurnCancelled:
                    draft, stopped = "", "stopped; "
                    break
            case Question(str(text)):
                draft = text
                if number < len(checked):
                    yield f"message {number} has no answer and is left out: {one_line(text[:80])}"
                    draft = ""
    yield f"{stopped}{_turns(conversation)} read: {wording.memory(conversation.state)}"
    if draft:
        yield Draft(draft)


def _exchanges_of(intake: Intake, name: str) -> Iterator[PastExchange | Question | SystemLine]:
    """The exchanges of a file. Raises InputError, which names the line, before anything is changed."""
    try:
        yield from transcript(intake, None)
    except InputError as error:
        message = error.message.replace("stdin", one_line(name), 1).removesuffix(" and there is no PROMPT")
        raise InputError(message, hint="/load reads what /save writes") from error


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
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:  # a name may be no text
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
