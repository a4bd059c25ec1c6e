"""A terminal that keeps still: from the first prompt to the last, keys are neither echoed nor changed on their way.

Between two prompts nobody reads keys for some milliseconds, and a terminal in its usual mode would write them into
the text, and make a line feed of an Enter that is meant to send. Here they wait as they were typed.
"""

from types import TracebackType
from typing import Any

from prompt_toolkit.input import Input

from sinkchat.terminal.line.suspend import modes_of


class Quiet:
    """Within this context the terminal behind `keys_from` is quiet; signals keep their keys."""

    def __init__(self, keys_from: Input) -> None:
        self._input = keys_from
        self._before: list[Any] | None = None

    def lower(self) -> None:
        """From now on keys wait."""
        self._before = modes_of(self._input)
        if self._before is not None:
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


def set_modes(keys_from: Input, modes: list[Any]) -> None:
    """Has the terminal handle keys so, from now on. One that has gone is left alone."""
    import termios

    try:
        termios.tcsetattr(keys_from.fileno(), termios.TCSANOW, modes)
    except (OSError, termios.error):
        """Whoever reads from it next says more."""
