"""The slash commands: one table, from which the dispatch, `/help`, the completions and the README are made.

A command is a function that yields what it has to say and what happens, one after the other, so that a slow one is
announced before it begins. It works on a desk: the conversation and the few things around it, never keys or colours.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sinkchat.errors import UsageError
from sinkchat.terminal.asked import settings
from sinkchat.terminal.drawing.choice import FORMS
from sinkchat.terminal.slash import changing, keeping, looking
from sinkchat.terminal.slash.desk import Desk, Output

_COMMAND_LINE = re.compile(r"/([A-Za-z]+|\?)(?:[ \t]+(.*))?", re.DOTALL)

KEYS = (
    ("Enter", "sends; Alt-Enter or Ctrl-J begins a new line"),
    ('"""', "begins and ends a text of several lines"),
    ("Ctrl-C", "stops the answer or clears the line; twice, it leaves"),
    ("Ctrl-D", "leaves, on an empty line; Ctrl-Z suspends"),
    ("Tab", "completes commands and paths"),
    ("Up, Down, Ctrl-R", "find what was typed before"),
    ("Ctrl-G, Ctrl-X Ctrl-E", "open the editor; Ctrl-L clears the screen"),
    ("F2", "changes the panel"),
)

Act: TypeAlias = Callable[[Desk, str], Iterator[Output]]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. `arguments` is empty for one that takes none; `words` or paths complete its argument."""

    names: tuple[str, ...]
    summary: str
    run: Act
    arguments: str = ""
    words: tuple[str, ...] = ()
    takes_path: bool = False
    waits: bool = True
    """whether it needs the conversation, which may still be loading"""

    @property
    def usage(self) -> str:
        return f"/{self.names[0]} {self.arguments}".rstrip()


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A line that asks for a command, known or not."""

    name: str
    argument: str


def parse(line: str) -> CommandLine | None:
    """The command that `line` asks for, or None where it is a message.

    A command is `/` and letters (or `?`), then a blank or the end; `/etc/hosts is odd` is a message.
    """
    found = _COMMAND_LINE.fullmatch(line.rstrip())
    return CommandLine(found[1].lower(), (found[2] or "").strip()) if found else None


def command_of(line: CommandLine) -> Command:
    """The command of that name. Raises UsageError where there is none, or it takes no argument."""
    command = _BY_NAME.get(line.name)
    if command is None:
        near = difflib.get_close_matches(line.name, _BY_NAME, n=1)
        instead = f"did you mean /{near[0]}?" if near else "/help lists them; a blank in front sends it as text"
        raise UsageError(f"unknown command /{line.name}, {instead}")
    if line.argument and not command.arguments:
        raise UsageError(f"/{line.name} takes nothing after it; a blank in front sends the line as text")
    return command


def run(line: CommandLine, desk: Desk) -> Iterator[Output]:
    """What the command has to say and to show. Raises UsageError where it cannot, Leave to leave."""
    return command_of(line).run(desk, line.argument)


def completions(before_cursor: str) -> Iterator[tuple[str, int]]:
    """What Tab offers: each text with how many typed characters it takes the place of."""
    name, blank, argument = before_cursor.partition(" ")
    if not name.startswith("/"):
        return
    if not blank:
        offered: Sequence[str] = [f"/{command.names[0]}" for command in COMMANDS]
        typed = name
    else:
        command = _BY_NAME.get(name[1:].lower())
        offered, typed = (command.words if command else ()), argument
    for word in offered:
        if word.startswith(typed):
            yield word, len(typed)


def _help(desk: Desk, argument: str) -> Iterator[Output]:
    for command in COMMANDS:
        others = " ".join(f"/{name}" for name in command.names[1:])
        yield f"{command.usage:<24}{command.summary}{f'  ({others})' if others else ''}"
    yield ""
    for key, meaning in KEYS:
        yield f"{key:<24}{meaning}"


COMMANDS: tuple[Command, ...] = (
    Command(("help", "?"), "lists the commands and keys", _help, waits=False),
    Command(("exit", "quit", "bye", "q"), "leaves", looking.leave, waits=False),
    Command(("clear", "new", "reset"), "begins a new conversation", changing.clear),
    Command(("memory", "context", "tokens"), "shows what is remembered", looking.memory),
    Command(("turns",), "lists the turns and how much of each is left", looking.turns),
    Command(
        ("see",), "shows the text that memory holds now", looking.see,
        arguments="[pinned|edge]", words=("pinned", "edge"),
    ),
    Command(("recall",), "reads a forgotten turn again, as a quoted note", changing.recall, arguments="N"),
    Command(("pin",), "keeps a turn, or a text, for ever; alone: lists those", changing.pin, arguments="[N|TEXT]"),
    Command(("unpin",), "lets a pinned turn leave again", changing.unpin, arguments="N"),
    Command(("system",), "shows the system prompt, or changes it", changing.system, arguments="[TEXT]"),
    Command(
        ("set",), "shows or changes how answers are drawn", looking.change_setting,
        arguments="[NAME VALUE]", words=tuple(one.name for one in settings.SETTINGS),
    ),
    Command(("retry", "regen"), "draws the latest answer anew", changing.retry),
    Command(("undo",), "takes the latest turn back, or N and all after it", changing.undo, arguments="[N]"),
    Command(("edit",), "takes your message back to the line, to change it", changing.edit, arguments="[N]"),
    Command(("continue",), "goes on with an answer that was cut", changing.proceed),
    Command(
        ("file",), "puts a file on the line, with what it costs", keeping.attach, arguments="PATH", takes_path=True
    ),
    Command(("copy",), "copies the latest answer, or its code", keeping.copy, arguments="[code]", words=("code",)),
    Command(
        ("save",), "writes the conversation to a file, for /load", keeping.save, arguments="PATH", takes_path=True
    ),
    Command(
        ("load",), "begins anew with a conversation that was saved", keeping.load, arguments="PATH", takes_path=True
    ),
    Command(
        ("export",), "writes the conversation as .md, .json or .jsonl", keeping.export,
        arguments="PATH", takes_path=True,
    ),
    Command(("render",), "shows the latest answer as laid-out Markdown", looking.render),
    Command(("stats",), "shows tokens, speed and memory so far", looking.stats),
    Command(
        ("panel",), "changes what is drawn below an answer", looking.panel,
        arguments="[full|line|off]", words=FORMS, waits=False,
    ),
)  # fmt: skip

PATH_COMMANDS = frozenset(name for command in COMMANDS if command.takes_path for name in command.names)

_BY_NAME = {name: command for command in COMMANDS for name in command.names}
