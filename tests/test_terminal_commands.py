"""Slash commands: which lines are some, and all that each has to say."""

import pytest
from scripted import ScriptedConversation

from sinkchat.errors import UsageError
from sinkchat.terminal import commands
from sinkchat.terminal.commands import COMMANDS, CommandLine, Desk, Leave


def desk_after(*messages: str, **options: int) -> Desk:
    desk = Desk(ScriptedConversation(lambda _: "ok", **options))  # type: ignore[arg-type]
    for message in messages:
        for event in desk.conversation.send(message):
            if type(event).__name__ == "TurnEnded":
                desk.tally.add(event)  # type: ignore[arg-type]
    return desk


def told(desk: Desk, line: str) -> list[str]:
    command = commands.parse(line)
    assert command is not None
    return list(commands.run(command, desk))


@pytest.mark.parametrize(
    "line",
    [
        "/etc/hosts is odd",
        "/etc/passwd is a file",
        "//",
        "/",
        "q",
        "h",
        "exit",
        " /help",
        "/1",
        "/a1 b",
        "/help\nme",
        "",
    ],
)
def test_a_message_is_no_command(line: str) -> None:
    assert commands.parse(line) is None


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/?", "?", ""),
        ("/EXIT  ", "exit", ""),
        ("/set top-p 0.5", "set", "top-p 0.5"),
        ("/system two\nlines", "system", "two\nlines"),
        ("/exitfoo", "exitfoo", ""),
    ],
)
def test_a_command_is_a_slash_and_letters(line: str, name: str, argument: str) -> None:
    assert commands.parse(line) == CommandLine(name, argument)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/claer", "unknown command /claer, did you mean /clear?"),
        ("/exi", "unknown command /exi, did you mean /exit?"),
        ("/xyzzy", "unknown command /xyzzy, /help lists them; a blank in front sends it as text"),
        ("/exit now", "/exit takes nothing after it; a blank in front sends the line as text"),
        ("/see all", "/see all: use pinned, edge, or nothing for all"),
        ("/set temprature 1", "unknown setting temprature, did you mean temperature?"),
        ("/set top-p 2", "top-p is 2; use a number above 0, up to 1"),
        ("/set top-p nan", "top-p is nan; use a number above 0, up to 1"),
        ("/set top-k many", "top-k is many; use a whole number from 0 up"),
    ],
)
def test_what_cannot_be_meant_is_not_done(line: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        told(desk_after(), line)
    assert raised.value.message == error


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/q"])
def test_leaving(line: str) -> None:
    with pytest.raises(Leave):
        told(desk_after(), line)


def test_help_lists_every_command_and_its_other_names() -> None:
    lines = told(desk_after(), "/?")
    for command in COMMANDS:
        assert any(line.startswith(command.usage) for line in lines)
        assert all(any(f"/{name}" in line for line in lines) for name in command.names)


def test_memory_names_what_is_forgotten_and_what_is_held() -> None:
    lines = told(desk_after("a b c", "d e f g", "h i j k l m", capacity=17), "/memory")
    assert lines == [
        "pinned 5 + window 12/12 + forgotten 4 = seen 21",
        "forgotten: turn 1",
        "held: turns 2–3",
        "keys and values: 17 KiB",
    ]


def test_turns_lists_them_with_what_is_left() -> None:
    lines = told(desk_after("a [b] c", "d e\x1b f g", "h i j k l m n", capacity=17), "/turns")
    assert lines == [
        "    1  forgotten       4 tokens  a [b] c",
        "    2  80 % left       5 tokens  d e\\x1b f g",
        "    3  held            8 tokens  h i j k l m n",
    ]
    assert told(desk_after(), "/turns") == ["no turn yet"]


def test_see_shows_what_memory_holds() -> None:
    desk = desk_after("a b c", "d e f g", capacity=10)
    pinned = ["── pinned: 5 tokens that never leave ──", "you are a helpful assistant"]
    assert told(desk, "/see pinned") == pinned
    assert told(desk, "/see") == [*pinned, "── window: 5 tokens, oldest first ──", "d e f g ok"]
    assert told(desk, "/see edge")[1] == "d e f g ok"


def test_set_shows_each_value_with_its_source_and_changes_one() -> None:
    desk = desk_after()
    before = {line.split()[0]: line.split()[1:3] for line in told(desk, "/set")}
    assert before["temperature"] == ["0.7", "model"]
    assert before["top-p"] == ["0.95", "flag"]
    assert before["seed"] == ["none", "built-in"]
    assert told(desk, "/set temperature 0") == ["temperature 0.0 (/set): how freely words are drawn; 0 is greedy"]
    assert desk.conversation.options.temperature == 0
    assert told(desk, "/set stop  END OF IT ")[0].startswith("stop 'END OF IT' (/set)")
    assert desk.conversation.options.stop == ("END OF IT",)
    assert told(desk, "/set stop none")[0].startswith("stop none (/set)")
    assert told(desk, "/set max_tokens")[0].startswith("max-tokens 1024 (built-in)")


def test_system_says_what_is_lost_before_it_is() -> None:
    desk = desk_after("a", "b")
    command = commands.parse("/system be\nbrief")
    assert command is not None
    lines = commands.run(command, desk)
    assert next(lines) == "a new conversation begins under this system prompt; 2 turns will be forgotten"
    assert (len(desk.conversation.turns), desk.conversation.system) == (2, None)
    assert list(lines) == []
    assert (len(desk.conversation.turns), desk.conversation.system) == (0, "be\nbrief")
    assert told(desk, "/system") == ["be\nbrief"]


def test_clear_begins_anew() -> None:
    desk = desk_after("a", "b")
    assert told(desk, "/clear") == ["a new conversation: nothing is remembered"]
    assert desk.conversation.state.seen == 0


def test_stats_add_up() -> None:
    assert told(desk_after("a b", "c d"), "/stats") == [
        "answers 2: 4 tokens read, 2 written",
        "speed 31.4 tok/s on average",
        "memory pinned 5 + window 6/95 + forgotten 0 = seen 11, 100 KiB of keys and values",
    ]
    assert told(desk_after(), "/stats")[1] == "speed 0.0 tok/s on average"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/se", [("/see", 3), ("/set", 3)]),
        ("/see p", [("pinned", 1)]),
        ("/set top", [("top-p", 3), ("top-k", 3)]),
        ("/exit ", []),
        ("see", []),
        ("/nothing x", []),
    ],
)
def test_tab_completes_commands_and_their_words(typed: str, offered: list[tuple[str, int]]) -> None:
    assert list(commands.completions(typed)) == offered
