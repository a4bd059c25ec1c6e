"""What `sessions list`, `show`, `export` and `rm` print of conversations that were kept."""

import io
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from worlds import Terminal, environment

from sinkchat.chat.outline import Outline
from sinkchat.chat.turns import Entry
from sinkchat.errors import ExitStatus, InputError, UsageError
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.pipe.exchanges import PastExchange, SystemLine, transcript
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.sessions import export_session, list_sessions, remove_sessions, show_session, store_of

BEGIN = {
    "op": "begin",
    "format": 1,
    "id": "work",
    "created": "2026-11-29 21:30",
    "model": {"name": "SmolLM2", "quant": "none", "dtype": "float32"},
    "memory": {"cache_size": 2048, "sinks": None, "evict": "turn", "policy": "sink"},
    "system": "Be brief.",
}
AT = time.mktime((2026, 11, 29, 21, 30, 5, 0, 0, -1))
SAID = [("hello", "hi"), ("a\nb \x1b[2J", "yes\u202e 🙂"), ("and é?", "no")]
PER_TURN = 10


def outline(latest: int, *, forgotten: int = 0) -> Outline:
    """Memory after so many turns of ten tokens, of which the first few have left."""
    turns = tuple(Entry(number, 4 + PER_TURN * (number - 1)) for number in range(1, latest + 1))
    window = tuple(range(PER_TURN * (latest - forgotten)))
    return Outline(
        pinned=(1, 2, 3, 4), to_pin=4, window=window, evicted=PER_TURN * forgotten, turns=turns, count=latest
    )


def records(said: list[tuple[str, str]] = SAID, *, forgotten: int = 0) -> list[dict]:
    lines, before = [BEGIN], None
    for number, (user, answer) in enumerate(said, start=1):
        after = outline(number, forgotten=min(forgotten, number - 1))
        lines += [{"op": "turn", "number": number}, {"op": "user", "text": user}, {"op": "answer", "text": answer}]
        lines.append({"op": "settled"} | after.difference(before))
        before = after
    return lines


def world(folder: Path, *, stdout: io.StringIO | None = None) -> Environment:
    return environment(io.BytesIO(), state_folder=folder, stdout=stdout)


def keep(where: Environment, name: str = "work", said: list[dict] | None = None, *, at: float = AT) -> Path:
    with store_of(where).create(name) as saved:
        for record in said if said is not None else records():
            saved.append(record)
    path = saved.folder / "00001.jsonl"
    os.utime(path, (at, at))
    return path


def out(where: Environment) -> str:
    text = where.stdout.getvalue()
    where.stdout.seek(0)
    where.stdout.truncate()
    return text


def err(where: Environment) -> str:
    return where.stderr.getvalue()


def test_a_list_has_a_line_for_each_the_latest_first(tmp_path):
    where = world(tmp_path)
    keep(where, "work")
    keep(where, "holiday", records([("Where is \x1b[2J it warm?", "Here.")]), at=AT + 3600)
    assert list_sessions(where, as_json=False) == ExitStatus.OK
    sizes = [f"{store_of(where).summary(name).nbytes} bytes" for name in ("holiday", "work")]
    sizes = [size if int(size.split()[0]) < 1024 else f"{int(size.split()[0]) / 1024:.2f} KiB" for size in sizes]
    width = max(map(len, [*sizes, "on disk"]))
    assert out(where) == (
        f"conversation  turns  model    last said         {'on disk':>{width}}  begins\n"
        f"holiday           1  SmolLM2  2026-11-29 22:30  {sizes[0]:>{width}}  Where is \\x1b[2J it warm?\n"
        f"work              3  SmolLM2  2026-11-29 21:30  {sizes[1]:>{width}}  hello\n"
    )


def test_a_list_as_json_is_ascii(tmp_path):
    where = world(tmp_path)
    path = keep(where, said=records([("é \x9b", "")]))
    list_sessions(where, as_json=True)
    text = out(where)
    assert text.isascii()
    nbytes = path.stat().st_size + (path.parent / "lock").stat().st_size
    summary = {"id": "work", "title": "é \x9b", "model": "SmolLM2", "turns": 1, "changed": AT, "nbytes": nbytes}
    assert json.loads(text) == [summary]


def test_an_empty_list_says_how_to_begin(tmp_path):
    where = world(tmp_path)
    list_sessions(where, as_json=False)
    assert (out(where), err(where)) == ("", "note: no conversation is saved yet: sinkchat run begins one\n")
    list_sessions(where, as_json=True)
    assert out(where) == "[]\n"


def test_a_conversation_is_shown_with_what_it_remembers_and_its_latest_turns(tmp_path):
    where = world(tmp_path)
    keep(where, said=records([("first", "of all"), *SAID], forgotten=2))
    assert show_session(where, "work") == ExitStatus.OK
    size = f"{store_of(where).summary('work').nbytes / 1024:.2f} KiB"
    assert out(where) == (
        "conversation  work\n"
        "model         SmolLM2, none, float32\n"
        "memory        cache 2,048 tokens, sinks auto, evict turn, policy sink\n"
        "system        Be brief.\n"
        "begun         2026-11-29 21:30\n"
        "last said     2026-11-29 21:30\n"
        "turns         4\n"
        "remembers     turns 3–4\n"
        f"on disk       {size}\n"
        "\nturn 2\n> hello\nhi\n"
        "\nturn 3\n> a b \\x1b[2J\nyes\\u202e 🙂\n"
        "\nturn 4\n> and é?\nno\n"
    )


def messages(said: list[tuple[str, str]] = SAID) -> list[dict[str, str]]:
    pairs = [({"role": "user", "content": u}, {"role": "assistant", "content": a}) for u, a in said]
    return [{"role": "system", "content": "Be brief."}, *(message for pair in pairs for message in pair)]


def test_json_lines_have_every_message_word_for_word(tmp_path):
    where = world(tmp_path)
    keep(where)
    assert export_session(where, "work", "jsonl") == ExitStatus.OK
    assert [json.loads(line) for line in out(where).splitlines()] == messages()
    assert err(where) == ""


def test_json_has_the_model_and_every_message(tmp_path):
    where = world(tmp_path)
    keep(where)
    export_session(where, "work", "json")
    about = {"model": "SmolLM2", "quant": "none", "dtype": "float32", "turns": 3}
    assert json.loads(out(where)) == about | {"messages": messages()}


def test_markdown_says_where_memory_begins(tmp_path):
    where = world(tmp_path)
    keep(where, said=records([("one", "1"), ("two", "2")], forgotten=1))
    export_session(where, "work", "md")
    assert out(where) == (
        "# A conversation with SmolLM2\n\n> Be brief.\n\n## Turn 1\n\n> one\n\n1\n"
        "\n---\n\n*Memory begins here: the turns above are forgotten.*\n\n## Turn 2\n\n> two\n\n2\n"
    )


def test_what_is_exported_and_read_and_exported_again_is_the_same(tmp_path):
    where = world(tmp_path)
    keep(where, said=records([("hello\n\n", "  hi"), ('"\\n\t é 🙂', "```\n1\n```"), ("why", "")]))
    export_session(where, "work", "jsonl")
    first = out(where)
    system, exchanges = None, []
    for exchange in transcript(Intake(io.BytesIO(first.encode()), waiting=nullcontext), None):
        match exchange:
            case SystemLine(text):
                system = text
            case PastExchange(user, answer):
                exchanges.append((user, answer))
    again = records(exchanges)
    again[0] = again[0] | {"system": system}
    keep(where, "again", again)
    export_session(where, "again", "jsonl")
    assert out(where) == first


def test_on_a_terminal_an_export_steers_nothing(tmp_path):
    where = world(tmp_path, stdout=Terminal())
    keep(where)
    export_session(where, "work", "md")
    text = out(where)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J" in text


def test_a_file_is_utf_8_wherever_it_is_written(tmp_path):
    kept = io.BytesIO()
    where = world(tmp_path, stdout=io.TextIOWrapper(kept, encoding="cp1252", errors="strict"))
    keep(where)
    export_session(where, "work", "jsonl")
    where.stdout.flush()
    assert [json.loads(line) for line in kept.getvalue().decode("utf-8").splitlines()] == messages()


def test_another_form_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--format pdf: use md, json or jsonl"):
        export_session(world(tmp_path), "work", "pdf")


def test_a_turn_in_flight_is_exported_as_far_as_it_came(tmp_path):
    where = world(tmp_path)
    begun = [*records(), {"op": "turn", "number": 4}]
    keep(where, "begun", begun)
    keep(where, "asked", [*begun, {"op": "user", "text": "why"}])
    keep(where, "cut", [*begun, {"op": "user", "text": "why"}, {"op": "answer", "text": "bec"}])
    for name, more in (("begun", []), ("asked", [("why", "")]), ("cut", [("why", "bec")])):
        export_session(where, name, "jsonl")
        assert [json.loads(line) for line in out(where).splitlines()] == messages([*SAID, *more])


def test_of_a_long_conversation_the_parts_that_are_kept_are_exported(tmp_path):
    where = world(tmp_path)
    path = keep(where)
    with store_of(where).open("work") as saved:
        saved.begin_part(BEGIN, {"op": "settled"} | outline(3).difference())
        saved.append({"op": "turn", "number": 4})
        saved.append({"op": "user", "text": "more"})
    export_session(where, "work", "jsonl")
    assert [json.loads(line) for line in out(where).splitlines()] == messages([*SAID, ("more", "")])
    path.unlink()
    export_session(where, "work", "md")
    assert out(where) == "# A conversation with SmolLM2\n\n> Be brief.\n\n## Turn 4\n\n> more\n\n\n"
    show_session(where, "work")
    assert "turns         4, the first 3 are not kept any more\n" in out(where)


@pytest.mark.parametrize("line", range(2, 13))
def test_of_a_damaged_conversation_all_that_stands_before_the_damage_is_exported(tmp_path, line):
    where = world(tmp_path)
    path = keep(where)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"op"', b'"oq"')
    path.write_bytes(b"".join(lines))
    assert export_session(where, "work", "jsonl") == ExitStatus.OK
    whole = (line - 2) // 4
    said = [message["content"] for message in map(json.loads, out(where).splitlines())]
    expected = [message["content"] for message in messages()]
    assert said[: 1 + 2 * whole] == expected[: 1 + 2 * whole]
    assert all(kept in ("", meant) for kept, meant in zip(said, expected, strict=False))
    turns = ["no turn before it is whole", "the turn before it is whole", "the 2 turns before it are whole"][whole]
    assert err(where) == f"note: {path} is damaged in line {line}: {turns}; what follows is left out\n"


def test_a_conversation_without_its_beginning_is_told_and_nothing_is_written(tmp_path):
    where = world(tmp_path)
    path = keep(where)
    path.write_bytes(b"damaged" + path.read_bytes())
    with pytest.raises(InputError) as error:
        export_session(where, "work", "md")
    assert error.value.message == (
        f"nothing can be read of work: {path} is damaged in line 1: no turn before it is whole"
    )
    assert error.value.hint == "sinkchat sessions rm work"
    assert out(where) == ""


def test_conversations_are_removed_and_named(tmp_path):
    where = world(tmp_path)
    for name in ("a", "b", "c"):
        keep(where, name)
    assert remove_sessions(where, ["a", "c", "a"]) == ExitStatus.OK
    assert (out(where), err(where)) == ("", "note: a is removed\nnote: c is removed\n")
    assert [summary.id for summary in store_of(where).saved()] == ["b"]


def test_none_is_removed_where_one_of_them_is_not_there(tmp_path):
    where = world(tmp_path)
    keep(where, "a")
    with pytest.raises(UsageError, match="there is no conversation x"):
        remove_sessions(where, ["a", "x"])
    assert "a" in store_of(where)


@pytest.mark.parametrize("act", [show_session, lambda where, name: export_session(where, name, "md")])
def test_an_unknown_conversation_is_told(tmp_path, act):
    with pytest.raises(UsageError, match="there is no conversation work") as error:
        act(world(tmp_path), "work")
    assert error.value.hint == "sinkchat sessions list"
