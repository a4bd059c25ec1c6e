"""Slash commands: which lines are some, and all that each has to say and to do."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import ScriptedConversation

from sinkchat.chat.events import PromptProgress, TurnCancelled, TurnEnded
from sinkchat.chat.options import ChatOptions
from sinkchat.errors import InputError, UsageError
from sinkchat.terminal.line.folding import TextFile
from sinkchat.terminal.slash import commands
from sinkchat.terminal.slash.commands import COMMANDS, CommandLine
from sinkchat.terminal.slash.desk import Desk, Draft, Leave, Output, Page

HELP = '''\
/help                   lists the commands and keys  (/?)
/exit                   leaves  (/quit /bye /q)
/clear                  begins a new conversation  (/new /reset)
/memory                 shows what is remembered  (/context /tokens)
/turns                  lists the turns and how much of each is left
/see [pinned|edge]      shows the text that memory holds now
/recall N               reads a forgotten turn again, as a quoted note
/pin [N|TEXT]           keeps a turn, or a text, for ever; alone: lists those
/unpin N                lets a pinned turn leave again
/system [TEXT]          shows the system prompt, or changes it
/set [NAME VALUE]       shows or changes how answers are drawn
/retry                  draws the latest answer anew  (/regen)
/undo [N]               takes the latest turn back, or N and all after it
/edit [N]               takes your message back to the line, to change it
/continue               goes on with an answer that was cut
/file PATH              puts a file on the line, with what it costs
/copy [code]            copies the latest answer, or its code
/save PATH              writes the conversation to a file, for /load
/load PATH              begins anew with a conversation that was saved
/export PATH            writes the conversation as .md, .json or .jsonl
/render                 shows the latest answer as laid-out Markdown
/stats                  shows tokens, speed and memory so far
/panel [full|line|off]  changes what is drawn below an answer

Enter                   sends; Alt-Enter or Ctrl-J begins a new line
"""                     begins and ends a text of several lines
Ctrl-C                  stops the answer or clears the line; twice, it leaves
Ctrl-D                  leaves, on an empty line; Ctrl-Z suspends
Tab                     completes commands and paths
Up, Down, Ctrl-R        find what was typed before
Ctrl-G, Ctrl-X Ctrl-E   open the editor; Ctrl-L clears the screen
F2                      changes the panel'''


@dataclass
class Pocket:
    """A clipboard that can be looked into."""

    text: str = ""

    def copy(self, text: str) -> str:
        self.text = text
        return f"copied {len(text)}"


@dataclass
class Line:
    """A line that files are attached to."""

    files: list[TextFile] = field(default_factory=list)

    def attach(self, file: TextFile) -> str:
        self.files.append(file)
        return f"[file {file.name}]"


def talk(*messages: str, reply: str = "ok", capacity: int = 100) -> ScriptedConversation:
    conversation = ScriptedConversation(lambda _: reply, capacity=capacity)
    for message in messages:
        list(conversation.send(message))
    return conversation


def desk_of(conversation: ScriptedConversation) -> Desk:
    return Desk(lambda: conversation)  # type: ignore[arg-type, return-value]


def desk_after(*messages: str, reply: str = "ok", capacity: int = 100) -> Desk:
    return desk_of(talk(*messages, reply=reply, capacity=capacity))


def scripted(desk: Desk) -> ScriptedConversation:
    conversation = desk.conversation
    assert isinstance(conversation, ScriptedConversation)
    return conversation


def done(desk: Desk, line: str) -> list[Output]:
    """All that a command gives."""
    command = commands.parse(line)
    assert command is not None
    return list(commands.run(command, desk))


def told(desk: Desk, line: str) -> list[str]:
    """What a command says; an answer of the model is `<text>`, and other events say nothing."""
    lines: list[str] = []
    for output in done(desk, line):
        assert not isinstance(output, Draft | Page)
        if isinstance(output, str):
            lines.append(output)
        elif isinstance(output, TurnEnded):
            lines.append(f"<{output.text}>")
    return lines


def refusal(desk: Desk, line: str) -> tuple[str, str | None]:
    """How a command refuses. Nothing of the conversation has changed."""
    before = scripted(desk).state, list(scripted(desk).changes), scripted(desk).system
    with pytest.raises((UsageError, InputError)) as raised:
        done(desk, line)
    assert before == (scripted(desk).state, scripted(desk).changes, scripted(desk).system)
    return raised.value.message, raised.value.hint


def test_the_table_is_what_is_tested_here() -> None:
    """Whoever adds a command adds a line to HELP, and its tests."""
    assert [command.usage for command in COMMANDS] == [
        line[:24].rstrip() for line in HELP.partition("\n\n")[0].split("\n")
    ]


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
        ("/file ~/a b.txt", "file", "~/a b.txt"),
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
        *(
            (f"/{name} now", f"/{name} takes nothing after it; a blank in front sends the line as text")
            for command in COMMANDS
            if not command.arguments
            for name in command.names
        ),
        ("/see all", "/see all: use pinned, edge, or nothing for all"),
        ("/set temprature 1", "unknown setting temprature, did you mean temperature?"),
        ("/set top-p 2", "top-p is 2; use a number above 0, up to 1"),
        ("/set top-p nan", "top-p is nan; use a number above 0, up to 1"),
        ("/set top-k many", "top-k is many; use a whole number from 0 up"),
        ("/panel big", "/panel big: use full, line or off; alone it changes to the next, as F2 does"),
        ("/recall", "/recall: use the number of a turn; /turns lists them"),
        ("/recall one", "/recall one: use the number of a turn; /turns lists them"),
        ("/recall ٣", "/recall ٣: use the number of a turn; /turns lists them"),
        ("/recall -1", "/recall -1: use the number of a turn; /turns lists them"),
        ("/unpin", "/unpin: use the number of a turn; /turns lists them"),
        ("/undo all", "/undo all: use the number of a turn; /turns lists them"),
        ("/edit me", "/edit me: use the number of a turn; /turns lists them"),
        ("/copy all", "/copy all: use code, or nothing for the whole answer"),
        ("/file", "/file needs a path"),
        ("/save", "/save needs a path"),
        ("/load", "/load needs a path"),
        ("/export", "/export needs a path"),
    ],
)
def test_what_cannot_be_meant_is_not_done(line: str, error: str) -> None:
    assert refusal(desk_after("one"), line)[0] == error


@pytest.mark.parametrize("line", ["/recall 9", "/pin 9", "/unpin 9", "/undo 9", "/edit 9", "/recall 0", "/undo 0"])
def test_a_turn_that_there_is_not(line: str) -> None:
    assert refusal(desk_after("one"), line)[0] == f"there is no turn {line[-1]}"


@pytest.mark.parametrize(
    "line", ["/undo", "/retry", "/edit", "/copy", "/copy code", "/render", "/save x.jsonl", "/export x.md"]
)
def test_before_anything_was_said(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(desk_after(), line)[0] == "nothing was said yet"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/q"])
def test_leaving(line: str) -> None:
    with pytest.raises(Leave):
        done(desk_after(), line)


@pytest.mark.parametrize("line", ["/help", "/?"])
def test_help_is_the_table_and_the_keys(line: str) -> None:
    lines = told(desk_after(), line)
    assert "\n".join(lines) == HELP
    assert max(map(len, lines)) < 80


def test_every_name_of_a_command_is_its_own() -> None:
    names = [name for command in COMMANDS for name in command.names]
    assert len(names) == len(set(names))
    for command in COMMANDS:
        assert all(commands.command_of(CommandLine(name, "")) is command for name in command.names)


def test_memory_names_what_is_forgotten_and_what_is_held() -> None:
    lines = told(desk_after("a b c", "d e f g", "h i j k l m", capacity=17), "/memory")
    assert lines == [
        "pinned 5 + window 12/12 + forgotten 4 = seen 21",
        "forgotten: turn 1",
        "held: turns 2–3",
        "keys and values: 17.0 KiB",
    ]


def test_turns_lists_them_with_what_is_left() -> None:
    desk = desk_after("a [b] c", "d e\x1b f g", "h i j k l m n", capacity=17)
    assert told(desk, "/turns") == [
        "    1  forgotten       4 tokens  a [b] c",
        "    2  80 % left       5 tokens  d e\\x1b f g",
        "    3  held            8 tokens  h i j k l m n",
    ]
    told(desk, "/pin 3")
    assert told(desk, "/turns")[2] == "    3  pinned          8 tokens  h i j k l m n"
    assert told(desk_after(), "/turns") == ["no turn yet"]


def test_a_long_message_is_previewed() -> None:
    assert told(desk_after("x" * 90), "/turns") == [f"    1  held            2 tokens  {'x' * 47}…"]


def test_see_shows_what_memory_holds() -> None:
    desk = desk_after("a b c", "d e f g", capacity=10)
    pinned = ["── pinned: 5 tokens that never leave ──", "you are a helpful assistant"]
    assert told(desk, "/see pinned") == pinned
    assert told(desk, "/see") == [*pinned, "── window: 5 tokens, oldest first ──", "d e f g ok"]
    edge = "── the edge: the oldest words of the window, next to leave ──"
    assert told(desk, "/see edge") == [edge, "d e f g ok"]


def test_set_lists_each_value_with_its_source() -> None:
    assert told(desk_after(), "/set") == [
        "temperature         0.7           model",
        "top-p               0.95          flag",
        "top-k               0             built-in",
        "min-p               0.0           built-in",
        "repetition-penalty  1.0           built-in",
        "seed                none          built-in",
        "max-tokens          1024          built-in",
        "stop                none          built-in",
    ]


def test_set_changes_one_value() -> None:
    desk = desk_after()
    assert told(desk, "/set temperature 0") == ["temperature 0.0 (/set): how freely words are drawn; 0 is greedy"]
    assert told(desk, "/set stop  END OF IT ")[0].startswith("stop 'END OF IT' (/set)")
    assert scripted(desk).options == ChatOptions(temperature=0, stop=("END OF IT",))
    assert told(desk, "/set")[0] == "temperature         0.0           /set"
    assert told(desk, "/set stop none")[0].startswith("stop none (/set)")
    assert scripted(desk).options == ChatOptions(temperature=0)
    assert told(desk, "/set max_tokens") == ["max-tokens 1024 (built-in): longest answer; 0 sets no limit"]


def test_system_is_shown_and_set_before_anything_is_said() -> None:
    desk = desk_after()
    assert told(desk, "/system") == ["no system prompt was given"]
    assert told(desk, "/system be\nbrief") == ["the system prompt is set: 4 tokens that never leave"]
    assert told(desk, "/system") == ["be\nbrief"]
    assert scripted(desk).changes == []


def test_another_system_prompt_says_its_cost_before_it_is() -> None:
    desk = desk_after("a", "b")
    command = commands.parse("/system be\nbrief")
    assert command is not None
    lines = commands.run(command, desk)
    assert next(lines) == "reads 9 tokens again · Ctrl-C leaves everything as it was"
    assert scripted(desk).system is None
    assert list(lines) == [
        "the system prompt is another now: pinned 5 + window 4/95 + forgotten 0 = seen 9",
    ]
    assert (scripted(desk).latest, scripted(desk).changes) == (2, [("system", "be\nbrief")])


def test_clear_begins_anew() -> None:
    desk = desk_after("a", "b")
    assert told(desk, "/clear") == [
        "a new conversation: nothing is remembered; /undo brings the old one back",
    ]
    assert scripted(desk).state.seen == 0
    assert told(desk, "/clear") == ["a new conversation: nothing is remembered"]
    told(desk, "/system be brief")
    assert told(desk, "/clear") == ["a new conversation: the system prompt stays"]


def test_undo_takes_the_latest_exchange_back() -> None:
    desk = desk_after("one", "two", "three", "four")
    assert told(desk, "/undo") == ["turn 4 taken back"]
    assert told(desk, "/undo 2") == [
        "reads 11 tokens again · Ctrl-C leaves everything as it was",
        "turns 2–3 taken back",
    ]
    assert [turn.user for turn in scripted(desk).turns] == ["one"]


def test_retry_sends_the_latest_message_again() -> None:
    replies = iter(["first", "second"])
    conversation = ScriptedConversation(lambda _: next(replies))
    list(conversation.send("go"))
    assert told(desk_of(conversation), "/retry") == ["<second>"]
    assert conversation.heard == ["go", "go"]
    assert (conversation.latest, conversation.said(1).answer) == (1, "second")


def test_a_retry_that_is_stopped_gives_the_text_back() -> None:
    desk = desk_after("word " * 200)
    got: list[Output] = []
    with pytest.raises(TurnCancelled):
        stopped_while_reading(desk, "/retry", got)
    assert got[-1] == Draft("word " * 200)


def stopped_while_reading(desk: Desk, line: str, got: list[Output]) -> None:
    command = commands.parse(line)
    assert command is not None
    for output in commands.run(command, desk):
        got.append(output)
        if isinstance(output, PromptProgress) and output.read > 64:
            desk.conversation.stop()


@pytest.mark.parametrize(("line", "text", "left"), [("/edit", "three", 2), ("/edit 2", "two", 1)])
def test_edit_takes_a_message_back_to_the_line(line: str, text: str, left: int) -> None:
    desk = desk_after("one", "two", "three")
    assert done(desk, line)[-1] == Draft(text)
    assert scripted(desk).latest == left


def test_continue_goes_on_with_what_was_cut() -> None:
    conversation = ScriptedConversation(lambda _: "one two three four")
    conversation.options = ChatOptions(max_tokens=2)
    list(conversation.send("go"))
    desk = desk_of(conversation)
    assert told(desk, "/continue") == ["<and so >"]
    assert conversation.said(1).answer == "one two and so "
    conversation.options = ChatOptions()
    assert told(desk, "/continue") == ["<and so on>"]
    complete = "the latest answer is complete: there is nothing to continue"
    assert refusal(desk, "/continue") == (complete, "/retry draws another")


def test_pin_says_what_it_costs_and_what_is_pinned() -> None:
    desk = desk_after("one", "two")
    assert told(desk, "/pin") == ["no turn is pinned; 5 first tokens never leave"]
    assert told(desk, "/pin 1") == [
        "reads 9 tokens again · Ctrl-C leaves everything as it was",
        "turn 1 is pinned: pinned 5 + window 4/95 + forgotten 0 = seen 9",
    ]
    assert told(desk, "/pin") == ["    1        2 tokens  one"]
    assert told(desk, "/unpin 1") == [
        "reads 9 tokens again · Ctrl-C leaves everything as it was",
        "turn 1 may leave again, and is the next to: pinned 5 + window 4/95 + forgotten 0 = seen 9",
    ]
    assert scripted(desk).changes == [("pin", 1), ("unpin", 1)]


def test_a_text_is_pinned_as_a_turn_of_its_own() -> None:
    desk = desk_after("one")
    assert told(desk, "/pin the key is 42") == [
        "reads 5 tokens",
        "reads 12 tokens again · Ctrl-C leaves everything as it was",
        "turn 2 is pinned: pinned 5 + window 7/95 + forgotten 0 = seen 12",
    ]
    assert scripted(desk).past == [("the key is 42", "Noted.")]
    assert scripted(desk).changes == [("pin", 2)]


def test_recall_reads_a_forgotten_turn_as_a_quoted_note() -> None:
    desk = desk_after("a b\nc", "d e f g", "h i j k l m", capacity=25)
    desk_note = "For reference, turn 1 of this conversation again.\n> user: a b\n> c\n> assistant: ok"
    held = "turn 1 is not forgotten: all of it is held"
    assert refusal(desk, "/recall 1") == (held, "/turns shows how much of each is left")
    list(scripted(desk).send("n o p q r s"))
    assert scripted(desk).turns[0].left == 0
    assert told(desk, "/recall 1") == [
        "reads 18 tokens, pushes out turns 2–4",
        "turn 1 is remembered again, as turn 5",
    ]
    assert scripted(desk).past == [(desk_note, "Noted.")]


def test_a_turn_too_large_for_the_window_is_not_recalled() -> None:
    desk = desk_after("word " * 30, capacity=25)
    assert refusal(desk, "/recall 1")[0] == "turn 1 is 44 tokens, and the window holds 20"


def test_stats_add_up() -> None:
    desk = desk_after("a b", "c d")
    for turn in (1, 2):
        desk.tally.add(TurnEnded(turn, "ok", "stop", 2, 1, 0.4, 31.4, desk.conversation.state))
    assert told(desk, "/stats") == [
        "answers 2: 4 tokens read, 2 written",
        "speed 31.4 tok/s on average, compiled",
        "memory pinned 5 + window 6/95 + forgotten 0 = seen 11, 100 KiB of keys and values",
    ]
    assert told(desk_after(), "/stats")[1] == "speed 0.0 tok/s on average, compiled"


def test_panel_changes_what_is_drawn() -> None:
    desk = desk_after()
    assert [told(desk, "/panel") for _ in range(3)] == [["panel: line"], ["panel: off"], ["panel: full"]]
    assert told(desk, "/panel off") == ["panel: off"]
    assert desk.panel.form == "off"


def test_render_lays_the_answer_out() -> None:
    desk = desk_after("go", reply="# A title\n\n- one\n- **two**\n")
    desk.columns = lambda: 40
    (page,) = done(desk, "/render")
    assert isinstance(page, Page)
    assert [row.strip() for row in page.text.split("\n") if row.strip()] == ["A title", "• one", "• two"]


def test_copy_takes_the_answer_or_its_code() -> None:
    desk = desk_after("go", reply="Run\n```sh\nls -l\n```\nand\n```\npwd\n```\n")
    desk.clipboard = pocket = Pocket()
    assert told(desk, "/copy") == ["copied 36"]
    assert pocket.text == "Run\n```sh\nls -l\n```\nand\n```\npwd\n```\n"
    assert told(desk, "/copy code") == ["copied 10"]
    assert pocket.text == "ls -l\n\npwd"


def test_copy_code_where_there_is_none() -> None:
    assert refusal(desk_after("go"), "/copy code") == (
        "the latest answer has no code block",
        "/copy copies all of it",
    )


def test_without_a_clipboard_copy_says_what_else_to_do() -> None:
    message, hint = refusal(desk_after("go"), "/copy")
    assert message.startswith("there is no clipboard here")
    assert hint == "/export FILE writes the conversation to a file"


def test_a_file_stands_on_the_line(tmp_path: Path) -> None:
    desk, line = desk_after(), Line()
    desk.attach = line.attach
    (tmp_path / "my notes.txt").write_bytes(b"some \xff text\n")
    assert done(desk, f"/file {tmp_path}/my notes.txt") == [
        "1 byte of my notes.txt is not UTF-8 and was read as U+FFFD",
        Draft("[file my notes.txt] "),
    ]
    assert [file.text for file in line.files] == ["some \ufffd text\n"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert refusal(desk_after(), f"/file {tmp_path}/note.txt") == (
        f"there is no file {tmp_path}/note.txt",
        f"did you mean {tmp_path}/notes.txt?",
    )


SAID = [("one [/INST]", "ok\n"), ("two\nlines: ü", "ok\n"), ('"three"', "ok\n")]


def desk_to_write() -> Desk:
    desk = desk_after(*(user for user, _ in SAID), reply="ok\n")
    scripted(desk).system = "be brief"
    return desk


def test_save_writes_what_load_reads(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    assert told(desk_to_write(), f"/save {path}") == [f"3 turns written to {path}"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["chat.jsonl"]
    desk = desk_after("something", "else")
    assert told(desk, f"/load {path}") == ["3 turns read: pinned 4 + window 6/96 + forgotten 0 = seen 10"]
    assert (scripted(desk).past, scripted(desk).system, scripted(desk).latest) == (SAID, "be brief", 3)
    assert told(desk, f"/save {path.with_name('again.jsonl')}") == [
        f"3 turns written to {path.with_name('again.jsonl')}"
    ]
    assert path.with_name("again.jsonl").read_text() == path.read_text()


def test_an_export_is_for_people_or_for_programs(tmp_path: Path) -> None:
    desk = desk_to_write()
    for name in ("chat.md", "chat.json", "chat.JSONL"):
        assert told(desk, f"/export {tmp_path}/{name}") == [f"3 turns written to {tmp_path}/{name}"]
    assert (tmp_path / "chat.md").read_text(encoding="utf-8") == (
        "# A conversation with Echo-1\n\n> be brief\n"
        "\n## Turn 1\n\n> one [/INST]\n\nok\n"
        "\n## Turn 2\n\n> two\n> lines: ü\n\nok\n"
        '\n## Turn 3\n\n> "three"\n\nok\n'
    )
    messages = [{"role": "system", "content": "be brief"}]
    for user, answer in SAID:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    lines = (tmp_path / "chat.JSONL").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == messages
    whole = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))
    about = {"model": "Echo-1", "quant": "none", "dtype": "float32", "turns": 3}
    assert whole == {**about, "messages": messages}


def test_an_export_says_where_memory_begins(tmp_path: Path) -> None:
    desk = desk_after("a b c d", "e f g h", "i j k l", capacity=15)
    told(desk, f"/export {tmp_path}/chat.md")
    first, rule, rest = (tmp_path / "chat.md").read_text().partition("---\n\n*Memory begins here")
    assert (first.count("## Turn"), bool(rule), rest.count("## Turn")) == (1, True, 2)


def test_an_export_needs_a_form() -> None:
    message = "chat.txt does not say in which form; end it in .md, .json or .jsonl"
    assert refusal(desk_after("go"), "/export chat.txt") == (message, "/export chat.md")


@pytest.mark.parametrize("command", ["save", "export"])
def test_nothing_is_written_over(command: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("precious")
    message = f"{path} is there already, and nothing is written over"
    assert refusal(desk_after("go"), f"/{command} {path}") == (message, "another name")
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "not there yet")
    assert refusal(desk_after("go"), f"/{command} {path}") == (message, "another name")
    assert (tmp_path / "other").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no/folder/chat.md", "no such file or directory"), (f"{'x' * 300}.md", "file name too long")],
)
def test_what_cannot_be_written_says_why(name: str, reason: str, tmp_path: Path) -> None:
    message = f"{tmp_path}/{name} cannot be written: {reason}"
    assert refusal(desk_after("go"), f"/export {tmp_path}/{name}") == (message, "another folder")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("line", ["/save ~nobody-of-that-name/c.md", "/load ~nobody-of-that-name/c.md"])
def test_the_home_of_nobody(line: str) -> None:
    verb = "written" if line.startswith("/save") else "read"
    message = f"~nobody-of-that-name/c.md cannot be {verb}: no such file or directory"
    assert refusal(desk_after("go"), line)[0] == message


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "PATH cannot be read: no such file or directory"),
        ("", "chat.jsonl is empty"),
        ("hello", "chat.jsonl line 1: not JSON: expecting value at column 1"),
        ('{"role": "bot"}', 'chat.jsonl line 1: "role" is "bot"; use system, user or assistant'),
        (
            '{"role": "user", "content": "a"}\n\n{"role": "user"}',
            'chat.jsonl line 3: "content" is missing; use a text',
        ),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(text: str | None, error: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    if text is not None:
        path.write_text(text)
    assert refusal(desk_after("go"), f"/load {path}")[0] == error.replace("PATH", str(path))


def test_a_folder_is_not_loaded(tmp_path: Path) -> None:
    assert refusal(desk_after("go"), f"/load {tmp_path}")[0] == f"{tmp_path} cannot be read: is a directory"


def test_a_message_without_an_answer_is_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    roles = [("user", "lost"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    path.write_text("\n".join(json.dumps({"role": role, "content": content}) for role, content in roles))
    desk = desk_after("something")
    outputs = [output for output in done(desk, f"/load {path}") if isinstance(output, str | Draft)]
    assert outputs == [
        "chat.jsonl line 1 has no answer and is left out: lost",
        "1 turn read: pinned 5 + window 2/95 + forgotten 0 = seen 7",
        Draft("three"),
    ]
    assert scripted(desk).past == [("one", "two")]


def test_a_load_that_is_stopped_says_how_far_it_came(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    told(desk_after("one", "word " * 200, "three"), f"/save {path}")
    desk, got = desk_after("something"), []
    stopped_while_reading(desk, f"/load {path}", got)
    assert got[-1] == "stopped; 1 turn read: pinned 5 + window 2/95 + forgotten 0 = seen 7"
    assert scripted(desk).latest == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/se", [("/see", 3), ("/set", 3)]),
        ("/see p", [("pinned", 1)]),
        ("/set top", [("top-p", 3), ("top-k", 3)]),
        ("/panel ", [("full", 0), ("line", 0), ("off", 0)]),
        ("/copy c", [("code", 1)]),
        ("/exit ", []),
        ("see", []),
        ("/nothing x", []),
    ],
)
def test_tab_completes_commands_and_their_words(typed: str, offered: list[tuple[str, int]]) -> None:
    assert list(commands.completions(typed)) == offered


def test_paths_are_completed_where_a_command_takes_one() -> None:
    assert {"file", "save", "load", "export"} == commands.PATH_COMMANDS
