"""prompt_toolkit's session, and the four things it does not do for us.

A toolbar right below the line; callbacks before a prompt that opens on a dumb terminal; long pastes in
linear time; a terminal that stays quiet while something is printed above the prompt. All that leans on the
inside of prompt_toolkit (seen in 3.0.53) is here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app
from prompt_toolkit.filters import is_done
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.input import Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import is_dumb_terminal

from sinkchat.terminal.sanitize import visible

_END_OF_PASTE = "\x1b[201~"


class Session(PromptSession[str]):
    """A prompt that can be interrupted, with rows below its line."""

    def add_row(self, text: Callable[[int], str]) -> None:
        """Shows the first line of `text(columns)` below the line, as long as the prompt is open."""

        def row() -> str:
            return visible(text(get_app().output.get_size().columns)).partition("\n")[0]

        window = Window(FormattedTextControl(row), height=1, style="class:toolbar", dont_extend_height=True)
        cast(HSplit, self.layout.container).children.append(ConditionalContainer(window, ~is_done))

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Within this context lines may be printed. A dumb terminal, which redraws nothing, gets the line again."""
        is_dumb = self._output is None and is_dumb_terminal()
        if is_dumb:
            self.output.write("\n")
            self.output.flush()
        yield
        if is_dumb:
            self.output.write(f"{self.message}{self.default_buffer.text}")
            self.output.flush()

    @contextmanager
    def _dumb_prompt(self, message: AnyFormattedText = "") -> Iterator[Application[str]]:
        # Another application than `self.app` runs here, which has not heard of `pre_run`.
        with super()._dumb_prompt(message) as app:
            app.pre_run_callables += self.app.pre_run_callables
            self.app.pre_run_callables.clear()
            yield app


def ask_no_positions(output: Output) -> None:
    """Has the toolbar right below the line, not on the terminal's last row, which only the terminal knows.

    Its answer would arrive among the keys, at worst after the prompt has closed.
    """
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False


def read_pastes_in_linear_time(keys: Input) -> None:
    """Replaces the parser that searches a whole paste again after each kilobyte: 10 MB took 42 s."""
    parser = getattr(keys, "vt100_parser", None)
    if isinstance(parser, Vt100Parser) and not isinstance(parser, _PasteParser):
        keys.vt100_parser = _PasteParser(parser.feed_key_callback)  # type: ignore[attr-defined]


def stay_quiet_while_printing(keys: Input) -> None:
    """Leaves the terminal as it is at the prompt while `run_in_terminal` prints.

    In its usual mode it would write what is typed then into the text, and make of an Enter the line feed of Ctrl-J,
    which does not send. What reads keys itself puts the terminal into the mode it needs.
    """
    keys.cooked_mode = nullcontext  # type: ignore[method-assign]


class _PasteParser(Vt100Parser):
    def reset(self, request: bool = False) -> None:
        super().reset(request)
        self._pieces: list[str] = []
        self._tail = ""

    def feed(self, data: str) -> None:
        if not self._in_bracketed_paste:
            super().feed(data)
            return
        self._pieces.append(data)
        self._tail += data
        if _END_OF_PASTE in self._tail:
            paste = "".join(self._pieces)
            self._pieces, self._tail = [], ""
            super().feed(paste)
        else:
            self._tail = self._tail[1 - len(_END_OF_PASTE) :]
