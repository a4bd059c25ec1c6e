"""No character that steers a terminal passes the filter, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkchat.terminal.sanitize import one_line, visible

RANGES = [
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F),
    (0x202A, 0x202E), (0x2066, 0x2069), (0xD800, 0xDFFF), (0xE0000, 0xE007F),
]  # fmt: skip
UNSAFE = frozenset(code for first, last in RANGES for code in range(first, last + 1))
TEXTS = st.text(st.characters(codec=None, exclude_categories=())) | st.text(
    st.sampled_from(sorted(map(chr, UNSAFE))) | st.sampled_from("ab\n\t[]\\é😀")
)


@given(TEXTS)
def test_nothing_unsafe_is_left(text: str) -> None:
    assert not UNSAFE & set(map(ord, visible(text)))


@given(TEXTS, st.lists(st.integers(0, 100)))
def test_it_does_not_matter_how_a_text_is_cut(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    assert "".join(map(visible, pieces)) == visible(text)


@given(st.text(st.characters(exclude_characters=list(map(chr, UNSAFE)))))
def test_all_other_text_passes_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_the_control_sequence_would_pass_without_the_filter() -> None:
    assert UNSAFE & set(map(ord, "\x1b[2J"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x08c\x7f", "a\\x0db\\x08c\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\U000e0041", "\\U000e0041"),
        ("\udcff", "\\udcff"),
        ("a\nb\tc", "a\nb\tc"),
        ("👨‍👩‍👧 ไทย [/INST] [bold]", "👨‍👩‍👧 ไทย [/INST] [bold]"),
    ],
)
def test_what_steers_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_is_written_out_can_be_dimmed() -> None:
    assert visible("a\x1bb", mark=lambda text: f"<{text}>") == "a<\\x1b>b"


def test_a_title_is_one_line() -> None:
    assert one_line(" a\n\n b\x07 ") == "a b\\x07"
