"""The laid out page: nothing but styles steers the terminal, and nothing that was written is lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkchat.terminal.drawing.markdown import render

SGR = re.compile(r"\x1b\[[0-9;]*m")
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
PIECES = st.sampled_from(
    [
        "\x1b]8;;http://a\x1b\\", "\x1b[2J", "\x9b", "\x07", "\u202e", "&#x202e;", "&#27;", "&#x9b;",
        "&#xe0041;", "&amp;",
        "[/INST]", "[bold]", "[link=x]", "<kbd>", "</kbd>", "\n", "\n\n", " ", "word", "# ", "> ", "- ", "1. ",
        "```py\n", "```", "`", "**", "*", "~~", "|", "|-|-|", "---", "\t", "    ", "é中😀",
        "[a](http://b)", "![a](b)", "[![a](b)](c)", "<http://a>", "[a]: b",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(st.characters(codec=None, exclude_categories=()))


@given(TEXTS, st.integers(0, 100), st.booleans())
def test_nothing_that_steers_comes_out_but_styles(text: str, columns: int, color: bool) -> None:
    page = render(text, columns=columns, color=color)
    assert not UNSAFE.search(SGR.sub("", page))
    assert color or not SGR.search(page)
    assert page.endswith("\n")


def test_character_references_are_where_it_would_come_out() -> None:
    from markdown_it import MarkdownIt

    assert UNSAFE.search(MarkdownIt().parse("&#x202e;")[1].content) is None
    assert UNSAFE.search(MarkdownIt().parse("&#x202e;")[1].children[0].content)


@pytest.mark.parametrize(
    "text", ["> " * 60 + "deep", "- " * 60 + "deep", "> - " * 3_000 + "deep", "*" * 500 + "deep", "[" * 500 + "deep"]
)
def test_deep_nesting_is_laid_out_all_the_same(text: str) -> None:
    assert "deep" in render(text, columns=40, color=True).replace("\n", "")


def test_text_that_is_nested_deeper_than_the_page_is_wide_stays_as_it_was_written() -> None:
    assert render("> " * 60 + "deep\x1b", columns=300, color=True) == "> " * 60 + "deep\\x1b\n"


@given(st.lists(PIECES.filter(lambda piece: "```" not in piece), max_size=40).map("".join))
def test_no_word_is_lost(text: str) -> None:
    assert render(text, columns=4_000, color=False).count("word") == text.count("word")


def page(text: str, columns: int = 60) -> str:
    return render(text, columns=columns, color=False)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo", "one\ntwo\n"),
        ("<b>x</b>\n\n<think>y</think>", "<b>x</b>\n\n<think>y</think>\n"),
        ("[/INST] [bold]x[/bold] :smile:", "[/INST] [bold]x[/bold] :smile:\n"),
        ("[1]: http://a.b\n\n[x][1]", "[1]: http://a.b\n\n[x][1]\n"),
        ("see [the **page**](http://a.b/c_d_e)", "see the page (http://a.b/c_d_e)\n"),
        ("see <http://a.b>", "see http://a.b\n"),
        ("a ![pic](b.png) c", "a pic (b.png) c\n"),
        ("a\x1b[2J &#x202e;b", "a\\x1b[2J \\u202eb\n"),
        ("# H\n\n> q\n\n1. a\n   - b\n", "H\n\n▌ q\n\n 1 a\n    • b\n"),
        ("```py\nif x:\n\n    y\n```", "  if x:\n\n      y\n"),
        ("```nonsense\n[red]\n```", "  [red]\n"),
        ("|a|b|\n|-|-|\n|c|d|", "a  b\n────\nc  d\n"),
        ("", "\n"),
    ],
)
def test_pages(text: str, lines: str) -> None:
    assert page(text) == lines


def test_the_page_is_as_wide_as_was_asked() -> None:
    text = "word " * 40 + "\n\n> " + "word " * 40 + "\n\n```\n" + "code " * 40 + "\n```\n\n- " + "word " * 40
    widths = {columns: max(map(len, page(text, columns).splitlines())) for columns in (30, 60, 100)}
    assert all(columns - 5 <= width <= columns for columns, width in widths.items()), widths


def test_only_the_sixteen_colours_are_used_and_no_background() -> None:
    text = "# H\n**b** `c` [l](m)\n> q\n\n```py\nx = 'y' # z\n1\n```\n- [ ] i\n\n---\n"
    codes = {
        int(code) for found in SGR.findall(render(text, columns=60, color=True)) for code in found[2:-1].split(";")
    }
    assert codes == {0, 1, 2, 3, 4, 36}
