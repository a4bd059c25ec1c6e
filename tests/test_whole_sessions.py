"""Whole sessions at a terminal: keys in, a screen out. With a scripted conversation, or with a tiny real model."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminals import CTRL_C, CTRL_D, CTRL_U, CTRL_Z, ESCAPE, F2, TESTS, Program, at_the_prompt

TINY = "tiny_program.py"
BOX = "╭╮╰╯│"
NUMBERED = " ".join(f"word{number}" for number in range(1, 81))


def say(program: Program, line: str) -> list[str]:
    """Sends a line and waits for the next prompt; the rows that came in between."""
    asked = f"> {line}"[: program.screen.columns]
    before = program.all_rows.count(asked)
    program.type(f"{line}\r")
    assert program.waits(lambda: program.all_rows.count(asked) > before), program.rows
    assert program.is_asked(), program.rows
    rows = [row for row in program.all_rows if row]
    return rows[len(rows) - rows[::-1].index(asked) : len(rows) - 1 - rows[::-1].index(">")]


def memory(program: Program) -> str:
    return say(program, "/memory")[0]


def number_in(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with a tiny model, loaded once, as importing torch takes seconds."""
    with at_the_prompt(tmp_path_factory.mktemp("tiny"), program=TINY, size=(40, 400)) as program:
        yield program


@pytest.fixture
def tiny(loaded: Program) -> Program:
    """The same at the beginning of a conversation."""
    say(loaded, "/set max-tokens 12")
    say(loaded, "/clear")
    return loaded


def child_of(program: Program) -> int:
    """The process that a shell waits for."""
    return int(Path(f"/proc/{program.child.pid}/task/{program.child.pid}/children").read_text().split()[0])


def test_a_chat_past_its_memory_says_what_leaves_and_its_numbers_add_up(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, CAPACITY="30") as program:
        answers = [say(program, f"message number {turn}") for turn in range(1, 8)]
        asides = [row for rows in answers for row in rows if row.startswith("──")]
        gone = [int(turn) for row in asides for turn in re.findall(r"turn (\d+) has left", row)]
        lost = sum(number_in(r"\((\d+) tokens?\)", row) for row in asides)
        held = say(program, "/memory")
        turns = say(program, "/turns")
        bar = program.rows[-1]
    assert [rows[0] for rows in answers] == [f"you said: message number {turn}" for turn in range(1, 8)]
    assert len(asides) >= 3
    assert gone == list(range(1, gone[-1] + 1))
    assert len(gone) >= 2
    seen = 5 + 7 * (3 + 5)
    assert held[0] == f"pinned 5 + window {seen - lost - 5}/25 + forgotten {lost} = seen {seen}"
    assert held[1] == f"forgotten: turns 1–{gone[-1]}"
    assert bar == f"kv {seen - lost}/30 · forgot {lost} (turns 1–{gone[-1]}) · 31 tok/s"
    assert [row.split()[1] for row in turns[: len(gone)]] == ["forgotten"] * len(gone)
    assert asides[0].endswith(" · /recall 1 ──")


def test_what_is_taken_back_after_evictions_is_as_it_was_and_a_greedy_retry_the_same(tiny: Program) -> None:
    messages = [f"{'what is said here ' * 3}{turn}" for turn in range(1, 8)]
    for message in messages[:-1]:
        say(tiny, message)
    before = memory(tiny)
    answer = say(tiny, messages[-1])
    after = memory(tiny)
    assert any("has left memory" in row for row in tiny.all_rows)
    assert number_in(r"forgotten ([\d,]+)", after) > number_in(r"forgotten ([\d,]+)", before) > 0

    retried = say(tiny, "/retry")
    assert without_losses(retried) == without_losses(answer)
    assert memory(tiny) == after
    assert say(tiny, "/undo") == ["turn 7 taken back"]
    assert memory(tiny) == before
    assert say(tiny, messages[-1]) == answer
    assert memory(tiny) == after

    told = say(tiny, "/clear")
    assert told == ["a new conversation: nothing is remembered; /undo brings the old one back"]
    assert say(tiny, "/undo") == ["the old conversation is back"]
    assert memory(tiny) == after

    say(tiny, "/clear")
    other = say(tiny, messages[-1])  # the control: what is remembered matters
    assert without_losses(other) != without_losses(answer)


def without_losses(rows: list[str]) -> list[str]:
    return [row for row in rows if not row.startswith("──")]


def test_a_pinned_turn_stays_and_a_forgotten_one_comes_back(tiny: Program) -> None:
    say(tiny, "the key is 4711")
    for turn in range(2, 8):
        say(tiny, f"{'what is said here ' * 3}{turn}")
    turns = say(tiny, "/turns")
    assert turns[0].split()[:2] == ["1", "forgotten"]  # the control
    assert "4711" not in "".join(say(tiny, "/see"))

    recalled = say(tiny, "/recall 1")
    assert recalled[-2:] == [
        "turn 1 is remembered again, as turn 8",
        "── turns 3–4 have left memory (127 tokens) · /recall 3 ──",
    ]
    cost = number_in(r"reads (\d+) tokens, pushes out turns? ", recalled[0])
    assert "> user: the key is 4711" in say(tiny, "/see")
    tokens = cost - 2 - 1  # the end of the turn before belongs to that; a blank before the answer is weighed
    assert say(tiny, "/turns")[-1].split()[:3] == ["8", "held", str(tokens)]

    say(tiny, "/clear")
    say(tiny, "the key is 4711")
    pinned = say(tiny, "/pin 1")
    assert pinned[-1].startswith("turn 1 is pinned: pinned ")
    for turn in range(2, 8):
        say(tiny, f"{'what is said here ' * 3}{turn}")
    turns = say(tiny, "/turns")
    assert turns[0].split()[:2] == ["1", "pinned"]
    assert turns[1].split()[1] != "held"
    assert "the key is 4711" in "".join(say(tiny, "/see pinned"))


def test_ctrl_c_while_loading_leaves_at_once(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, LOAD_SECONDS="60") as program:
        assert program.shows("loading Echo-1 · what you type is sent when it is ready")
        began = time.monotonic()
        program.type(CTRL_C)
        assert program.status() == 130
        assert time.monotonic() - began < 5


def test_ctrl_c_while_loading_first_clears_what_was_typed(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, LOAD_SECONDS="60") as program:
        assert program.shows("loading Echo-1")
        program.type("not this")
        assert program.shows("> not this")
        program.type(CTRL_C)
        assert program.loses("not this")
        assert program.shows("loading Echo-1")
        program.type(CTRL_C)
        assert program.status() == 130


def test_ctrl_c_while_a_message_waits_for_the_model_leaves(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, LOAD_SECONDS="60") as program:
        assert program.shows("loading Echo-1")
        program.type("hello\r")
        assert program.shows("loading Echo-1 · Ctrl-C stops")
        program.type(CTRL_C)
        assert program.status() == 130


def test_what_is_typed_while_loading_is_sent_when_the_model_is_there(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, LOAD_SECONDS="1.5") as program:
        assert program.shows("loading Echo-1")
        program.type("hello\r")
        assert program.shows("you said: hello")
        assert program.is_asked()
        assert program.rows == [
            "/help lists the commands, Ctrl-D leaves",
            "> hello",
            "Echo-1 · float32 · cpu · cache 100 tokens, 5 pinned",
            "you said: hello",
            ">",
            "kv 9/100 · 31 tok/s",
        ]


def test_a_half_typed_line_stays_when_the_model_is_there(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, LOAD_SECONDS="1") as program:
        assert program.shows("loading Echo-1")
        program.type("hal")
        assert program.shows("5 pinned\n> hal\nkv 0/100")
        program.type("lo\r")
        assert program.shows("you said: hallo")


def test_a_load_that_fails_keeps_what_was_typed(tmp_path: Path) -> None:
    with Program("sinkchat run", tmp_path, program=TINY, LOAD_FAILS="no such model") as program:
        assert program.shows("loading tiny")
        program.type("a long thought")
        assert program.shows("> a long thought")
        assert program.status() == 3
        assert program.rows[-2:] == ["> a long thought", "error: no such model"]
    assert "+a long thought" in (tmp_path / "sinkchat" / "history").read_text()


def test_ctrl_c_while_reading_puts_the_text_back_on_the_line(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, TOKEN_SECONDS="0.3") as program:
        message = "tell me " + "x " * 200
        program.type(f"{message}\r")
        assert program.shows("reading 64 tokens")
        program.type(CTRL_C)
        assert program.loses("reading")
        assert program.shows("x x\n> tell me x x")
        program.type(CTRL_U)
        assert program.is_asked()
        assert memory(program) == "pinned 0 + window 0/100 + forgotten 0 = seen 0"


def test_ctrl_c_while_answering_keeps_the_part_and_the_next_turn_is_well_formed(tiny: Program) -> None:
    say(tiny, "/set max-tokens 200")
    tiny.type("slowly first\r")
    assert tiny.shows("tok/s · first ")
    tiny.type(CTRL_C)
    assert tiny.shows("note: stopped: what was said so far is kept · /continue goes on")
    assert tiny.is_asked()
    say(tiny, "/set max-tokens 5")
    say(tiny, "second")
    text = "\n".join(say(tiny, "/see"))
    first = text.index("first<|im_end|>\n<|im_start|>assistant\n")
    assert text.index("<|im_end|>\n<|im_start|>user\nsecond<|im_end|>\n<|im_start|>assistant\n", first + 9) > first


def test_ctrl_c_twice_while_answering_leaves(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="word " * 200, TOKEN_SECONDS="0.05") as program:
        program.type("go\r")
        assert program.shows("word word")
        program.type(CTRL_C)
        assert program.shows("/continue goes on\n>")
        program.type(CTRL_C)
        assert program.status() == 130


def test_ctrl_c_twice_in_the_middle_of_a_token_leaves_at_once(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="word word word", TOKEN_SECONDS="20") as program:
        program.type("go\r")
        assert program.shows("word")
        program.type(CTRL_C)
        time.sleep(0.2)
        program.type(CTRL_C)
        assert program.status() == 130
        assert not set(BOX) & set("".join(program.all_rows))


def test_ctrl_c_clears_a_line_and_on_an_empty_one_gives_a_hint(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("not this")
        assert program.shows("> not this")
        program.type(CTRL_C)
        assert program.loses("not this")
        program.type(CTRL_C)
        assert program.shows("Ctrl-D or /exit leaves")
        assert say(program, "but this") == ["you said: but this"]
        program.type(CTRL_D)
        assert program.status() == 0


def test_no_text_is_lost_when_the_window_changes_while_the_model_answers(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO=NUMBERED, TOKEN_SECONDS="0.02", CAPACITY="60") as program:
        program.type("go\r")
        for until, size in ((15, (20, 60)), (30, (30, 100)), (45, (18, 70)), (60, (40, 120))):
            assert program.writes(f"word{until} ")
            program.resize(*size)
        assert program.writes(NUMBERED)
        assert program.is_asked()
        held, forgot = number_in(r"kv (\d+)/60", program.rows[-1]), number_in(r"forgot (\d+)", program.rows[-1])
        assert held + forgot == 5 + 1 + 80
        assert program.rows.count(">") == 1


def test_ctrl_z_while_answering_gives_the_terminal_back_and_fg_goes_on(tmp_path: Path) -> None:
    script = "set -m; stty -g > before; sinkchat run; stty -g > stopped; sleep 1; fg; echo left $?; stty -g > after"
    with at_the_prompt(tmp_path, f"cd {tmp_path}; {script}", ECHO=NUMBERED, TOKEN_SECONDS="0.02") as program:
        program.type("go\r")
        assert program.shows("word20")
        assert program.shows("╭")
        program.type(CTRL_Z)
        assert program.shows("Stopped")
        assert not set(BOX) & set("\n".join(program.rows))
        assert program.shows("word80")
        assert program.is_asked()
        program.type(CTRL_D)
        assert program.shows("left 0")
        assert program.status() == 0
        before, stopped, after = ((tmp_path / name).read_text() for name in ("before", "stopped", "after"))
        assert before == stopped == after
        assert [int(number) for number in re.findall(r"word(\d+)", program.written)] == list(range(1, 81))


def test_ctrl_z_at_the_prompt_gives_the_terminal_back_and_fg_goes_on(tmp_path: Path) -> None:
    chat = f"{sys.executable} {TESTS / 'echo_program.py'} run"
    with Program("exec env PS1='$ ' bash --norc -i", tmp_path, HISTFILE="/dev/null", CHAT=chat) as program:
        assert program.shows("$")
        program.type(f"cd {tmp_path}; clear; stty -g > before; $CHAT\r")
        assert program.shows("kv 0/100")
        program.type("ab")
        assert program.shows("> ab")
        program.type(CTRL_Z)
        assert program.shows("Stopped")
        assert program.waits(lambda: program.rows[-1] == "$")
        assert "kv 0/100" not in program.rows
        program.type("stty -g > stopped; fg\r")
        assert program.waits(lambda: "> ab" in program.rows[-2:])
        program.type("c\r")
        assert program.shows("you said: abc")
        assert program.is_asked()
        program.type(CTRL_D)
        assert program.waits(lambda: program.rows[-1] == "$")
        program.type("stty -g > after; exit\r")
        assert program.status() == 0
        before, stopped, after = ((tmp_path / name).read_text() for name in ("before", "stopped", "after"))
        assert before == stopped == after


def test_ctrl_z_at_the_prompt_gives_every_mode_back(tmp_path: Path) -> None:
    """Under a shell that mends nothing: an interactive one would put IXON back by itself."""
    script = "set -m; stty -g > before; sinkchat run; stty -g > stopped; sleep 0.5; fg; echo left $?; stty -g > after"
    with at_the_prompt(tmp_path, f"cd {tmp_path}; {script}") as program:
        program.type("ab")
        assert program.shows("> ab")
        program.type(CTRL_Z)
        assert program.shows("Stopped")
        assert program.waits(lambda: "> ab" in program.rows[-2:])
        program.type("c\r")
        assert program.shows("you said: abc")
        assert program.is_asked()
        program.type(CTRL_D)
        assert program.shows("left 0")
        assert program.status() == 0
        before, stopped, after = ((tmp_path / name).read_text() for name in ("before", "stopped", "after"))
        assert before == stopped == after


def test_the_panel_stands_below_an_answer_and_goes_with_it(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO=NUMBERED, TOKEN_SECONDS="0.02") as program:
        program.type("go\r")
        assert program.shows("word20")
        assert program.waits(lambda: program.rows[-1].startswith("╰"))
        top, held, total, bottom = program.rows[-4:]
        assert top.startswith("╭─ turn 1 · nothing forgotten yet ─")
        assert re.fullmatch(r"│ S+│1+·+ │", held)
        assert re.match(r"│ pinned 5 \+ window \d+/95 \+ forgotten 0 = seen \d+ +│", total)
        assert bottom.endswith("KV 100 KiB ─╯")
        assert program.shows("word80")
        assert program.is_asked()
        assert not set(BOX) & set("".join(program.all_rows))
        assert [row for row in program.all_rows if "word" in row] == wrapped(NUMBERED, 80)


def wrapped(text: str, columns: int) -> list[str]:
    return [text[at : at + columns].rstrip() for at in range(0, len(text), columns)]


def test_f2_changes_the_panel_while_the_model_answers(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO=NUMBERED, TOKEN_SECONDS="0.03") as program:
        program.type("go\r")
        assert program.waits(lambda: program.rows[-1].startswith("╰"))
        program.type(F2)
        assert program.waits(lambda: program.rows[-1].startswith("kv "))
        assert not set(BOX) & set("".join(program.rows))
        program.type(F2)
        assert program.loses("kv ")
        program.type(F2)
        assert program.waits(lambda: program.rows[-1].startswith("╰"))
        assert program.shows("word80")
        assert program.is_asked()
        assert [row for row in program.all_rows if "word" in row] == wrapped(NUMBERED, 80)


def test_f2_changes_the_panel_at_the_prompt(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="word " * 40, TOKEN_SECONDS="0.03") as program:
        program.type(f"hello{F2}")
        assert program.shows("> hello\npanel: line · F2 changes it")
        assert program.shows("> hello\nkv 0/100")
        program.type("\r")
        assert program.shows("word word")
        assert program.waits(lambda: program.rows[-1].startswith("kv "))
        assert not set(BOX) & set("".join(program.rows))


def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, TOKEN_SECONDS="0.02", CAPACITY="400") as program:
        program.type(f"{NUMBERED}\r")
        assert program.shows("you said: word1 ")
        program.type("second\rthi")
        assert program.shows("> second")
        assert program.shows("you said: second")
        assert program.waits(lambda: program.rows[-2] == "> thi")
        assert f"you said: {NUMBERED}\n" in program.written
        program.type("rd\r")
        assert program.shows("you said: third")


def test_what_is_typed_before_the_first_token_waits_for_the_next_prompt(tiny: Program) -> None:
    tiny.type("slowly first\r")
    tiny.watch(0.2)  # for half a second nothing happens yet
    tiny.type("early\r")
    assert tiny.waits(lambda: tiny.all_rows.count("> early") == 1 and tiny.rows[-2] == ">")
    assert [row.split()[-1] for row in say(tiny, "/turns")] == ["first", "early"]


def test_a_dumb_terminal_gets_sentences_and_no_escape_sequence(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, TERM="dumb", CAPACITY="24", LOAD_SECONDS="0.5") as program:
        for turn in range(1, 5):
            assert program.waits(lambda: program.rows[-1] == ">")
            program.type(f"message number {turn}\r")
            assert program.shows(f"you said: message number {turn}")
        assert program.shows("Memory: turn 1 is now forgotten.")
        program.type(CTRL_D)
        assert program.status() == 0
        assert b"\x1b" not in program.raw.removeprefix(b"\x1b[?12l\x1b[?25h")  # what prompt_toolkit begins with


def test_accessible_is_sentences_on_any_terminal(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run --accessible", CAPACITY="24", TOKEN_SECONDS="0.02") as program:
        answers = [say(program, f"message number {turn}") for turn in range(1, 6)]
        assert [row for rows in answers for row in rows if "now forgotten" in row] == [
            "Memory: turn 1 is now forgotten.",
            "Memory: turn 2 is now forgotten.",
        ]
        assert not set(BOX) & set(program.raw.decode())
        assert "──" not in program.raw.decode()
        assert "\x1b7" not in program.raw.decode()  # no footer


def test_no_color_leaves_no_colour(tmp_path: Path) -> None:
    conversation = {"CAPACITY": "24", "ECHO": "a **bold** word and `code`", "TOKEN_SECONDS": "0.03"}
    dress = {}
    for name, variables in (("plain", {"NO_COLOR": "1"}), ("coloured", {})):
        with at_the_prompt(tmp_path, **conversation, **variables) as program:
            for line in ("message number 1", "message number 2", "/nothing"):
                say(program, line)
            dress[name] = set(re.findall(rb"\x1b\[([0-9;:]*)m", program.raw))
    assert dress["plain"] <= {b"", b"0"}
    assert {b"1", b"2"} <= dress["coloured"]  # the control


def test_ascii_draws_with_ascii_alone(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run --ascii", CAPACITY="24", TOKEN_SECONDS="0.05") as program:
        for turn in range(1, 5):
            program.type(f"message number {turn}\r")
            assert program.waits(lambda: program.rows[-1].startswith("+-"))
            assert program.is_asked()
        for command in ("/memory", "/turns", "/help", "/see edge"):
            say(program, command)
        assert "has left memory" in "".join(program.all_rows)
        assert program.raw.isascii(), {character for character in program.raw.decode() if not character.isascii()}


@pytest.mark.parametrize("form", ["line", "off"])
def test_the_panel_that_was_asked_for(form: str, tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, f"sinkchat run --panel {form}", ECHO="word " * 60, TOKEN_SECONDS="0.02") as program:
        program.type("go\r")
        assert program.shows("word word")
        if form == "line":
            assert program.waits(lambda: bool(re.match(r"kv \d+/100 · [\d.]+ tok/s", program.rows[-1])))
        assert program.is_asked()
        assert not set(BOX) & set(program.raw.decode())
        assert (program.rows[-1] == ">") == (form == "off")
        assert ("kv " in program.raw.decode()) == (form == "line")


def test_vi_keys(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run --vi") as program:
        program.type("abc def")
        assert program.shows("> abc def")
        program.type(ESCAPE)
        program.watch(0.7)  # a lone Escape is one only after a moment
        program.type("0dwix")
        assert program.shows("> xdef")
        program.type("\r")
        assert program.shows("you said: xdef")


def test_raw_shows_the_answer_as_it_is(tmp_path: Path) -> None:
    shown = {}
    for option in ("", "--raw"):
        with at_the_prompt(
            tmp_path, f"sinkchat run {option}", ECHO="a **bold** word", TOKEN_SECONDS="0.1"
        ) as program:
            assert say(program, "go") == ["a **bold** word"]
            shown[option] = program.raw.decode()
    assert "a **bold** word" in shown["--raw"]
    assert "a **bold** word" not in shown[""]  # the control: there are styles in between
    assert "╭" in shown[""]
    assert "╭" not in shown["--raw"]


def test_a_loaded_conversation_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, f"cd {tmp_path}; sinkchat run") as program:
        say(program, "first")
        assert say(program, "/save old.jsonl") == ["1 turn written to old.jsonl"]
        say(program, "second")
        say(program, "/clear")
        say(program, "third")
        assert say(program, "/load old.jsonl") == ["1 turn read: pinned 5 + window 4/95 + forgotten 0 = seen 9"]
        assert [row.split()[-1] for row in say(program, "/turns")] == ["first"]
        assert program.rows[-1].startswith("kv 9/100")
    lines = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text().splitlines()]
    assert lines == [{"role": "user", "content": "first"}, {"role": "assistant", "content": "you said: first"}]


@pytest.mark.parametrize(
    ("state", "number", "status"),
    [
        ("answering", signal.SIGHUP, 129),
        ("typing", signal.SIGHUP, 129),
        ("answering", signal.SIGTERM, 143),
        ("loading", signal.SIGTERM, 143),
    ],
)
def test_a_signal_leaves_the_terminal_as_it_was(state: str, number: int, status: int, tmp_path: Path) -> None:
    script = f"cd {tmp_path}; stty -g > before; sinkchat run; echo left $?; stty -g > after"
    seconds = "60" if state == "loading" else "0"
    with Program(script, tmp_path, LOAD_SECONDS=seconds, ECHO=NUMBERED, TOKEN_SECONDS="0.05") as program:
        assert program.shows("loading Echo-1" if state == "loading" else "kv 0/100")
        if state == "answering":
            program.type("go\r")
            assert program.shows("word10 ")
            assert program.shows("╭")
        else:
            program.type("hal")
            assert program.shows("> hal")
        os.kill(child_of(program), number)
        assert program.shows(f"left {status}")
        assert program.status() == 0
        assert not set(BOX) & set("".join(program.all_rows))
        assert not program.screen.cursor.hidden
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
