"""Keys become a message: what one may type, and what Ctrl-C means while typing.

prompt_toolkit reads the keys, and only while the model is silent. A paste too large to be edited stands
on the line as a short placeholder, since drawing a megabyte at each key press takes minutes; what is sent
is the paste itself.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, Output

from sinkchat.terminal.commands import completions
from sinkchat.terminal.sanitize import visible

PASTE_CHARACTERS = 4_000
_QUOTES = '"""'


class LineSource(Protocol):
    """Where a person's messages come from."""

    def read(self, draft: str = "") -> str:
        """The next message; `draft` already stands on the line.

        Raises EOFError when the person leaves, KeyboardInterrupt for Ctrl-C on an empty line.
        """
        ...


class Keyboard:
    """A line editor on a terminal. While `leaves()` is true, Ctrl-C leaves instead of clearing the line.

    Raises OSError when `history` cannot be written.
    """

    def __init__(
        self,
        *,
        history: Path | None = None,
        leaves: Callable[[], bool] = lambda: False,
        color: bool = True,
        keys_from: Input | None = None,
        drawn_on: Output | None = None,
    ) -> None:
        self._pastes: dict[str, str] = {}
        self._leaves = leaves
        self._session: PromptSession[str] = PromptSession(
            message="> ",
            multiline=True,
            prompt_continuation="  ",
            history=self._history(history),
            completer=_CommandCompleter(),
            complete_while_typing=False,
            key_bindings=self._bindings(),
            enable_open_in_editor=True,
            enable_suspend=True,
            tempfile_suffix=".txt",
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            input=keys_from,
            output=drawn_on,
        )

    def read(self, draft: str = "") -> str:
        typed = self._session.prompt(default=self._folded(draft))
        return _unquoted(self._unfolded(typed))

    def _history(self, path: Path | None) -> History:
        if path is None:
            return InMemoryHistory()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
        return _PrivateHistory(path, is_folded=lambda text: self._unfolded(text) != text)

    def _folded(self, text: str) -> str:
        """The text itself, or a placeholder that stands for it."""
        if len(text) <= PASTE_CHARACTERS:
            return text
        placeholder = f"[paste {len(self._pastes) + 1}: {len(text):,} characters]"
        self._pastes[placeholder] = text
        return placeholder

    def _unfolded(self, text: str) -> str:
        for placeholder, pasted in self._pastes.items():
            text = text.replace(placeholder, pasted)
        return text

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            if _is_open(event.current_buffer.text):
                event.current_buffer.insert_text("\n")
            else:
                event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text and not self._leaves():
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt())

        @keys.add("c-g", filter=~is_searching)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._folded(_plain_newlines(event.data)))

        return keys


def open_keyboard(
    *,
    history: Path | None,
    note: Callable[[str], None],
    leaves: Callable[[], bool],
    color: bool,
    terminal: TextIO | None,
) -> Keyboard:
    """The keyboard of this process: stdin, or behind a pipe the `terminal` itself.

    `note` is told when the history cannot be kept.
    """
    keys_from = create_input(terminal) if terminal is not None else None
    try:
        return Keyboard(history=history, leaves=leaves, color=color, keys_from=keys_from)
    except OSError as error:
        note(f"typed lines are not kept in {history}: {(error.strerror or str(error)).lower()}")
        return Keyboard(leaves=leaves, color=color, keys_from=keys_from)


class _CommandCompleter(Completer):
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for text, typed in completions(document.text_before_cursor):
            yield Completion(text, start_position=-typed)


class _PrivateHistory(FileHistory):
    """Lines typed before. What stands for a paste is not written down: it would mean nothing next time."""

    def __init__(self, path: Path, *, is_folded: Callable[[str], bool]) -> None:
        super().__init__(path)
        self._is_folded = is_folded

    def store_string(self, string: str) -> None:
        if not self._is_folded(string):
            super().store_string(visible(string))


def _plain_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_open(text: str) -> bool:
    """Whether `text` begins with three quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(_QUOTES) and not (text.endswith(_QUOTES) and len(text) >= 2 * len(_QUOTES))


def _unquoted(text: str) -> str:
    """The text without the three quotes around it."""
    inner = text.strip()
    if inner.startswith(_QUOTES) and not _is_open(inner):
        return inner[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text
