"""What each key does on the line, in both editing modes; and how placeholders look and are deleted there."""

from collections.abc import Callable
from typing import Protocol

from prompt_toolkit.application.current import get_app
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching, vi_navigation_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.lexers import Lexer

from sinkchat.terminal.line.folding import Folds
from sinkchat.terminal.sanitize import visible

_QUOTES = '"""'


class Actions(Protocol):
    """What keys may ask for beyond the line itself."""

    def leaves(self) -> bool:
        """Whether Ctrl-C leaves instead of clearing the line."""
        ...

    def change_panel(self) -> None: ...
    def suspend(self) -> None: ...
    def open_editor(self) -> None: ...


def bindings(folds: Folds, actions: Actions) -> KeyBindings:
    """The keys that differ from those of prompt_toolkit."""
    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=~is_searching)
    @keys.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text and not actions.leaves():
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    @keys.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = visible(event.data.replace("\r\n", "\n").replace("\r", "\n"))
        event.current_buffer.insert_text(folds.pasted(text))

    @keys.add("f2")
    def _(event: KeyPressEvent) -> None:
        actions.change_panel()
        event.app.invalidate()

    @keys.add("c-l")
    def _(event: KeyPressEvent) -> None:
        event.app.renderer.clear()

    @keys.add("c-z")
    def _(event: KeyPressEvent) -> None:
        actions.suspend()

    @keys.add("c-x", "c-e")
    @keys.add("c-g", filter=~is_searching)
    @keys.add("v", filter=vi_navigation_mode)
    def _(event: KeyPressEvent) -> None:
        actions.open_editor()

    _add_deletions(keys, folds)
    return keys


def is_open(text: str) -> bool:
    """Whether `text` begins with three quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(_QUOTES) and not (text.endswith(_QUOTES) and len(text) >= 2 * len(_QUOTES))


def unquoted(text: str) -> str:
    """The text without the three quotes around it."""
    inner = text.strip()
    if inner.startswith(_QUOTES) and not is_open(inner):
        return inner[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text


def _add_deletions(keys: KeyBindings, folds: Folds) -> None:
    """A key that deletes into a placeholder deletes the whole of it."""

    def length_before() -> int:
        line = get_app().current_buffer.document.current_line_before_cursor
        return next((stop - start for start, stop in folds.found(line) if stop == len(line)), 0)

    def length_after() -> int:
        line = get_app().current_buffer.document.current_line_after_cursor
        return next((stop for start, stop in folds.found(line) if start == 0), 0)

    stands_before = Condition(lambda: length_before() > 0) & ~is_searching
    stands_after = Condition(lambda: length_after() > 0) & ~is_searching

    @keys.add("backspace", filter=stands_before & ~vi_navigation_mode)
    @keys.add("c-w", filter=stands_before & ~vi_navigation_mode)
    @keys.add("escape", "backspace", filter=stands_before)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor(length_before())

    @keys.add("delete", filter=stands_after)
    @keys.add("c-d", filter=stands_after)
    @keys.add("escape", "d", filter=stands_after)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.delete(length_after())


class FoldLexer(Lexer):
    """Dresses placeholders, so that one sees which still stand for something."""

    def __init__(self, folds: Folds) -> None:
        self._folds = folds

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        def dressed(number: int) -> StyleAndTextTuples:
            line = document.lines[number] if number < len(document.lines) else ""
            fragments: StyleAndTextTuples = []
            end = 0
            for start, stop in self._folds.found(line):
                fragments += [("", line[end:start]), ("class:placeholder", line[start:stop])]
                end = stop
            return [*fragments, ("", line[end:])]

        return dressed
