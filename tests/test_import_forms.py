"""The forms in which other programs write a conversation down: each is read, and what is wrong in it is named."""

import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted import ScriptedConversation
from worlds import sinkchat

from sinkchat.chat.events import Event, PromptProgress, PromptRead
from sinkchat.chat.messages import Message, read_messages
from sinkchat.errors import InputError, UsageError
from sinkchat.terminal.pipe.exchanges import PastExchange, Question, SystemLine, exchanges_of
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.slash import commands
from sinkchat.terminal.slash.desk import Desk, Draft

SYSTEM, ASKED, ANSWERED = ("system", "be brief"), ("user", "a\nb"), ("assistant", "")
SAID = [SYSTEM, ASKED, ANSWERED, ("user", "🙂")]
CHAT = [{"role": role, "content": text} for role, text in SAID]
PARTS = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in SAID]
NAMES = {"user": "human", "assistant": "gpt", "system": "system"}
SHAREGPT = [{"from": NAMES[role], "value": text} for role, text in SAID]
EXPORT = {"model": "m", "quant": "none", "dtype": "float32", "turns": 2, "messages": CHAT}

DOCUMENTS = {
    "messages": {"messages": CHAT},
    "our export": EXPORT,
    "parts": {"messages": PARTS},
    "a list": CHAT,
    "one in a list": [{"messages": CHAT}],
    "ShareGPT": {"id": "x", "conversations": SHAREGPT},
    "ShareGPT in a list": [{"id": "x", "conversations": SHAREGPT}],
    "ShareGPT as a list": SHAREGPT,
    "ShareGPT with roles": {"conversations": CHAT},
}


def read(text: str, source: str = "chat.json") -> list[Message]:
    return list(read_messages(Intake(io.BytesIO(text.encode()), waiting=nullcontext).lines(), source))


def said(text: str) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in read(text)]


def refusal(text: str) -> tuple[str, str]:
    with pytest.raises(InputError) as refused:
        read(text)
    return refused.value.message, refused.value.hint


def as_lines(messages: list[object]) -> str:
    return "".join(f"{json.dumps(message)}\n" for message in messages)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_document_is_read_on_one_line_or_on_many(document: object, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    assert said(text) == said(f"\n \n{text}\n\n") == SAID


def test_the_document_that_we_export_is_read() -> None:
    about = json.dumps({name: value for name, value in EXPORT.items() if name != "messages"})
    text = f'{about[:-1]}, "messages": [\n' + ",\n".join(map(json.dumps, CHAT)) + "\n]}\n"
    assert json.loads(text) == EXPORT
    assert said(text) == SAID


@pytest.mark.parametrize("messages", [CHAT, PARTS, SHAREGPT], ids=["chat", "parts", "ShareGPT"])
def test_a_message_a_line_is_read(messages: list[object]) -> None:
    assert said(as_lines(messages)) == said("\n" + as_lines(messages).replace("\n", "\r\n\r\n")) == SAID


def test_parts_are_lines_and_a_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "text", "text": "here"}]
    assert said(as_lines([{"role": "developer", "content": parts}])) == [("system", "look\nhere")]


def test_the_system_prompt_beside_the_messages_is_theirs() -> None:
    expected = [Message("system", "be brief", 'chat.json, "system"'), Message("user", "a", "chat.json, message 1")]
    assert read(json.dumps({"system": "be brief", "conversations": [{"from": "human", "value": "a"}]})) == expected
    assert read(json.dumps({"system": "", "messages": [{"role": "user", "content": "a"}]})) == expected[1:]


def test_places_are_lines_or_numbers() -> None:
    assert [message.place for message in read("\n" + as_lines(CHAT[:2]))] == ["chat.json line 2", "chat.json line 3"]
    places = [message.place for message in read(json.dumps(CHAT[:2], indent=1))]
    assert places == ["chat.json, message 1", "chat.json, message 2"]


def test_json_lines_are_given_as_they_arrive() -> None:
    arrived = 0

    def lines() -> Iterator[str]:
        nonlocal arrived
        for _ in range(3):
            arrived += 1
            yield json.dumps(CHAT[1])

    assert [arrived for _ in read_messages(lines(), "stdin")] == [1, 2, 3]


def test_a_document_is_checked_whole_before_its_first_message() -> None:
    messages = read_messages(json.dumps([*CHAT, {"role": "bot"}], indent=1).split("\n"), "stdin")
    with pytest.raises(InputError, match='stdin, message 5: "role" is "bot"; use system, user or assistant'):
        next(messages)


WHOLE = '{"messages": [{"role": "user", "content": "a"}]}'
KEEP_ONE = "keep one in a file: `head -n 1` takes the first line, `jq '.[0]'` the first in a list"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{WHOLE}\n\n{WHOLE}\n", "chat.json holds more than one conversation, a second begins in line 3"),
        ("[]\n[]", "chat.json holds more than one conversation, a second begins in line 2"),
        (f"[{WHOLE},\n{WHOLE}]", "chat.json holds more than one conversation, 2 in a list"),
    ],
)
def test_a_file_with_several_conversations_says_so_and_how_to_keep_one(text: str, error: str) -> None:
    assert refusal(text) == (error, KEEP_ONE)


def in_a_document(message: object) -> str:
    return json.dumps({"messages": [CHAT[0], message]})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            in_a_document({"role": "tool", "content": "x"}),
            ', message 2: "role" is "tool"; use system, user or assistant',
        ),
        (in_a_document({"content": "x"}), ', message 2: "role" is missing; use system, user or assistant'),
        (in_a_document({"from": "bing", "value": "x"}), ', message 2: "from" is "bing"; use system, human or gpt'),
        (in_a_document({"from": ["x"], "value": "x"}), ', message 2: "from" is ["x"]; use system, human or gpt'),
        (in_a_document({"from": "human", "text": "x"}), ', message 2: "value" is missing; use a text'),
        (in_a_document({"role": "assistant", "content": None}), ', message 2: "content" is null; use a text'),
        (in_a_document(["x"]), ", message 2: a list where an object with role and content belongs"),
        (
            in_a_document({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}),
            ', message 2: part 2 of "content" is of type "image_url"; only text can be read',
        ),
        (
            in_a_document({"role": "user", "content": [{"text": "x"}]}),
            ', message 2: part 1 of "content" has no type; only text can be read',
        ),
        (
            in_a_document({"role": "user", "content": [{"type": "text"}]}),
            ', message 2: "text" of part 1 of "content" is missing; use a text',
        ),
        (
            as_lines([{"role": "user", "content": ["x"]}]),
            ' line 1: part 1 of "content" is a text; use {"type": "text", "text": "..."}',
        ),
        (
            in_a_document({"role": "x" * 1000, "content": "x"}),
            f', message 2: "role" is "{"x" * 59}...; use system, user or assistant',
        ),
        ('{"messages": "x"}', ': "messages" is a text; use a list of messages'),
        ('{"conversations":\n {}}', ': "conversations" is an object; use a list of messages'),
        ('{"model":\n "x"}', ': an object without "messages", where a conversation belongs'),
        ('{"model": "x"}', ' line 1: "role" is missing; use system, user or assistant'),
        ("7", " line 1: a number where an object with role and content belongs"),
        ("\nhello", " line 2: not JSON: expecting value at column 1"),
        ('{"role": "user', " line 1: not JSON: unterminated string starting at at column 10"),
        (
            f"\n{WHOLE[:-1]},\n1}}",
            ": not JSON: expecting property name enclosed in double quotes at line 3, column 1",
        ),
        ('{"messages": [', ": not JSON: expecting value at line 1, column 15"),
        ("{\n" + "[" * 100_000, ": not JSON: expecting property name enclosed in double quotes at line 2, column 1"),
        ("[\n" + "[" * 100_000, ": not JSON: nested too deeply"),
        (f"[\n{'1' * 5000}]", ": not JSON: exceeds the limit"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, error: str) -> None:
    assert refusal(text)[0][: len(f"chat.json{error}")] == f"chat.json{error}"


def test_documents_one_after_the_other_are_told_from_lines() -> None:
    pretty = "\n".join(json.dumps(message, indent=1) for message in CHAT[:2])
    message, hint = refusal(pretty)
    assert message == "chat.json holds more than one JSON document: a second begins in line 5"
    assert hint == "keep one; or write a message a line, as `jq -c .` does"


TEXTS = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)


@given(JSON, st.lists(TEXTS, min_size=1), st.integers(0, 3))
@example({}, ["\u2028\x85\r"], 0)
def test_a_document_is_known_however_it_is_laid_out(about: object, texts: list[str], indent: int) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    document = {"about": about, "messages": messages}
    for ascii_only in (False, True):
        text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
        assert said(text) == [("user", text) for text in texts]


def test_messages_go_two_by_two() -> None:
    messages = [Message(role, text, f"line {n}") for n, (role, text) in enumerate([*SAID, ("user", "\x1b")], start=1)]
    exchanges = list(exchanges_of(messages))
    assert exchanges == [
        SystemLine("be brief", "line 1"),
        PastExchange("a\nb", ""),
        Question("🙂", place="line 4"),
        Question("\\x1b", place="line 5"),
    ]


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_pipe_takes_each_document(document: object) -> None:
    outcome = sinkchat("run --input jsonl", json.dumps(document, indent=1).encode())
    assert (outcome.status, outcome.stdout) == (0, "you said: 🙂\n")
    assert (outcome.conversation.system, outcome.conversation.past) == ("be brief", [("a\nb", "")])


def test_a_pipe_names_the_message_of_a_document_and_has_answered_nothing() -> None:
    outcome = sinkchat("run --input jsonl", json.dumps([*CHAT, {"role": "bot"}], indent=1).encode())
    assert (outcome.status, outcome.stdout, outcome.conversation.heard) == (5, "", [])
    assert outcome.stderr == 'error: stdin, message 5: "role" is "bot"; use system, user or assistant\n'


def test_a_system_prompt_that_comes_too_late_is_told_and_nothing_is_lost() -> None:
    begun = ScriptedConversation()
    list(begun.read("what was said", "yes"))
    outcome = sinkchat("run --input jsonl", json.dumps(CHAT, indent=1).encode(), conversation=begun)
    assert (begun.latest, begun.system, begun.said(1).user) == (3, None, "what was said")
    assert outcome.stderr == (
        "note: the system message of stdin, message 1 is not used: the conversation has begun before\n"
    )
    given = sinkchat("run -s mine --input jsonl", json.dumps(CHAT, indent=1).encode())
    assert given.stderr == "note: the system message of stdin, message 1 is not used: --system was given\n"


def loaded(conversation: ScriptedConversation, path: Path) -> list[object]:
    command = commands.parse(f"/load {path}")
    assert command is not None
    return list(commands.run(command, Desk(lambda: conversation)))


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_load_takes_each_document(document: object, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    conversation = ScriptedConversation()
    outputs = loaded(conversation, path)
    assert outputs[-2:] == ["1 turn read: pinned 3 + window 0/97 + forgotten 0 = seen 3", Draft("🙂")]
    assert (conversation.system, conversation.past) == ("be brief", [("a\nb", "")])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[\n]", "chat.json is empty"),
        (
            json.dumps([*CHAT, {"role": "bot"}]),
            'chat.json, message 5: "role" is "bot"; use system, user or assistant',
        ),
        (as_lines([*CHAT, {"role": "bot"}]), 'chat.json line 5: "role" is "bot"; use system, user or assistant'),
        (f"{WHOLE}\n{WHOLE}", "chat.json holds more than one conversation, a second begins in line 2"),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text, encoding="utf-8")
    conversation = ScriptedConversation()
    list(conversation.send("hello"))
    with pytest.raises(InputError) as refused:
        loaded(conversation, path)
    assert refused.value.message == error
    assert refused.value.hint
    assert (conversation.latest, conversation.past) == (1, [])


def test_a_file_without_a_system_prompt_is_not_read_under_that_of_another(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(as_lines([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))
    conversation = ScriptedConversation()
    conversation.set_system("be brief")
    assert [output for output in loaded(conversation, path) if isinstance(output, str)] == [
        "this conversation had no system prompt, so the one that was set is none of it; /system sets it again",
        "1 turn read: pinned 2 + window 0/98 + forgotten 0 = seen 2",
    ]
    assert conversation.system is None


def test_bytes_that_are_not_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'{"role": "user", "content": "\xff"}\n')
    outputs = loaded(ScriptedConversation(), path)
    assert outputs[0] == "1 byte of chat.jsonl is not UTF-8 and was read as U+FFFD"
    assert outputs[-1] == Draft("\ufffd")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is a device or a pipe, not a file"):
        loaded(ScriptedConversation(), tmp_path / "pipe")


def many(path: Path, count: int, words: str) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            for role in ("user", "assistant"):
                file.write(json.dumps({"role": role, "content": f"{words}{number}"}) + "\n")
    return path


def test_a_long_conversation_is_announced_and_read_as_one(tmp_path: Path) -> None:
    path = many(tmp_path / "chat.jsonl", 120, "word " * 40)
    conversation = ScriptedConversation(capacity=50)
    outputs = loaded(conversation, path)
    assert outputs[0] == "reads 120 turns · Ctrl-C stops"
    seen = 5 + 120 * 82
    assert outputs[-1] == f"120 turns read: pinned 5 + window 42/45 + forgotten {seen - 47:,} = seen {seen:,}"
    progress = [output for output in outputs if isinstance(output, PromptProgress)]
    assert not [output for output in outputs if isinstance(output, PromptRead)]
    assert [each.read for each in progress] == sorted(each.state.seen for each in progress)
    assert [each.seconds for each in progress] == sorted(each.seconds for each in progress)
    assert progress[-1].read > seen - 82


class Forgetful(ScriptedConversation):
    """Reads, and keeps nothing of it."""

    exchanges = 0

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        self.exchanges += 1
        yield from ()


def test_a_big_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = many(tmp_path / "chat.jsonl", 5_000, "word " * 100)
    conversation = Forgetful()
    tracemalloc.start()
    try:
        loaded(conversation, path)
        _, most = tracemalloc.get_traced_memory()
        held = list(exchanges_of(read(path.read_text(encoding="utf-8"))))  # the control
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert conversation.exchanges == len(held) == 5_000
    assert most < 1_000_000 < 4_000_000 < now
