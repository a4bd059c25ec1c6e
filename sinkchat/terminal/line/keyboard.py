"""A line editor on a terminal: keys become a message, also while a model is still being loaded.

prompt_toolkit reads the keys, and only while the model is silent. Another thread may speak above the open
prompt or end it, never touch it. Nothing wakes the program while nothing is typed and nothing changes:
the toolbar is drawn ten times a second while it is changing, and else when a key is pressed.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from prompt_toolkit.application import get_app
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.application.run_in_terminal import run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.styles import Style

from sinkchat.errors import UsageError
from sinkchat.terminal.line.completion import CommandCompleter, Words
from sinkchat.terminal.line.editor import edited
from sinkchat.terminal.line.folding import Folds, TextFile, Weigh
from sinkchat.terminal.line.keys import FoldLexer, bindings, unquoted
from sinkchat.terminal.line.prompt import (
    Session,
    ask_no_positions,
    read_pastes_in_linear_time,
    stay_quiet_while_printing,
)
from sinkchat.terminal.line.suspend import lent, modes_of, stop
from sinkchat.terminal.line.typed import TypedLines
from sinkchat.terminal.sanitize import visible

T = TypeVar("T")

_FRAME_SECONDS = 0.1
_PROMPT = "> "
_STYLE = {"toolbar": "dim", "placeholder": "dim"}


class LineSource(Protocol):
    """Where a person's messages come from."""

    def read(self, draft: str = "") -> str:
        """The next message; `draft` already stands on the line.

        Raises EOFError when the person leaves, KeyboardInterrupt for Ctrl-C on an empty line.
        """
        ...


class Keyboard:
    """A line editor on a terminal. While `leaves()` is true, Ctrl-C leaves instead of clearing the line.

    `toolbar` gives the row below the line for a number of columns. `weigh` tells what a long paste would
    cost, `words` and `path_commands` what Tab completes. `note` is told what the person should know while
    typing. Raises OSError when `history` cannot be written.
    """

    def __init__(
        self,
        *,
        history: Path | None = None,
        leaves: Callable[[], bool] = lambda: False,
        color: bool = True,
        vi: bool = False,
        toolbar: Callable[[int], str] | None = None,
        is_changing: Callable[[], bool] = lambda: False,
        on_panel_key: Callable[[], None] = lambda: None,
        weigh: Weigh = lambda text: None,
        note: Callable[[str], None] = lambda text: None,
        words: Words = lambda line: (),
        path_commands: Collection[str] = (),
        keys_from: Input | None = None,
        drawn_on: Output | None = None,
    ) -> None:
        self.leaves = leaves
        self.change_panel = on_panel_key
        self.unsent = ""
        """what stood on the line when `abort` ended it; it is in the history too"""
        self._is_changing = is_changing
        self._note = note
        self._folds = Folds(weigh)
        self._history = TypedLines(history, self._folds)
        self._sent = ("", "")
        self._lock = threading.Lock()
        self._open: _OpenPrompt | None = None
        self._announced: list[Callable[[], None]] = []
        self._error: BaseException | None = None
        self._follower: asyncio.Task[None] | None = None
        self.keys_from = keys_from or get_app_session().input
        """where keys come from, for whoever reads them while no prompt is open"""
        self._modes = modes_of(self.keys_from)
        read_pastes_in_linear_time(self.keys_from)
        stay_quiet_while_printing(self.keys_from)
        ask_no_positions(drawn_on or get_app_session().output)
        self._session = Session(
            message=_PROMPT,
            multiline=True,
            prompt_continuation=" " * len(_PROMPT),
            vi_mode=vi,
            history=self._history,
            completer=CommandCompleter(words, path_commands),
            complete_while_typing=False,
            lexer=FoldLexer(self._folds),
            style=Style.from_dict(_STYLE if color else {}),
            key_bindings=bindings(self._folds, self),
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            input=self.keys_from,
            output=drawn_on,
        )
        self._session.app.terminal_size_polling_interval = None  # SIGWINCH tells
        for buffer in (self._session.default_buffer, self._session.search_buffer):
            buffer.on_text_changed += _write_out
        if toolbar is not None:
            self._session.add_row(toolbar)

    def read(self, draft: str = "") -> str:
        self.unsent = ""
        try:
            typed = self._session.prompt(default=self._as_it_stood(draft), pre_run=self._has_opened)
        finally:
            with self._lock:
                self._open = None
            self._speak()  # what was announced in the last moment
        whole = self._folds.unfolded(unquoted(typed))
        self._sent = (typed, visible(whole))
        self._folds.keep([typed, *self._history.get_strings()])
        return whole

    def attached(self, file: TextFile) -> str:
        """What stands for a file: put it into the next draft."""
        return self._folds.attached(file)

    def announce(self, show: Callable[[], None]) -> None:
        """Lets `show` print above the open prompt, or at once where none is open. For any thread."""
        with self._lock:
            if self._open is None:
                show()
                return
            self._announced.append(show)
            self._open.soon(self._speak_above)

    def refresh(self) -> None:
        """Draws the toolbar of the open prompt again, and goes on while it is changing. For any thread."""
        with self._lock:
            if self._open is not None:
                self._open.soon(self._follow)

    def abort(self, error: BaseException) -> None:
        """Ends the open prompt, or the next one at once: `read` raises `error`. For any thread."""
        with self._lock:
            self._error = error
            if self._open is not None:
                self._open.soon(self._end)

    def suspend(self) -> None:
        """Stops the process, with the terminal as it was before the prompt, until it is brought back."""
        run_in_terminal(lambda: self._lending(stop))

    def open_editor(self) -> None:
        """Puts the line, long texts and all, into the person's editor."""
        get_app().create_background_task(self._edit())

    def _has_opened(self) -> None:
        """Runs within prompt_toolkit's loop, before anything is drawn."""
        with self._lock:
            self._open = _OpenPrompt()
            self._open.soon(self._follow)
            if self._error is not None:
                self._open.soon(self._end)

    def _as_it_stood(self, draft: str) -> str:
        """A message that came back stands as it was typed; a new one is folded where it could not be edited."""
        typed, sent = self._sent
        return typed if draft and draft == sent else self._folds.draft(draft)

    def _follow(self) -> None:
        app = get_app()

        async def follow() -> None:
            while self._is_changing():
                app.invalidate()
                await asyncio.sleep(_FRAME_SECONDS)
            app.invalidate()

        if self._follower is None or self._follower.done():
            self._follower = app.create_background_task(follow())

    def _end(self) -> None:
        app, line = get_app(), self._session.default_buffer.text
        if not app.is_done and self._error is not None:
            self.unsent = self._folds.unfolded(line)
            if self.unsent:
                self._history.append_string(line)
            app.exit(exception=self._error)

    def _speak_above(self) -> None:
        def speak() -> None:
            if self._announced:
                with self._session.interrupted():
                    self._speak()

        run_in_terminal(speak)

    def _speak(self) -> None:
        while self._announced:
            self._announced.pop(0)()

    def _lending(self, use: Callable[[], T]) -> T:
        """What `use` gives, with the terminal as it was before the prompt."""
        with lent(self.keys_from, self._modes):
            return use()

    async def _edit(self) -> None:
        buffer = self._session.default_buffer
        whole = self._folds.unfolded(buffer.text)
        try:
            changed = await run_in_terminal(lambda: self._lending(lambda: edited(whole)), in_executor=True)
        except UsageError as error:
            told = f"{error.message}; {error.hint}" if error.hint else error.message
            run_in_terminal(lambda: self._note(told))
            return
        text = self._folds.draft(self._folds.folded(visible(changed)))
        buffer.document = Document(text, cursor_position=len(text))


def open_keyboard(
    *,
    history: Path | None,
    note: Callable[[str], None],
    leaves: Callable[[], bool],
    color: bool,
    terminal: TextIO | None,
    **more: Any,
) -> Keyboard:
    """The keyboard of this process: stdin, or behind a pipe the `terminal` itself.

    `note` is told when the history cannot be kept. `more` is what `Keyboard` takes beyond these.
    """
    keys_from = create_input(terminal) if terminal is not None else None
    try:
        return Keyboard(history=history, leaves=leaves, color=color, note=note, keys_from=keys_from, **more)
    except OSError as error:
        note(f"typed lines are not kept in {history}: {(error.strerror or str(error)).lower()}")
        return Keyboard(leaves=leaves, color=color, note=note, keys_from=keys_from, **more)


def _write_out(buffer: Buffer) -> None:
    """Makes the line visible: an input method, or a paste without brackets, brings what is on no key."""
    document = buffer.document
    text = visible(document.text)
    if text != document.text:
        buffer.document = Document(text, cursor_position=len(visible(document.text_before_cursor)))


class _OpenPrompt:
    """The loop of a prompt and what is current in it, for those who come from another thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def soon(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action, context=self._context.copy())
