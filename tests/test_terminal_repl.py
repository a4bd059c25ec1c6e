"""The conversation at a prompt: whole transcripts from scripted lines, and real keys on a real terminal."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import ScriptedConversation
from terminals import ALT_ENTER, CTRL_D, CTRL_J, PASTE, PASTED, at_the_prompt
from worlds import Terminal

from sinkchat.chat.options import ChatOptions
from sinkchat.errors import CacheFull, ExitStatus, ModelNotFound
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing.choice import PanelChoice
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.person import Look, PersonView
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.slash.desk import Desk


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


class Room:
    """A prompt, a screen without a cursor and a clock that stands still."""

    def __init__(
        self,
        conversation: ScriptedConversation | None = None,
        *,
        look: Look | None = None,
        awaited: Callable[[], Conversation] | None = None,
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        self.conversation = conversation or ScriptedConversation()
        self.stream = Terminal()
        self.now = 0.0
        choice = PanelChoice()
        screen = Screen(self.stream, clock=self._clock)
        self.repl = Repl(
            Desk(awaited or (lambda: self.conversation), panel=choice),
            screen=screen,
            view=PersonView(
                screen,
                gauge=Gauge(clock=self._clock),
                choice=choice,
                look=look or Look(has_cursor=False),
                size=lambda: os.terminal_size((80, 24)),
                clock=self._clock,
            ),
            clock=self._clock,
            is_loading=is_loading,
        )

    def hears(self, *lines: str | None) -> tuple[ExitStatus, str]:
        self.lines = ScriptedLines(*lines)
        return self.repl.run(self.lines), self.stream.getvalue()

    def _clock(self) -> float:
        return self.now


def converse(
    *lines: str | None, conversation: ScriptedConversation | None = None, look: Look | None = None
) -> tuple[ExitStatus, str]:
    return Room(conversation, look=look).hears(*lines)


def test_an_answer_stands_alone_between_blank_lines() -> None:
    assert converse("hello", "and you") == (0, "you said: hello\n\nyou said: and you\n\n")


def test_with_stats_an_exact_memory_line_follows_an_answer() -> None:
    _, shown = converse("hello", look=Look(has_cursor=False, has_stats=True))
    memory = "pinned 5 + window 4/95 + forgotten 0 = seen 9 · 31.4 tok/s · first 0.42 s"
    assert shown == f"you said: hello\n{memory}\n\n"


def test_an_answer_that_ends_its_line_gets_no_second_end() -> None:
    assert converse("go", conversation=ScriptedConversation(lambda _: "a\nb\n"))[1] == "a\nb\n\n"


def test_what_leaves_memory_is_said_after_the_answer() -> None:
    conversation = ScriptedConversation(lambda _: "ok", capacity=14)
    _, shown = converse("a b c", "d e f g h", "i j k l m n", conversation=conversation)
    assert shown.split("\n") == [
        *("ok", ""),
        *("ok", "── turn 1 (75 % left) is leaving memory (1 token) ──", ""),
        *("ok", "── turn 1 has left memory (7 tokens) · turn 2 (33 % left) · /recall 1 ──", ""),
        "",
    ]
    assert conversation.state.evicted == 1 + 7


def test_a_quiet_person_is_told_of_no_loss() -> None:
    conversation = ScriptedConversation(lambda _: "ok", capacity=14)
    look = Look(has_cursor=False, is_quiet=True)
    assert converse("a b c", "d e f g h", conversation=conversation, look=look)[1] == "ok\n\nok\n\n"
    assert conversation.state.evicted == 1


def test_a_person_who_listens_hears_sentences() -> None:
    conversation = ScriptedConversation(lambda _: "ok", capacity=14)
    look = Look(has_cursor=False, is_accessible=True)
    _, shown = converse("a b c", "d e f g h", "i j k l m n", conversation=conversation, look=look)
    assert shown.split("\n") == [
        *("ok", ""),
        *("ok", "Memory: turn 1 begins to leave.", ""),
        *("ok", "Memory: turn 1 is now forgotten.", "Memory: turn 2 begins to leave.", ""),
        "",
    ]


def test_an_answer_that_was_cut_is_said_to_be_and_can_go_on() -> None:
    conversation = ScriptedConversation(lambda _: "one two three four")
    conversation.options = ChatOptions(max_tokens=2)
    _, shown = converse("go", "/continue", conversation=conversation)
    assert shown == (
        "one two \nnote: the answer was cut at 2 tokens; max-tokens sets the limit · /continue goes on\n\n"
        "and so \nnote: the answer was cut at 2 tokens; max-tokens sets the limit · /continue goes on\n\n"
    )


def test_a_long_message_is_said_to_be_too_long() -> None:
    conversation = ScriptedConversation(lambda _: "ok", capacity=20)
    _, shown = converse("word " * 100, conversation=conversation)
    first = "note: input is 105 tokens, memory holds 20: the answer sees only the last 15 (14 %)"
    assert shown.splitlines()[0] == first


@pytest.mark.parametrize("text", ["q", "h", "//", "/etc/passwd is a file", "[/INST]", "[bold]x", "\\["])
def test_a_message_is_said_as_it_was_typed(text: str) -> None:
    conversation = ScriptedConversation()
    _, shown = converse(text, conversation=conversation)
    assert conversation.heard == [text]
    assert shown == f"you said: {text}\n\n"


def test_an_unknown_command_is_not_sent() -> None:
    conversation = ScriptedConversation()
    _, shown = converse("/claer", conversation=conversation)
    assert (conversation.heard, shown) == ([], "error: unknown command /claer, did you mean /clear?\n")


def test_commands_answer_and_the_conversation_goes_on() -> None:
    _, shown = converse("/memory", "hi")
    assert shown == ("pinned 0 + window 0/100 + forgotten 0 = seen 0\nkeys and values: 100 KiB\n\nyou said: hi\n\n")


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
    assert shown == "error: the cache is full\n  try: /clear\nyou said: two\n\n"


def test_what_a_person_typed_is_made_harmless() -> None:
    conversation = ScriptedConversation()
    converse("a\x1b[2J\udcff", conversation=conversation)
    assert conversation.heard == ["a\\x1b[2J\\udcff"]


def test_a_draft_stands_on_the_next_line_and_only_there() -> None:
    room = Room()
    room.hears("hello", "/edit", "hullo")
    assert room.lines.drafts == ["", "", "hello", ""]
    assert room.conversation.heard == ["hello", "hullo"]
    assert room.conversation.latest == 1


def test_ctrl_c_forgets_a_draft() -> None:
    room = Room()
    room.hears("hello", "/edit", None, "other")
    assert room.lines.drafts == ["", "", "hello", "", ""]


def test_ctrl_c_while_the_model_is_loading_leaves() -> None:
    assert Room(is_loading=lambda: True).hears(None, "hello")[0] == 130


def test_ctrl_c_while_a_message_waits_for_the_model_leaves() -> None:
    def interrupted() -> Conversation:
        raise KeyboardInterrupt

    assert Room(awaited=interrupted, is_loading=lambda: True).hears("hello") == (130, "")


def test_help_and_the_panel_do_not_wait_for_the_model() -> None:
    def never() -> Conversation:
        raise AssertionError("asked for the model")

    status, shown = Room(awaited=never, is_loading=lambda: True).hears("/panel line", "/?", "/exit")
    assert status == 0
    assert shown.startswith("panel: line\n\n/help ")
    with pytest.raises(AssertionError, match="asked for the model"):  # the control
        Room(awaited=never).hears("/memory")


def test_what_was_wrong_with_the_model_ends_the_conversation() -> None:
    def failed() -> Conversation:
        raise ModelNotFound("no such model")

    with pytest.raises(ModelNotFound):
        Room(awaited=failed, is_loading=lambda: True).hears("hello")


def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("hello\r")
        assert program.shows("kv 9/100")
        assert program.rows == [
            "/help lists the commands, Ctrl-D leaves",
            "Echo-1 · float32 · cpu · cache 100 tokens, 5 pinned",
            "> hello",
            "you said: hello",
            ">",
            "kv 9/100 · 31 tok/s",
        ]
        program.type(CTRL_D)
        assert program.status() == 0
        assert program.rows[-1] == ">"  # the toolbar has gone with the prompt
        history = tmp_path / "sinkchat" / "history"
        assert history.stat().st_mode & 0o777 == 0o600
        assert "+hello" in history.read_text()


def test_no_history_keeps_nothing(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "sinkchat run --no-history --no-save") as program:
        program.type("secret\r")
        assert program.shows("kv 9/100")
        program.type(CTRL_D)
        assert program.status() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_message_of_several_lines(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type(f"one{CTRL_J}two{ALT_ENTER}three\r")
        assert program.shows("you said: one\ntwo\nthree")
        assert program.is_asked()
        program.type('"""four\rfive\r"""\r')
        assert program.shows("you said: four\nfive\n")


def test_tab_completes_and_paste_keeps_its_lines(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type("/mem\t")
        assert program.shows("> /memory")
        program.type("\r")
        assert program.shows("keys and values: 100 KiB")
        assert program.is_asked()
        program.type(f"{PASTE}first\r\nsecond\n{PASTED}\r")
        assert program.shows("you said: first\nsecond")


def test_a_megabyte_on_one_line_is_pasted_and_sent_whole(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, ECHO="got it") as program:
        text = "word " * 200_000
        began = time.monotonic()
        writer = threading.Thread(target=program.type, args=[f"about: {PASTE}{text}{PASTED}"])
        writer.start()
        assert program.shows("> about: [pasted 1 line, 200,000 tokens]")
        writer.join()
        program.type("\r")
        assert program.shows("got it")
        assert time.monotonic() - began < 15
        assert program.is_asked()
        program.type("/memory\r")
        assert program.shows("= seen 200,008")  # opening 5, about:, 200,000 words, got, it


@pytest.mark.parametrize("draft", ["", "some words"])
def test_ctrl_d_leaves_on_an_empty_line_only(draft: str, tmp_path: Path) -> None:
    with at_the_prompt(tmp_path) as program:
        program.type(f"{draft}{CTRL_D}")
        if draft:
            program.type("\r")
            assert program.shows(f"you said: {draft}")
            assert program.is_asked()
            program.type(CTRL_D)
        assert program.status() == 0


def test_a_pipe_then_the_keyboard(tmp_path: Path) -> None:
    with at_the_prompt(tmp_path, "echo 'some text' | sinkchat run m -i 'what is it?'") as program:
        assert program.shows("you said: some text\n")
        program.type("and now\r")
        assert program.shows("you said: and now")
        assert program.is_asked()
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
