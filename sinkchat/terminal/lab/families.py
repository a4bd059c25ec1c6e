"""`sinkchat families`: its options, and the run of it. What is measured is in `lab/families/`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from sinkchat.errors import ExitStatus
from sinkchat.lab.families.configs import REFUSED, STREAMING
from sinkchat.lab.families.table import LONG_TOKENS, Refused, Row, Streams
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import environment_of
from sinkchat.terminal.lab.running import Action, Output, Pace, Watch, run
from sinkchat.terminal.table import write_table

Names = typer.Argument(metavar="[FAMILY]...", help="Those of the table; all of them, if none is named.")

TITLES = ("family", "what turns", "1 layer", "3 layers", "chunks", "rebase", "control", "bf16 early", "late")

Rows: TypeAlias = Callable[[Sequence[str]], Iterator[Row]]


def rows(names: Sequence[str]) -> Iterator[Row]:
    """Builds and measures the models. The first use of torch is here."""
    from sinkchat.lab.families import families as lab
    from sinkchat.models.progress import quiet_libraries

    with quiet_libraries():
        yield from lab.rows(names)


def families(
    context: typer.Context,
    names: Annotated[list[str] | None, Names] = None,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Show which model families stream, and how exactly, on tiny random models: nothing is downloaded."""
    return lambda: tell_families(environment_of(context), names or (), as_json=as_json)


def tell_families(environment: Environment, names: Sequence[str], *, as_json: bool, rows: Rows = rows) -> ExitStatus:
    """Measures, and writes the rows there are, however it ends. A row out of bounds is status 1."""
    table = FamilyTable(environment, names, rows)
    status = run(table, Output(as_json), environment)
    return status if status is not ExitStatus.OK or table.holds else ExitStatus.UNEXPECTED


class FamilyTable:
    """The rows so far."""

    resumption = ""

    def __init__(self, environment: Environment, names: Sequence[str], rows: Rows) -> None:
        self._environment, self._names, self._rows = environment, names, rows
        self._found: list[Row] = []

    def measure(self, watch: Watch) -> None:
        watch.tell("starting")
        pace = Pace(self._environment.clock)
        count = len(self._names) or len(STREAMING) + len(REFUSED)
        for row in self._rows(self._names):
            self._found.append(row)
            done = len(self._found)
            watch.tell(row.family, f"{done} of {count}", pace.left(done, count))

    @property
    def has_figures(self) -> bool:
        return bool(self._found)

    @property
    def streaming(self) -> list[Streams]:
        return [row for row in self._found if isinstance(row, Streams)]

    @property
    def refused(self) -> list[Refused]:
        return [row for row in self._found if isinstance(row, Refused)]

    @property
    def holds(self) -> bool:
        """Whether all that must stream does, within the bounds, and nothing else."""
        return all(row.family in STREAMING and row.holds for row in self.streaming) and all(
            row.family in REFUSED or not row.is_known for row in self.refused
        )

    def record(self) -> Any:
        streaming = [asdict(row) | {"holds": row.holds} for row in self.streaming]
        return {"streaming": streaming, "refused": [asdict(row) for row in self.refused]}

    def write(self, environment: Environment) -> None:
        stdout = environment.stdout
        if self.streaming:
            stdout.write(
                "Errors of logits in their standard deviations, on tiny random models; the last two in bfloat16,\n"
                f"after 300 and {LONG_TOKENS:,} tokens. The control does not move the sinks, and must be wrong.\n\n"
            )
            write_table([TITLES, *map(cells, self.streaming)], stdout, right=range(2, len(TITLES)))
        for refused in self.refused:
            stdout.write(f"{refused.family} cannot stream: {refused.reason}\n")
        for row in self.streaming:
            if not row.holds:
                stdout.write(f"{row.family} is out of bounds\n")

    def draw(self, path: Path) -> None:
        """There is nothing to draw: `families` takes no --plot."""


def cells(row: Streams) -> tuple[str, ...]:
    """A row as it stands in the table."""
    errors = (row.one_layer, row.reference, row.chunks, row.rebase)
    shares = (f"{row.control:.2f}", f"{row.early:.3f}", f"{row.late:.3f}")
    return (row.family, row.layout, *(f"{error:.0e}" for error in errors), *shares)
