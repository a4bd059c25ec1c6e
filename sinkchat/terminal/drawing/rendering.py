"""Markdown laid out as a page by Rich, for those who ask for it.

Rich's own page is loud (backgrounds, magenta) and drops things: line breaks, HTML, the addresses of
pictures, definitions of links. Here nothing is lost. Of the terminal's sixteen colours one is used, and
no background, so the page reads on dark and light alike. Text is made visible before it is parsed, and
piece by piece at the end, since a parser turns `&#x202e;` into what it stands for.
"""

import io
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.table import Table
from rich.theme import Theme

from sinkchat.terminal.sanitize import visible

_NARROWEST = 20
_WIDEST_INDENT = 100
_DEEPEST = 200
"""levels that the parser follows: more than fit into the widest indent, as it drops what lies deeper"""
_INDENTS = {"blockquote_open": 4, "blockquote_close": -4, "list_item_open": 4, "list_item_close": -4}
_CODE_INDENT = 2
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold italic",
        "markdown.h4": "italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.hr": "dim",
        "markdown.link": "none",
        "markdown.link_url": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
_CODE_THEME = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True, italic=True),
        ("Keyword",): Style(bold=True),
        ("Operator", "Word"): Style(bold=True),
        ("Name", "Tag"): Style(bold=True),
        ("Literal",): Style(color="cyan"),
        ("Generic", "Deleted"): Style(dim=True),
        ("Generic", "Inserted"): Style(bold=True),
        ("Generic", "Heading"): Style(bold=True),
    }
)


def laid_out(text: str, *, columns: int, color: bool) -> str:
    """The text laid out in so many columns. No blanks end a line, one newline ends the last.

    What is nested too deeply for so few columns stays as it was written.
    """
    text = visible(text)
    page = _Page(text)
    width = max(columns, _NARROWEST)
    if page.indent > min(width, _WIDEST_INDENT) - _NARROWEST // 2:
        return f"{text}\n"
    console = Console(
        file=io.StringIO(),
        width=width,
        theme=_THEME,
        color_system="standard",
        force_terminal=True,
        legacy_windows=False,
    )
    rows = Segment.split_lines(console.render(page, console.options))
    shown = "\n".join(_written(row, ColorSystem.STANDARD if color else None) for row in rows).strip("\n")
    return f"{shown}\n"


class _HeadingLine(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax("", self.lexer_name, theme=_CODE_THEME, word_wrap=True)
        text = syntax.highlight(self.text.plain.rstrip())
        text.rstrip()
        narrower = options.update(width=max(1, options.max_width - _CODE_INDENT))
        for line in console.render_lines(text, narrower, pad=False):
            yield Segment(" " * _CODE_INDENT)
            yield from line
            yield Segment.line()


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.box, table.show_edge = box.SIMPLE, False
                table.pad_edge, table.collapse_padding = False, True
            yield table


class _Page(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _HeadingLine,
        "fence": _Code,
        "code_block": _Code,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        parser = (
            MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST})
            .enable(["strikethrough", "table"])
            .disable("reference")
        )
        self.parsed = parser.parse(text)
        for token in self.parsed:
            if token.children:
                token.children = list(_nothing_lost(token.children))

    @property
    def indent(self) -> int:
        """Columns that the deepest nested text is indented by, at least."""
        return max(accumulate(_INDENTS.get(token.type, 0) for token in self.parsed), default=0)


def _nothing_lost(tokens: Iterable[Token]) -> Iterator[Token]:
    """Line breaks stay, a picture is its words and its address, and an address that is its own words stands once."""
    in_address = False
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        elif token.type == "image":
            yield Token("text", "", 0, content=f"{token.content} ({token.attrGet('src')})")
            continue
        elif token.type in ("link_open", "link_close"):
            in_address = token.markup == "autolink"
            if in_address:
                continue
        yield token


def _written(row: list[Segment], colors: ColorSystem | None) -> str:
    """One row of the page without the blanks at its end."""
    shown = list(row)
    while shown and not shown[-1].text.strip():
        shown.pop()
    if shown:
        shown[-1] = Segment(shown[-1].text.rstrip(), shown[-1].style)
    return "".join((style or Style.null()).render(visible(text), color_system=colors) for text, style, _ in shown)
