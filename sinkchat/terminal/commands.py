"""The slash commands: one table, from which the dispatch, `/help` and the completions are made.

A command is a function that yields the lines it has to say, one after the other, so that a slow one is
announced before it begins. It sees the conversation and what has been counted, never keys or colours.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sinkchat.chat.events import TurnEnded
from sinkchat.errors import UsageError
from sinkchat.terminal import settings, wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.sanitize import one_line

_COMMAND_LINE = re.compile(r"/([A-Za-z]+|\?)(?:[ \t]+(.*))?", re.DOTALL)
_EDGE_CHARACTERS = 600
_PREVIEW_CHARACTERS = 48


class Leave(Exception):
    """The person wants to leave."""


@dataclass(slots=True)
class Tally:
    """What all answers of this run add up to. Speeds are taken over tokens, not over answers."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    answer_seconds: float = 0.0

    def add(self, turn: TurnEnded) -> None:
        self.answers += 1
        self.prompt_tokens += turn.prompt_tokens
        self.completion_tokens += turn.completion_tokens
        if turn.tokens_per_s > 0:
            self.answer_seconds += turn.completion_tokens / turn.tokens_per_s


@dataclass(slots=True)
class Desk:
    """What commands work on: the conversation, the counts, and which options were set by hand."""

    conversation: Conversation
    tally: Tally = field(default_factory=Tally)
    set_here: dict[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, str]:
        """Where each option's value came from."""
        return {**self.conversation.sources, **self.set_here}


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. `arguments` is empty for one that takes none; `words` complete its argument."""

    names: tuple[str, ...]
    summary: str
    run: Callable[[Desk, str], Iterator[str]]
    arguments: str = ""
    words: tuple[str, ...] = ()

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


def run(line: CommandLine, desk: Desk) -> Iterator[str]:
    """The lines that the command has to say. Raises UsageError for an unknown one, Leave to leave."""
    command = _BY_NAME.get(line.name)
    if command is None:
        near = difflib.get_close_matches(line.name, _BY_NAME, n=1)
        instead = f"did you mean /{near[0]}?" if near else "/help lists them; a blank in front sends it as text"
        raise UsageError(f"unknown command /{line.name}, {instead}")
    if line.argument and not command.arguments:
        raise UsageError(f"/{line.name} takes nothing after it; a blank in front sends the line as text")
    return command.run(desk, line.argument)


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


def _help(desk: Desk, argument: str) -> Iterator[str]:
    for command in COMMANDS:
        others = " ".join(f"/{name}" for name in command.names[1:])
        yield f"{command.usage:<22}{command.summary}{f'  ({others})' if others else ''}"
    yield ""
    yield 'Enter sends; Alt-Enter or Ctrl-J begins a new line, """ begins and ends a text of several lines.'
    yield "Ctrl-C stops the answer, Ctrl-X Ctrl-E opens the editor, Ctrl-L clears the screen, Ctrl-D leaves."


def _exit(desk: Desk, argument: str) -> Iterator[str]:
    raise Leave


def _clear(desk: Desk, argument: str) -> Iterator[str]:
    desk.conversation.clear()
    kept = "the system prompt stays" if desk.conversation.system is not None else "nothing is remembered"
    yield f"a new conversation: {kept}"


def _memory(desk: Desk, argument: str) -> Iterator[str]:
    state = desk.conversation.state
    yield wording.memory(state)
    yield from wording.what_is_held(desk.conversation.turns)
    yield f"keys and values: {wording.file_size(state.nbytes)}"


def _turns(desk: Desk, argument: str) -> Iterator[str]:
    turns = desk.conversation.turns
    if not turns:
        yield "no turn yet"
    for turn in turns:
        if turn.left == turn.tokens:
            held = "held"
        else:
            held = wording.percent_left(turn.left, turn.tokens) if turn.left else "forgotten"
        yield f"{turn.number:>5}  {held:<10}{turn.tokens:>7,} tokens  {_preview(turn.user)}"


def _see(desk: Desk, argument: str) -> Iterator[str]:
    conversation = desk.conversation
    state = conversation.state
    if argument not in ("", "pinned", "edge"):
        raise UsageError(f"/see {one_line(argument)}: use pinned, edge, or nothing for all")
    if argument != "edge":
        yield f"── pinned: {state.pinned:,} tokens that never leave ──"
        yield conversation.pinned_text()
    if argument == "edge":
        yield "── the edge: the oldest words of the window, next to leave ──"
        yield conversation.window_text()[:_EDGE_CHARACTERS]
    elif not argument:
        yield f"── window: {state.window:,} tokens, oldest first ──"
        yield conversation.window_text()


def _set(desk: Desk, argument: str) -> Iterator[str]:
    name, _, value = argument.partition(" ")
    options = desk.conversation.options
    if not name:
        yield from settings.listed(options, desk.sources)
        return
    chosen = settings.setting(name)
    if value.strip():
        desk.conversation.options = options = settings.changed(options, name, value.strip())
        desk.set_here[chosen.field] = "/set"
    source = desk.sources.get(chosen.field, "built-in")
    yield f"{chosen.name} {settings.shown(getattr(options, chosen.field))} ({source}): {chosen.meaning}"


def _system(desk: Desk, argument: str) -> Iterator[str]:
    conversation = desk.conversation
    if not argument:
        yield conversation.system if conversation.system is not None else "no system prompt was given"
        return
    turns = len(conversation.turns)
    lost = f"; {turns:,} turn{'s' if turns > 1 else ''} will be forgotten" if turns else ""
    yield f"a new conversation begins under this system prompt{lost}"
    conversation.set_system(argument)


def _stats(desk: Desk, argument: str) -> Iterator[str]:
    tally, state = desk.tally, desk.conversation.state
    speed = tally.completion_tokens / tally.answer_seconds if tally.answer_seconds else 0.0
    yield f"answers {tally.answers:,}: {tally.prompt_tokens:,} tokens read, {tally.completion_tokens:,} written"
    yield f"speed {speed:.1f} tok/s on average"
    yield f"memory {wording.memory(state)}, {wording.file_size(state.nbytes)} of keys and values"


def _preview(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _PREVIEW_CHARACTERS else f"{line[: _PREVIEW_CHARACTERS - 1]}…"


COMMANDS: tuple[Command, ...] = (
    Command(("help", "?"), "lists the commands", _help),
    Command(("exit", "quit", "bye", "q"), "leaves", _exit),
    Command(("clear", "new", "reset"), "begins a new conversation", _clear),
    Command(("memory", "context", "tokens"), "shows what is remembered", _memory),
    Command(("turns",), "lists the turns and how much of each is left", _turns),
    Command(
        ("see",), "shows the text that memory holds now", _see,
        arguments="[pinned|edge]", words=("pinned", "edge"),
    ),
    Command(
        ("set",), "shows or changes how answers are drawn", _set,
        arguments="[NAME VALUE]", words=tuple(one.name for one in settings.SETTINGS),
    ),
    Command(("system",), "shows the system prompt, or begins anew under another", _system, arguments="[TEXT]"),
    Command(("stats",), "shows tokens, speed and memory so far", _stats),
)  # fmt: skip

_BY_NAME = {name: command for command in COMMANDS for name in command.names}
