"""A terminal that keeps still: from the first prompt to the last, keys are neither echoed nor changed on their way.

Between two prompts nobody reads keys for some milliseconds, and a terminal in its usual mode would write them into
the text, and make a line feed of an Enter that is meant to send. Here they wait as they were typed.
"""

import os
import select
from types import TracebackType
from typing import Any

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress

from sinkchat.terminal.line.suspend import modes_of, set_modes


class Quiet:
    """Within this context the terminal behind `keys_from` is quiet; signals keep their keys."""

    def __init__(self, keys_from: Input) -> None:
        self._input = keys_from
        self._before: list[Any] | None = None

    def lower(self) -> None:
        """From now on keys wait."""
        self._before = modes_of(self._input)
        if self._before is not None:
            keep_sent_lines(self._input, self._before)
            set_modes(self._input, quieted(self._before))

    def lift(self) -> None:
        """The terminal as it was before."""
        before, self._before = self._before, None
        if before is not None:
            set_modes(self._input, before)

    def __enter__(self) -> "Quiet":
        self.lower()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.lift()


def keep_sent_lines(keys_from: Input, modes: list[Any]) -> None:
    """Keeps for the next prompt what was sent before anyone read keys, as the terminal's usual `modes` make it.

    They have made of each Enter the line feed of Ctrl-J, which does not send, and of Ctrl-D an end.
    """
    import termios

    terminal, keys = keys_from.fileno(), list[KeyPress]()
    parser = Vt100Parser(keys.append)
    while modes[3] & termios.ICANON and select.select([terminal], [], [], 0)[0]:
        line = os.read(terminal, 4096).decode("utf-8", errors="replace")
        parser.feed(line.replace("\n", "\r") or "\x04")
    store_typeahead(keys_from, keys)


def quieted(modes: list[Any]) -> list[Any]:
    """Those modes with no echo, and every key as it is, at once."""
    import termios

    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    iflag &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)  # Enter is CR, as at the prompt
    lflag &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    lflag |= termios.NOFLSH  # Ctrl-C is not to discard what was typed before it
    return [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]
