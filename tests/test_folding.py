"""Placeholders: what they say, that they give back what they stand for, and which files may have one."""

import os
from pathlib import Path

import pytest

from sinkchat.chat.options import Weight
from sinkchat.errors import UsageError
from sinkchat.terminal.line.folding import Folds, TextFile, read_file

LINES = "".join(f"line {number}\n" for number in range(212))


def weighed(*pushed_out: int) -> Folds:
    return Folds(lambda text: Weight(len(text.split()), pushed_out))


@pytest.mark.parametrize(
    ("folds", "text", "placeholder"),
    [
        (Folds(), LINES, "[pasted 212 lines, 1,798 characters]"),
        (Folds(), LINES.rstrip("\n"), "[pasted 212 lines, 1,797 characters]"),
        (weighed(), LINES, "[pasted 212 lines, 424 tokens]"),
        (weighed(4, 5, 6), LINES, "[pasted 212 lines, 424 tokens: pushes out turns 4–6]"),
        (weighed(4), LINES, "[pasted 212 lines, 424 tokens: pushes out turn 4]"),
        (weighed(1), "x" * 4_001, "[pasted 1 line, 1 token: pushes out turn 1]"),
        (weighed(), "word " * 200_000, "[pasted 1 line, 200,000 tokens]"),
        (weighed(), "x" * 3_000_000, "[pasted 1 line, 3,000,000 characters]"),  # too long to be weighed at once
        (weighed(), "1\n2\n3\n4\n5\n6\n7\n8\n", "1\n2\n3\n4\n5\n6\n7\n8\n"),
        (weighed(), "1\n2\n3\n4\n5\n6\n7\n8\n9", "[pasted 9 lines, 9 tokens]"),
        (weighed(), "x" * 4_000, "x" * 4_000),
    ],
)
def test_what_stands_on_the_line(folds: Folds, text: str, placeholder: str) -> None:
    assert folds.pasted(text) == placeholder
    assert folds.unfolded(f"see {placeholder}!") == f"see {text}!"


def test_equal_words_for_different_texts_are_told_apart() -> None:
    folds = weighed()
    first, second, third = "a\n" * 9, "b\n" * 9, "c\n" * 9
    line = "".join(folds.pasted(text) for text in (first, second, third, first))
    assert line == (
        "[pasted 9 lines, 9 tokens][pasted 9 lines, 9 tokens #2]"
        "[pasted 9 lines, 9 tokens #3][pasted 9 lines, 9 tokens]"
    )
    assert folds.unfolded(line) == first + second + third + first


def test_a_placeholder_inside_a_text_is_not_unfolded() -> None:
    folds = weighed()
    inner = folds.pasted("a\n" * 9)
    outer = folds.pasted(f"{inner}\n" * 9)
    assert folds.unfolded(outer) == f"{inner}\n" * 9


def test_a_changed_placeholder_stands_for_nothing() -> None:
    folds = weighed()
    whole = folds.pasted(LINES)
    for changed in (whole[:-1], whole[1:], whole.replace("212", "213"), whole.upper()):
        assert folds.unfolded(changed) == changed
    assert folds.unfolded(whole) == LINES


def test_what_no_line_needs_is_forgotten() -> None:
    folds = weighed()
    kept, dropped = folds.pasted("a\n" * 9), folds.pasted("b\n" * 10)
    folds.keep([f"see {kept}", "another line"])
    assert folds.unfolded(kept + dropped) == "a\n" * 9 + dropped


def test_folding_again_undoes_unfolding() -> None:
    folds = weighed()
    line = f"one {folds.pasted(LINES)} two {folds.attached(TextFile('a', 'o', 0))}"
    assert folds.folded(folds.unfolded(line)) == f"one {folds.pasted(LINES)} two o"


def test_a_file_stands_on_the_line_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "my notes.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\nand a second line \xff\x00\x1b[31m\n")
    file = read_file(str(path))
    assert file == TextFile("my notes.txt", "one\nand a second line \ufffd\\x00\\x1b[31m\n", bad_bytes=1)
    folds = weighed(4, 5, 6)
    assert folds.attached(file) == "[file my notes.txt: 2 lines, 6 tokens: pushes out turns 4–6]"
    assert folds.unfolded(folds.attached(file)) == file.text


def test_a_file_name_cannot_steer_the_terminal_or_fill_it() -> None:
    assert weighed().attached(TextFile("a\x1b[2J\nb", "x", 0)) == "[file a\\x1b[2J b: 1 line, 1 token]"
    assert weighed().attached(TextFile("n" * 300, "x", 0)) == f"[file {'n' * 39}…: 1 line, 1 token]"


@pytest.mark.parametrize("typed", ["~/my notes.txt", "~/my\\ notes.txt", "'{}/my notes.txt'", '"{}/my notes.txt"'])
def test_a_name_may_be_typed_as_for_a_shell(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my notes.txt").write_text("hello")
    assert read_file(typed.format(tmp_path)).text == "hello"


def refused(typed: object) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        read_file(str(typed))
    return caught.value.message, caught.value.hint


def test_what_cannot_be_a_message_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "photo.png").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "utf16.txt").write_text("hello", encoding="utf-16")
    (tmp_path / "empty").touch()
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(3 * 2**30)
    os.mkfifo(tmp_path / "pipe")
    there = f"{tmp_path}/"
    assert refused(f"{there}note.txt") == (f"there is no file {there}note.txt", f"did you mean {there}notes.txt?")
    assert refused(f"{there}a/b") == (f"there is no file {there}a/b", "Tab after /file completes paths")
    assert refused(tmp_path) == (f"{tmp_path} is a folder", f"/file {there} and Tab lists what is in it")
    assert refused(f"{there}pipe") == (f"{there}pipe is a device or a pipe, not a file", "")
    assert refused(f"{there}empty") == (f"{there}empty is empty", "")
    assert refused(f"{there}huge") == (
        f"{there}huge is 3.00 GiB, and a message holds 64.0 MiB",
        f"sinkchat run < {there}huge reads it in constant memory",
    )
    message, hint = refused(f"{there}photo.png")
    assert message == f"{there}photo.png is not UTF-8 text: 624 of 1,024 characters cannot be read as such"
    assert hint == "iconv -f UTF-16 -t UTF-8 turns one kind of text into the other"
    assert refused(f"{there}utf16.txt")[0].startswith(f"{there}utf16.txt is not UTF-8 text: 7 of 12 characters")
    assert refused(f"{there}a\0b")[0].startswith(f"{there}a\\x00b cannot be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    assert refused(tmp_path / "secret") == (f"{tmp_path}/secret cannot be read: permission denied", "")
