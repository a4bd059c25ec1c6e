"""The conversation at a prompt: whole transcripts from scripted lines, and real keys on a real terminal."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte
import pytest
from scripted import ScriptedConversation
from worlds import Terminal

from sinkchat.errors import CacheFull, ExitStatus
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.view import PersonView

TESTS = Path(__file__).parent
MEMORY = "· 31.4 tok/s · first 0.42 s"


class ScriptedLines:
    """Types one line after the other, then Ctrl-D. None is Ctrl-C."""

    def __init__(self, *lines: str | None) -> None:
        self._lines: Iterator[str | None] = iter(lines)
        self.drafts: list[str] = []

    def read(self, draft: str = "") -> str:
        self.drafts.append(draft)
        try:
            line = next(self._lines)
        except StopIteration:
            raise EOFError from None
        if line is None:
            raise KeyboardInterrupt
        return line


def converse(*lines: str | None, conversation: ScriptedConversation | None = None) -> tuple[ExitStatus, str]:
    stream = Terminal()
    screen = Screen(stream, clock=lambda: 0.0)
    repl = Repl(
        conversation or ScriptedConversation(), screen=screen, view=PersonView(screen, screen), clock=lambda: 0.0
    )
    return repl.run(ScriptedLines(*lines)), stream.getvalue()


def test_an_answer_is_followed_by_one_exact_memory_line() -> None:
    status, shown = converse("hello")
    assert status == 0
    assert shown == f"you said: hello\n\npinned 5 + window 4/95 + forgotten 0 = seen 9 {MEMORY}\n\n"


def test_what_leaves_memory_is_said_after_the_answer() -> None:
    _, shown = converse("a b c", "d e f g h", conversation=ScriptedConversation(lambda _: "ok", capacity=14))
    assert shown.splitlines()[6:8] == [
        f"pinned 5 + window 9/9 + forgotten 1 = seen 15 {MEMORY}",
        "── turn 1 (75 % left) is leaving memory (1 token) ──",
    ]


@pytest.mark.parametrize("text", ["q", "h", "//", "/etc/passwd is a file", "[/INST]", "[bold]x", "\\["])
def test_a_message_is_said_as_it_was_typed(text: str) -> None:
    conversation = ScriptedConversation()
    _, shown = converse(text, conversation=conversation)
    assert conversation.heard == [text]
    assert shown.startswith(f"you said: {text}\n\n")


def test_an_unknown_command_is_not_sent() -> None:
    conversation = ScriptedConversation()
    _, shown = converse("/claer", conversation=conversation)
    assert (conversation.heard, shown) == ([], "error: unknown command /claer, did you mean /clear?\n")


def test_commands_answer_and_the_conversation_goes_on() -> None:
    _, shown = converse("/memory", "hi")
    assert shown.startswith(
        "pinned 0 + window 0/100 + forgotten 0 = seen 0\nkeys and values: 100 KiB\n\nyou said: hi"
    )


def test_blank_lines_are_not_sent() -> None:
    assert converse("", "  ", "\n") == (0, "")


def test_leaving_by_command() -> None:
    assert converse("/q", "hello") == (0, "")


def test_ctrl_c_on_an_empty_line_gives_one_hint_and_never_leaves() -> None:
    status, shown = converse(None, None, None, "/clear", None)
    assert status == 0
    assert shown.count("Ctrl-D or /exit leaves\n") == 2


def test_an_error_is_told_and_the_conversation_goes_on() -> None:
    conversation = ScriptedConversation()
    conversation.fails = [CacheFull("the cache is full", hint="/clear")]
    status, shown = converse("one", "two", conversation=conversation)
    assert status == 0
    assert shown.startswith("error: the cache is full\n  try: /clear\nyou said: two\n")


def test_what_a_person_typed_is_made_harmless() -> None:
    conversation = ScriptedConversation()
    converse("a\x1b[2J\udcff", conversation=conversation)
    assert conversation.heard == ["a\\x1b[2J\\udcff"]


class Program:
    """The program on a terminal of 24 rows and 80 columns, as a person sees it."""

    def __init__(self, command: str, home: Path, **variables: str) -> None:
        self.screen = pyte.HistoryScreen(80, 24, history=1_000)
        self._stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            "bash",
            ["-c", command.replace("sinkchat", f"{sys.executable} {TESTS / 'echo_program.py'}")],
            dimensions=(24, 80),
            timeout=20,
            env={
                **os.environ,
                "PYTHONPATH": str(TESTS.parent),
                "XDG_STATE_HOME": str(home),
                "TERM": "xterm-256color",
                "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers a cursor position request here
                **variables,
            },
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *raised: object) -> None:
        self.child.close(force=True)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display if row.strip()]

    def shows(self, text: str, seconds: float = 20) -> bool:
        """Waits until `text` stands on the screen."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(pexpect.TIMEOUT, pexpect.EOF):
                self._stream.feed(self.child.read_nonblocking(65_536, timeout=0.05))
            if text in "\n".join(self.rows):
                return True
        return False

    def loses(self, text: str, seconds: float = 20) -> bool:
        """Waits until `text` stands on the screen no more."""
        until = time.monotonic() + seconds
        while self.shows(text, 0.2) and time.monotonic() < until:
            pass
        return text not in "\n".join(self.rows)

    def type(self, keys: str) -> None:
        self.child.send(keys)

    def status(self) -> int:
        self.child.expect(pexpect.EOF)
        self._stream.feed(self.child.before or b"")
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)


CTRL_C, CTRL_D, CTRL_J, ALT_ENTER = "\x03", "\x04", "\n", "\x1b\r"


def at_the_prompt(home: Path, command: str = "sinkchat run", **variables: str) -> Program:
    program = Program(command, home, **variables)
    assert program.shows("\n>"), program.rows
    return program


def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("hello\r")
        assert program.shows("forgotten 0")
        assert program.shows("first 0.42 s\n>")
        assert program.rows == [
            "Echo-1 · float32 · cpu · cache 100 tokens, 5 pinned",
            "/help lists the commands, Ctrl-D leaves",
            "> hello",
            "you said: hello",
            f"pinned 5 + window 4/95 + forgotten 0 = seen 9 {MEMORY}",
            ">",
        ]
        program.type(CTRL_D)
        assert program.status() == 0
        history = tmp_path / "sinkchat" / "history"
        assert history.stat().st_mode & 0o777 == 0o600
        assert "+hello" in history.read_text()


def test_no_history_keeps_nothing(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run --no-history") as program:
        program.type("secret\r")
        assert program.shows("forgotten 0")
        program.type(CTRL_D)
        assert program.status() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_message_of_several_lines(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type(f"one{CTRL_J}two{ALT_ENTER}three\r")
        assert program.shows("you said: one\ntwo\nthree")
        program.type('"""four\rfive\r"""\r')
        assert program.shows("you said: four\nfive\n")


def test_tab_completes_and_paste_keeps_its_lines(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("/mem\t")
        assert program.shows("> /memory")
        program.type("\r")
        assert program.shows("keys and values: 100 KiB")
        program.type("\x1b[200~first\r\nsecond\n\x1b[201~")
        program.type("\r")
        assert program.shows("you said: first\nsecond")


def test_a_megabyte_on_one_line_is_pasted_and_sent_whole(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="got it") as program:
        program.child.delaybeforesend = None
        text = "word " * 200_000
        program.child.write_to_stdout = None
        began = time.monotonic()
        writer = threading.Thread(target=lambda: program.child.send(f"about: \x1b[200~{text}\x1b[201~\r"))
        writer.start()
        assert program.shows("> about: [paste 1: 1,000,000 characters]")
        assert program.shows("got it")
        writer.join()
        assert time.monotonic() - began < 15
        assert program.shows("seen 200,0")


def test_ctrl_c_while_answering_keeps_the_part(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="word " * 200, TOKEN_SECONDS="0.05") as program:
        program.type("go\r")
        assert program.shows("word word")
        program.type(CTRL_C)
        assert program.shows("note: stopped: what was said so far is kept")
        time.sleep(2.1)
        program.type(CTRL_C)
        assert program.shows("Ctrl-D or /exit leaves")
        program.type("/turns\r")
        assert program.shows("go")
        program.type(CTRL_D)
        assert program.status() == 0


def test_ctrl_c_twice_while_answering_leaves(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="word " * 200, TOKEN_SECONDS="0.05") as program:
        program.type("go\r")
        assert program.shows("word word")
        program.type(CTRL_C)
        assert program.shows("is kept\n>")
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


def test_ctrl_c_while_reading_puts_the_text_back_on_the_line(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, TOKEN_SECONDS="0.3") as program:
        message = "tell me " + "x " * 200
        program.type(f"{message}\r")
        assert program.shows("reading 64 tokens")
        program.type(CTRL_C)
        assert program.loses("reading")
        assert program.shows("x x\n> tell me x x")
        time.sleep(2.1)
        program.type(CTRL_C)
        program.type("/memory\r")
        assert program.shows("pinned 0 + window 0/100 + forgotten 0 = seen 0")


def test_ctrl_c_while_typing_clears_the_line(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("not this")
        assert program.shows("not this")
        program.type(CTRL_C)
        program.type("but this\r")
        assert program.shows("you said: but this")
        assert not program.shows("not this", 0.3)


def test_ctrl_d_leaves_on_an_empty_line_only(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type(f"abc{CTRL_D}\r")
        assert program.shows("you said: abc")
        program.type(CTRL_D)
        assert program.status() == 0


def test_sigterm_at_the_prompt_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with at_the_prompt(
        tmp_path, f"stty -a > {tmp_path}/before; sinkchat run; echo $?; stty -a > {tmp_path}/after"
    ) as program:
        program.type("hel")
        assert program.shows("> hel")
        children = Path(f"/proc/{program.child.pid}/task/{program.child.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert program.shows("143")
        assert program.status() == 0
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()


def test_a_pipe_then_the_keyboard(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "echo 'some text' | sinkchat run m -i 'what is it?'") as program:
        assert program.shows("you said: some text\n")
        program.type("and now\r")
        assert program.shows("you said: and now")
        program.type(CTRL_D)
        assert program.status() == 0


def test_a_prompt_on_a_terminal_then_the_keyboard(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run -i m hello") as program:
        assert program.shows("you said: hello\n")
        program.type(CTRL_D)
        assert program.status() == 0


def test_escape_sequences_of_a_model_do_nothing_on_the_screen(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="\\x1b[2J\\x1b[31mred\\r\\x08") as program:
        program.type("go\r")
        assert program.shows("\\x1b[2J\\x1b[31mred\\x0d\\x08")
        assert "> go" in program.rows


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, TERM="dumb") as program:
        program.type("hello\r")
        assert program.shows("you said: hello")
        assert program.shows("seen 9")
        program.type(CTRL_D)
        assert program.status() == 0
