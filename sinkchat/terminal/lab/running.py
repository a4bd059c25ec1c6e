"""What all measurements have in common: how they are begun, watched and stopped, and told however they end.

What measures keeps its figures itself, and knows nothing of Ctrl-C, of files or of exit statuses. What was measured
until something went wrong is told first; then what went wrong.
"""

import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from sinkchat.errors import ExitStatus, ResourceError
from sinkchat.terminal.environment import Environment, silence
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.signals import Interrupts, leaving_on_signals
from sinkchat.terminal.table import write_json
from sinkchat.terminal.wording import duration

Action: TypeAlias = Callable[[], ExitStatus]
Tell: TypeAlias = Callable[[str], None]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

_Event = TypeVar("_Event")

_LEAST_SHARE = 0.02
"""of the work that must be done before a guess at the rest is worth a look"""


class Watch:
    """What is told of a measurement beside it, on stderr: one line that is redrawn, and notes that stay."""

    def __init__(self, environment: Environment) -> None:
        self._screen = Beside.on(environment.stderr, environment)
        self._environment = environment

    def tell(self, *pieces: str) -> None:
        """How far it is, the most important first: pieces for which the line has no room are left out."""
        room = self._environment.terminal_size().columns - len("^C") - 1  # which the terminal itself adds
        line = pieces[0][:room]
        for piece in pieces[1:]:
            if len(line) + len(piece) + 3 <= room:
                line += f" · {piece}"
        self._screen.status(line)

    def note(self, text: str) -> None:
        self._screen.note(text)

    def erase(self) -> None:
        """Makes room for what is written to stdout, which may be the same terminal."""
        self._screen.erase_status()


class Pace:
    """How long the rest will take, if it goes on as it went since this was made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()

    def left(self, done: float, total: float) -> str:
        """`2 min left`; `Ctrl-C stops` where too little is done to tell."""
        taken = self._clock() - self._began
        if done < _LEAST_SHARE * total or taken <= 0:
            return "Ctrl-C stops"
        return f"{duration(taken * (total - done) / done)} left"


@dataclass(frozen=True, slots=True)
class Output:
    """What becomes of the figures: on stdout a table or, `as_json`, one document; and a plot, if one is wanted."""

    as_json: bool = False
    plot: Path | None = None

    def check(self) -> None:
        """Raises `UsageError` where no plot could be drawn: better before long work than after it."""
        if self.plot is not None:
            from sinkchat.lab.plotting import check_plot

            check_plot(self.plot)


class Measurement(Protocol):
    """What is measured, with the figures so far."""

    resumption: str
    """what a person who stopped it can type to go on; empty where it begins anew"""

    def measure(self, watch: Watch) -> None:
        """Does the work. May be left by an exception anywhere; what was found until then stays."""

    @property
    def has_figures(self) -> bool: ...

    def record(self) -> Any:
        """The figures as JSON has them."""

    def write(self, environment: Environment) -> None:
        """The figures for a person, to stdout."""

    def draw(self, path: Path) -> None:
        """The figures as a plot."""


def run(measurement: Measurement, output: Output, environment: Environment) -> ExitStatus:
    """Measures, and tells what was measured, however it ends: Ctrl-C is 130, with the figures so far."""
    output.check()
    watch = Watch(environment)
    try:
        with leaving_on_signals():
            try:
                measurement.measure(watch)
            finally:
                watch.erase()
                if measurement.has_figures:
                    _tell(measurement, output, environment)
    except KeyboardInterrupt:
        if not measurement.has_figures:
            raise
        rest = f"; {measurement.resumption}" if measurement.resumption else ""
        watch.note(f"stopped: the figures are of what was measured until then{rest}")
        return ExitStatus.INTERRUPTED
    return ExitStatus.OK


def width_of(environment: Environment) -> int:
    """Columns that a table may take: those of the terminal; 80 in a file, where nobody knows."""
    return environment.terminal_size().columns if environment.stdout.isatty() else 80


def between_steps(events: Generator[_Event, None, None], clock: Callable[[], float]) -> Generator[_Event, None, None]:
    """The events of a work whose state must be whole when it is left: Ctrl-C waits until the next event is there."""
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    with Interrupts(stop, clock=clock) as interrupts, closing(events):
        for event in interrupts.steps(events):
            yield event
            if is_stopped:
                raise KeyboardInterrupt


def _tell(measurement: Measurement, output: Output, environment: Environment) -> None:
    """Draws and writes; where one of the two cannot be, the other is done all the same."""
    try:
        if output.plot is not None:
            measurement.draw(output.plot)
    finally:
        _write(measurement, output, environment)


def _write(measurement: Measurement, output: Output, environment: Environment) -> None:
    stdout = environment.stdout
    try:
        if output.as_json:
            write_json(_finite(measurement.record()), stdout)
        else:
            measurement.write(environment)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, as a rule
        silence(stdout)
        reason = (error.strerror or str(error)).lower()
        raise ResourceError(f"the figures cannot be written to stdout: {reason}", hint="another place") from error


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
