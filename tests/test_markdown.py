"""Light Markdown: every character stays, however the text arrives; what is a span looks like one."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sinkchat.terminal.drawing.markdown import LightMarkdown, PlainText, StreamedText, code_blocks
from sinkchat.terminal.drawing.spans import LIMIT
from sinkchat.terminal.sanitize import visible

SGR = re.compile(r"\x1b\[[0-9;]*m")
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
TAGS = {"0": "</>", "1": "<b>", "2": "<dim>", "3": "<i>", "36": "<c>", "1;3": "<bi>", "1;36": "<bc>", "3;36": "<ic>"}

PIECES = st.sampled_from(
    [
        "_", "*", "**", "***", "`", "``", "```", "~~~", "#", ">", "-", "+", "1.", "\\", "\n", "\n\n",
        " ", " ", "\t", "\r",
        "a", "b", "1", "é", "中", "(", ")", "://", "word", "snake_case", "\x1b", "\x1b[31m", "\x9b", "\u202e",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=60).map("".join) | st.text(st.characters(codec=None, exclude_categories=()))
LONG = st.lists(
    st.sampled_from(["*", "_", "`", "```", "# ", "> ", "- ", "\n", "word ", "x" * 30, "x" * 79]), max_size=20
)
ANY = TEXTS | LONG.map("".join)
CUTS = st.lists(st.integers(0, 300))


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in pairwise(places)]


def shown(text: str, light: StreamedText | None = None) -> str:
    light = light or LightMarkdown()
    return light.push(text) + light.flush()


def tagged(text: str) -> str:
    return re.sub(r"\x1b\[([0-9;]*)m", lambda found: TAGS[found[1]], shown(text))


@given(ANY, CUTS)
def test_without_its_styles_what_comes_out_is_what_went_in(text: str, cuts: list[int]) -> None:
    light = LightMarkdown()
    out = "".join(map(light.push, pieces_of(text, cuts))) + light.flush()
    assert SGR.sub("", out) == visible(text)


@given(ANY, CUTS)
def test_it_does_not_matter_how_a_text_is_cut(text: str, cuts: list[int]) -> None:
    light = LightMarkdown()
    assert "".join(map(light.push, pieces_of(text, cuts))) + light.flush() == shown(text)


@given(ANY)
def test_a_text_may_come_by_the_character(text: str) -> None:
    light = LightMarkdown()
    assert "".join(map(light.push, text)) + light.flush() == shown(text)


def test_it_would_matter_if_each_piece_were_a_text_of_its_own() -> None:
    assert shown("**bo") + shown("ld**") != shown("**bold**")


@given(ANY, CUTS)
def test_nothing_that_steers_comes_out_but_styles(text: str, cuts: list[int]) -> None:
    light = LightMarkdown()
    for out in [*map(light.push, pieces_of(text, cuts)), light.flush()]:
        assert not UNSAFE.search(SGR.sub("", out))


@given(ANY, CUTS)
def test_no_style_is_on_at_the_end_of_a_line_or_of_anything_given_out(text: str, cuts: list[int]) -> None:
    light = LightMarkdown()
    for out in [*map(light.push, pieces_of(text, cuts)), light.flush()]:
        for line in out.split("\n"):
            assert (SGR.findall(line) or ["\x1b[0m"])[-1] == "\x1b[0m"


def pieces_held(text: str) -> list[str]:
    """What is held after each character."""
    light, out, held = LightMarkdown(), "", []
    taken_when = {len(visible(text[:taken])): taken for taken in range(len(text) + 1)}
    for seen, character in enumerate(text, start=1):
        out += light.push(character)
        held.append(text[taken_when[len(SGR.sub("", out))] : seen])
    return held


@given(ANY)
def test_what_is_held_is_short_and_within_one_line(text: str) -> None:
    held = pieces_held(text)
    assert not any("\n" in piece for piece in held)
    assert max(map(len, held), default=0) <= LIMIT


@pytest.mark.parametrize("start", ["", "```\n", "> ```\n", "# ", "> ", "**", "`", "```", "~~~", "- "])
@pytest.mark.parametrize("filler", ["x", "`", "*", "_", "-", "- ", "~", "#", "1", "\\", ">", " "])
def test_nothing_makes_it_hold_more(start: str, filler: str) -> None:
    text = start + filler * 200
    assert max(map(len, pieces_held(text))) <= LIMIT
    light = LightMarkdown()
    assert "".join(map(light.push, text)) + light.flush() == shown(text)


def test_plain_words_are_not_held() -> None:
    assert LightMarkdown().push("Words, as they come") == "Words, as they come"


@pytest.mark.parametrize("text", ["**bold", "`code", "# A heading", "```python", "> a quote", "1."])
def test_what_is_held_comes_when_the_text_breaks_off(text: str) -> None:
    light = LightMarkdown()
    at_once = SGR.sub("", light.push(text))
    assert at_once != text
    assert at_once + SGR.sub("", light.flush()) == text
    assert light.flush() == ""


def test_after_a_flush_the_next_text_begins_anew() -> None:
    light = LightMarkdown()
    shown("```\ncode", light)
    assert shown("plain `x`", light) == shown("plain `x`")


@pytest.mark.parametrize(
    ("text", "dressed"),
    [
        ("a **b c** d", "a <dim>**</><b>b c</><dim>**</> d"),
        ("*it*, _it_.", "<dim>*</><i>it</><dim>*</>, <dim>_</><i>it</><dim>_</>."),
        ("***x y***", "<dim>***</><bi>x y</><dim>***</>"),
        ("__a b__", "<dim>__</><b>a b</><dim>__</>"),
        ("`a*b*c`", "<dim>`</><c>a*b*c</><dim>`</>"),
        ("``a ` b``", "<dim>``</><c>a ` b</><dim>``</>"),
        ("**a *b* `c`**", "<dim>**</><b>a </><dim>*</><bi>b</><dim>*</><b> </><dim>`</><bc>c</><dim>`**</>"),
        ("**a *b***", "<dim>**</><b>a </><dim>*</><bi>b</><dim>***</>"),
        ("***a** b*", "<dim>***</><bi>a</><dim>**</><i> b</><dim>*</>"),
        ("**a * b**", "<dim>**</><b>a * b</><dim>**</>"),
        ("**`a` b `**`", "**<dim>`</><c>a</><dim>`</> b <dim>`</><c>**</><dim>`</>"),
        ("中文**加粗**中文", "中文<dim>**</><b>加粗</><dim>**</>中文"),
        ('"**b**"-(*i*)', '"<dim>**</><b>b</><dim>**</>"-(<dim>*</><i>i</><dim>*</>)'),
        ("**http://a.b/c_d**", "<dim>**</><b>http://a.b/c_d</><dim>**</>"),
        ("**a\x1bb**", "<dim>**</><b>a</><dim>\\x1b</><b>b</><dim>**</>"),
        ("a\x9bb", "a<dim>\\x9b</>b"),
    ],
)
def test_spans(text: str, dressed: str) -> None:
    assert tagged(text) == dressed


@pytest.mark.parametrize(
    "text",
    [
        "snake_case and _private, __init__ and __init__.py",
        "2 * 3 * 4",
        "2**3**4 and a*b*c and f(x)*y*(z)",
        "**not closed",
        "**not closed\nhere** either",
        "a ` alone, and ``two of it",
        "http://a.b/_c_d_e_ and https://x.org/*y*",
        "def f(*args, **kwargs)",
        "*.py and *.md, **/*",
        r"\*not\* and \_not\_ and \`not\`",
        "**** and ____ and ** **",
        "fill in ___ and ___.",
        "#hashtag, #1",
        "-5 degrees, 1.5 metres",
        "[/INST] [bold]x[/bold] <b>",
        "$a_i * b_j$",
        "    indented _so far",
        f"**{'long ' * 20}**",
    ],
)
def test_text_that_is_no_span(text: str) -> None:
    assert shown(text) == text


def test_a_span_that_fails_hides_no_later_one() -> None:
    assert tagged("**a `b` and *c*") == "**a <dim>`</><c>b</><dim>`</> and <dim>*</><i>c</><dim>*</>"


@pytest.mark.parametrize(("length", "is_span"), [(LIMIT, True), (LIMIT + 1, False)])
def test_the_longest_span(length: int, is_span: bool) -> None:
    text = f"**{'x' * (length - 4)}**"
    assert (shown(text) != text) is is_span


@pytest.mark.parametrize(
    ("text", "dressed"),
    [
        ("# A **b**\nc", "<dim>#</> <b>A</> <dim>**</><b>b</><dim>**</>\nc"),
        ("* one\n  - *two*", "<c>*</> one\n  <c>-</> <dim>*</><i>two</><dim>*</>"),
        ("1. one\n10) ten\n• x", "<c>1.</> one\n<c>10)</> ten\n<c>•</> x"),
        ("- - # x", "<c>-</> <c>-</> <dim>#</> <b>x</>"),
        ("> a b `c`\nd", "<dim>></> <i>a</> <i>b</> <dim>`</><ic>c</><dim>`</>\nd"),
        ("---\n* * *\n--", "<dim>---</>\n<dim>* * *</>\n--"),
        ("**b**\n*i*", "<dim>**</><b>b</><dim>**</>\n<dim>*</><i>i</><dim>*</>"),
        ("```py\nx = **y**\n```\nz", "<dim>```py</>\n<c>x</> <c>=</> <c>**y**</>\n<dim>```</>\nz"),
        ("~~~\n```\n~~~~ \nz", "<dim>~~~</>\n<c>```</>\n<dim>~~~~ </>\nz"),
        ("````\n```\n````\nz", "<dim>````</>\n<c>```</>\n<dim>````</>\nz"),
        ("```a``` b", "<dim>```</><c>a</><dim>```</> b"),
        ("1. x\n     ```\n\ty\n     ```\nz", "<c>1.</> x\n     <dim>```</>\n\t<c>y</>\n<dim>     ```</>\nz"),
        ("> ```\n> x\n> ```\nz", "<dim>></> <dim>```</>\n<c>></> <c>x</>\n<dim>> ```</>\nz"),
        ("```\n``` x\n```\r\nz", "<dim>```</>\n<c>```</> <c>x</>\n<dim>```</><dim>\\x0d</><dim></>\nz"),
    ],
)
def test_lines(text: str, dressed: str) -> None:
    assert tagged(text) == dressed


WORDS = st.text("abcxyz", min_size=1, max_size=6)
PHRASES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
SPANS = st.sampled_from([("", ""), ("**", "<b>"), ("*", "<i>"), ("***", "<bi>"), ("`", "<c>"), ("``", "<c>")])


@given(st.lists(st.tuples(SPANS, PHRASES), min_size=1))
def test_spans_set_by_a_writer_are_those_a_reader_sees(parts: list[tuple[tuple[str, str], str]]) -> None:
    text = " ".join(f"{mark}{words}{mark}" for (mark, _), words in parts)
    expected = " ".join(
        f"<dim>{mark}</>{tag}{words}</><dim>{mark}</>" if mark else words for (mark, tag), words in parts
    )
    assert tagged(text) == expected


@given(ANY, CUTS)
def test_plain_text_is_what_went_in_made_visible(text: str, cuts: list[int]) -> None:
    plain = PlainText()
    assert "".join(map(plain.push, pieces_of(text, cuts))) + plain.flush() == visible(text)


def test_plain_text_can_dress_what_was_written_out() -> None:
    assert PlainText(mark=lambda written: f"<{written}>").push("**a**\x1b") == "**a**<\\x1b>"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no code, `x`, ```y``` ", []),
        ("```python title=x\na\n\n  b\n```\nc\n~~~\nd\n~~~", ["a\n\n  b", "d"]),
        ("````\n```\na\n```\n````", ["```\na\n```"]),
        ("~~~\n```\n~~\n~~~~~  \n", ["```\n~~"]),
        ("1. x\n   ```sh\n   a\n     b\n   ```\n", ["a\n  b"]),
        ("1. x\n   ```sh\na\n   ```\ny", ["a"]),
        ("- ```\n  - a\n  ```", ["- a"]),
        ("> ```\n> a\n>  > b\n> ```\nc", ["a\n > b"]),
        ("```\n> ```\n```", ["> ```"]),
        ("```\na\n", ["a"]),
        ("```\na\n\n", ["a\n"]),
        ("```\n", [""]),
        ("```\n```", [""]),
    ],
)
def test_code_blocks(text: str, blocks: list[str]) -> None:
    assert code_blocks(text) == blocks


CODE = st.lists(st.sampled_from(["a", "", "  b", "``", "`x`", "# c", "*d*", "> e"]), min_size=1).map("\n".join)
PROSE = st.sampled_from(["words", "a `b` c", "> quote", "# heading", ""])
FENCES = st.sampled_from(["```", "~~~", "````", "  ```"])


@given(st.lists(st.tuples(PROSE, FENCES, CODE)))
def test_code_blocks_are_those_of_commonmark(parts: list[tuple[str, str, str]]) -> None:
    text = "\n".join(f"{prose}\n\n{fence}\n{code}\n{fence}\n" for prose, fence, code in parts)
    theirs = [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]
    assert [f"{block}\n" for block in code_blocks(text)] == theirs
