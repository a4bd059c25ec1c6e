"""The pipe contract: whole transcripts, row by row of its table."""

import io
import json

import pytest
from scripted import ScriptedConversation
from worlds import KeyboardBytes, Terminal, sinkchat


def jsonl(*messages: tuple[str, str]) -> bytes:
    return "".join(json.dumps({"role": role, "content": text}) + "\n" for role, text in messages).encode()


def said(outcome: object) -> tuple[int, str, str]:
    return outcome.status, outcome.stdout, outcome.stderr  # type: ignore[attr-defined]


def test_all_of_stdin_is_one_message() -> None:
    outcome = sinkchat("run", b"first line\nsecond line\n")
    assert said(outcome) == (0, "you said: first line\nsecond line\n", "")


def test_the_prompt_comes_after_stdin_and_a_blank_line() -> None:
    outcome = sinkchat("run m 'what is it?'", b"some text\n")
    assert outcome.conversation.heard == ["some text\n\nwhat is it?"]
    assert said(outcome) == (0, "you said: some text\n\nwhat is it?\n", "")


def test_an_empty_stdin_with_a_prompt_is_the_prompt_alone() -> None:
    assert said(sinkchat("run m hello", b" \n")) == (0, "you said: hello\n", "")


@pytest.mark.parametrize("options", ["", "--input text", "--input lines", "--input jsonl", "--format jsonl"])
def test_an_empty_stdin_without_a_prompt_is_an_input_error(options: str) -> None:
    outcome = sinkchat(f"run {options}", b"\n")
    assert (outcome.status, outcome.stdout) == (5, "")
    assert outcome.stderr == (
        'error: stdin is empty and there is no PROMPT\n  try: sinkchat run smollm2 "What is a transformer?"\n'
    )


def test_a_terminal_with_a_prompt_gets_one_answer() -> None:
    assert said(sinkchat("run m hello", KeyboardBytes())) == (0, "you said: hello\n", "")


def test_a_terminal_on_stdin_alone_without_a_prompt_is_a_usage_error() -> None:
    outcome = sinkchat("run", KeyboardBytes())
    assert (outcome.status, outcome.stdout, outcome.requests) == (2, "", [])
    assert outcome.stderr.startswith("error: a conversation at the keyboard needs a terminal, and stdout is none\n")


def test_each_line_is_a_turn_and_blank_ones_are_none() -> None:
    outcome = sinkchat("run --input lines", b"one\n\n  \ntwo\r\nthree")
    assert said(outcome) == (0, "you said: one\n\nyou said: two\n\nyou said: three\n", "")


def test_a_prompt_after_lines_is_the_last_turn() -> None:
    assert sinkchat("run m four --input lines", b"one\n").conversation.heard == ["one", "four"]


def test_a_line_is_answered_before_the_next_has_come() -> None:
    heard_before_second: list[list[str]] = []
    conversation = ScriptedConversation()

    class Writer(io.BytesIO):
        lines = iter([b"one\n", b"two\n", b""])

        def read1(self, size: int | None = -1) -> bytes:
            heard_before_second.append(list(conversation.heard))
            return next(self.lines)

    sinkchat("run --input lines", Writer(), conversation=conversation)
    assert heard_before_second == [[], ["one"], ["one", "two"]]


def test_a_user_line_without_an_answer_gets_one_and_past_exchanges_are_read() -> None:
    stdin = jsonl(("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d"))
    outcome = sinkchat("run --input jsonl", stdin)
    assert said(outcome) == (0, "you said: c\n\nyou said: d\n", "")
    assert outcome.conversation.past == [("a", "b")]
    assert outcome.conversation.system == "be brief"


def test_a_transcript_that_asks_nothing_is_read_and_says_nothing() -> None:
    assert said(sinkchat("run --input jsonl", jsonl(("user", "a"), ("assistant", "b")))) == (0, "", "")


def test_a_system_prompt_that_was_given_wins_over_the_transcripts() -> None:
    outcome = sinkchat("run -s mine --input jsonl", jsonl(("system", "theirs"), ("user", "a")))
    assert outcome.conversation.system == "mine"
    assert outcome.stderr == "note: the system message of stdin line 1 is not used: --system was given\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"role": "bot", "content": "x"}', '"role" is "bot"; use system, user or assistant'),
        (b'{"content": "x"}', '"role" is missing; use system, user or assistant'),
        (b'{"role": ["user"], "content": "x"}', '"role" is ["user"]; use system, user or assistant'),
        (b'{"role": "user"}', '"content" is missing; use a text'),
        (b'{"role": "user", "content": {}}', '"content" is an object; use a text'),
        (b"[1, 2]", "a list where an object with role and content belongs"),
        (b"hello", "not JSON: expecting value at column 1"),
        (b'{"role": "system", "content": "x"}', "a system message must come before all others"),
        (
            b"[" * 100_000,
            "not JSON: nested too deeply",
        ),
    ],
)
def test_a_bad_line_is_named_and_what_was_answered_stays(line: bytes, error: str) -> None:
    stdin = jsonl(("user", "a"), ("user", "b")) + b"\n" + line
    outcome = sinkchat("run --input jsonl", stdin)
    assert (outcome.status, outcome.stdout) == (5, "you said: a\n")
    assert outcome.stderr == f"error: stdin line 4: {error}\n"


def test_an_answer_to_nothing_is_refused() -> None:
    outcome = sinkchat("run --input jsonl", jsonl(("assistant", "x")))
    assert outcome.stderr == "error: stdin line 1: this assistant message answers no user message\n"


def test_records_are_exact() -> None:
    conversation = ScriptedConversation(lambda text: "fine", capacity=16)
    outcome = sinkchat("run --input lines --format jsonl", b"a b c d e f\ng h i j k l\n", conversation=conversation)
    assert outcome.status == 0
    assert outcome.stdout.splitlines() == [
        '{"event": "start", "model": "Echo-1", "quant": "none", "device": "cpu", "cache_size": 16, "pinned": 5}',
        '{"event": "reply", "turn": 1, "text": "fine", "finish": "stop", "prompt_tokens": 6, "completion_tokens": 1, '
        '"ttft_s": 0.42, "tokens_per_s": 31.4, '
        '"memory": {"pinned": 5, "window": 7, "forgotten": 0, "seen": 12}}',
        '{"event": "evict", "tokens": 1, "turns": [], "forgotten": 1}',
        '{"event": "evict", "tokens": 1, "turns": [], "forgotten": 2}',
        '{"event": "evict", "tokens": 1, "turns": [], "forgotten": 3}',
        '{"event": "reply", "turn": 2, "text": "fine", "finish": "stop", "prompt_tokens": 6, "completion_tokens": 1, '
        '"ttft_s": 0.42, "tokens_per_s": 31.4, '
        '"memory": {"pinned": 5, "window": 11, "forgotten": 3, "seen": 19}}',
        '{"event": "end", "turns": 2, "memory": {"pinned": 5, "window": 11, "forgotten": 3, "seen": 19}}',
    ]


def test_the_sum_holds_in_every_record_of_a_long_run() -> None:
    stdin = b"".join(b"line %d has some words\n" % number for number in range(200))
    outcome = sinkchat("run --input lines --format jsonl", stdin, conversation=ScriptedConversation(capacity=40))
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    memories = [record["memory"] for record in records if "memory" in record]
    assert len(memories) == 201
    assert all(memory["pinned"] + memory["window"] + memory["forgotten"] == memory["seen"] for memory in memories)
    assert all(memory["pinned"] + memory["window"] <= 40 for memory in memories)
    gone = [turn for record in records if record["event"] == "evict" for turn in record["turns"]]
    assert gone == sorted(set(gone))


def test_records_carry_the_exact_characters_of_the_model() -> None:
    text = "caf\u00e9 \x1b[2J \u202e \x7f \x9b \U0001f600\n\n"
    outcome = sinkchat("run m hi --format jsonl", conversation=ScriptedConversation(lambda _: [text]))
    assert outcome.stdout.isascii()
    assert outcome.stdout.isprintable() or set(filter(lambda c: not c.isprintable(), outcome.stdout)) == {"\n"}
    assert json.loads(outcome.stdout.splitlines()[1])["text"] == text


def test_an_answer_that_was_cut_says_so() -> None:
    conversation = ScriptedConversation(lambda text: "one two three four")
    outcome = sinkchat("run m hi", conversation=conversation)
    assert outcome.stdout == "one two three four\n"
    from dataclasses import replace

    conversation.options = replace(conversation.options, max_tokens=2)
    outcome = sinkchat("run m hi", conversation=conversation)
    assert said(outcome) == (0, "one two \n", "note: the answer was cut at 2 tokens; max-tokens sets the limit\n")


def test_newlines_at_the_end_of_an_answer_become_one() -> None:
    replies = iter([["a", "\n", "\n"], [], ["\n", "b", "\n"]])
    conversation = ScriptedConversation(lambda text: next(replies))
    outcome = sinkchat("run --input lines", b"1\n2\n3\n", conversation=conversation)
    assert outcome.stdout == "a\n" + "\n" + "\n" + "\n" + "\nb\n"


def test_what_leaves_memory_is_told_on_stderr_and_not_when_quiet() -> None:
    stdin = b"a b c d e f g h i j\nk l m n o p q r s t\n"
    told = sinkchat("run --input lines", stdin, conversation=ScriptedConversation(lambda _: "ok", capacity=18))
    assert told.stderr == "note: turn 1 (18 % left) is leaving memory (9 tokens)\n"
    quiet = sinkchat("run -q --input lines", stdin, conversation=ScriptedConversation(lambda _: "ok", capacity=18))
    assert (quiet.stdout, quiet.stderr) == ("ok\n\nok\n", "")


def test_verbose_tells_what_is_loaded_and_remembered() -> None:
    conversation = ScriptedConversation(lambda _: "ok", notices=("float32, since this is a CPU",))
    assert sinkchat("run -v m hi", conversation=conversation).stderr == (
        "Echo-1 · float32 · cpu · cache 100 tokens, 5 pinned\n"
        "note: float32, since this is a CPU\n"
        "decoding: compiled\n"
        "pinned 5 + window 2/95 + forgotten 0 = seen 7 · 31.4 tok/s · first 0.42 s\n"
    )


def test_verbose_tells_anew_how_tokens_are_computed_when_that_changes() -> None:
    class Compiling(ScriptedConversation):
        """Its step is refused in the second answer."""

        @property
        def decoding(self) -> str:
            return "compiling" if self.state.seen < 8 else "not compiled: \x1b[31mno"

    told = sinkchat("run -v --input lines", b"hi\nhi\nhi\n", conversation=Compiling(lambda _: "ok")).stderr
    lines = [line for line in told.splitlines() if line.startswith("decoding")]
    assert lines == ["decoding: compiling", r"decoding: not compiled: \x1b[31mno"]


def test_an_input_that_is_too_long_says_what_the_answer_sees() -> None:
    stdin = b" ".join(b"w%d" % number for number in range(4_800))
    outcome = sinkchat("run m ok?", stdin, conversation=ScriptedConversation(lambda _: "ok", capacity=205))
    assert outcome.stdout == "ok\n"
    assert outcome.stderr.splitlines()[0] == (
        "note: input is 4,806 tokens, memory holds 205: the answer sees only the last 176 (4 %)"
    )


def test_an_input_that_just_fits_says_nothing() -> None:
    stdin = b" ".join(b"w" for _ in range(199))
    outcome = sinkchat("run", stdin, conversation=ScriptedConversation(lambda _: "ok", capacity=205))
    assert said(outcome) == (0, "ok\n", "")


def test_fit_error_stops_reading_as_soon_as_it_is_too_long() -> None:
    reads = 0

    class Endless(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            nonlocal reads
            reads += 1
            return b"word " * 50

    outcome = sinkchat("run --fit error", Endless(), conversation=ScriptedConversation(capacity=205))
    assert (outcome.status, outcome.stdout, reads) == (5, "", 5)
    assert outcome.stderr == (
        "error: input is more than the 200 tokens that memory can hold\n  try: --fit warn, or a larger --cache-size\n"
    )


def test_fit_error_lets_an_endless_conversation_of_short_turns_pass() -> None:
    stdin = b"some short line\n" * 50
    outcome = sinkchat("run -q --fit error --input lines", stdin, conversation=ScriptedConversation(capacity=30))
    assert (outcome.status, outcome.stdout.count("you said")) == (0, 50)


def test_bytes_that_are_not_text_are_counted_and_controls_are_shown() -> None:
    outcome = sinkchat("run", b"\xff\xfe\x00\xed\xa0\x80hi\n")
    assert outcome.conversation.heard == ["\ufffd\ufffd\\x00\ufffd\ufffd\ufffdhi"]
    assert outcome.stderr == "note: 5 bytes of stdin are not UTF-8 and were read as U+FFFD\n"


def test_the_message_does_not_depend_on_how_it_was_cut() -> None:
    data = "\ufeffé\r\n\n😀 [/INST]\x1b[2J\r\r\nend\n\n".encode() + b"\xf0\x9f"
    whole = sinkchat("run", data).conversation.heard
    assert whole == ["é\n\n😀 [/INST]\\x1b[2J\\x0d\nend\n\n\ufffd\ufffd"]
    for size in (1, 2, 3, 5):
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert sinkchat("run", pieces).conversation.heard == whole


@pytest.mark.parametrize("text", ["[/INST]", "[bold]x[/bold]", "\\[", "q", "//", "/help", "[link=x]"])
def test_nothing_in_a_text_is_markup_or_a_command(text: str) -> None:
    assert sinkchat("run", text.encode()).stdout == f"you said: {text}\n"


def test_escape_sequences_of_a_model_do_not_reach_stdout_however_they_are_cut() -> None:
    for pieces in (["\x1b]52;c;aGk=\x07"], ["\x1b", "]52;c;aGk=", "\x07"]):
        outcome = sinkchat("run m hi", conversation=ScriptedConversation(lambda _, pieces=pieces: pieces))  # type: ignore[misc]
        assert outcome.stdout == "\\x1b]52;c;aGk=\\x07\n"


def test_there_is_no_colour_in_a_pipe_and_none_on_a_terminal_that_wants_none() -> None:
    conversation = ScriptedConversation(lambda _: ["\x07"])
    assert sinkchat("run m hi", conversation=conversation).stdout == "\\x07\n"
    on_terminal = sinkchat("run m hi", conversation=conversation, stdout=Terminal())
    assert on_terminal.stdout == "\x1b[2m\\x07\x1b[0m\n"
    for variables in ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}):
        plain = sinkchat("run m hi", conversation=conversation, stdout=Terminal(), variables=variables)
        assert plain.stdout == "\\x07\n"
    forced = sinkchat("run m hi", conversation=conversation, variables={"FORCE_COLOR": "1"})
    assert forced.stdout == "\x1b[2m\\x07\x1b[0m\n"


def test_an_error_in_the_middle_leaves_whole_lines() -> None:
    from sinkchat.errors import CacheFull

    conversation = ScriptedConversation()
    conversation.fails = [CacheFull("the cache is full", hint="--policy sink")]
    outcome = sinkchat("run m hi", conversation=conversation)
    assert said(outcome) == (4, "", "error: the cache is full\n  try: --policy sink\n")


def test_reading_shows_its_progress_on_a_terminal_only() -> None:
    stdin = b"word " * 500
    outcome = sinkchat("run m ok", stdin, conversation=ScriptedConversation(lambda _: "ok"), stderr=Terminal())
    assert "reading 64 tokens · 64 tok/s · Ctrl-C stops" in outcome.stderr
    assert outcome.stderr.count("\r\x1b[2K") >= 2
    plain = sinkchat("run -q m ok", stdin, conversation=ScriptedConversation(lambda _: "ok"), stderr=Terminal())
    assert plain.stderr == ""
