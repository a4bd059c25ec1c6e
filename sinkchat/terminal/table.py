"""Data on stdout, for people in columns and for programs as JSON, without colour."""

import json
from collections.abc import Sequence
from typing import Any, TextIO

from sinkchat.terminal.sanitize import one_line


def write_json(value: Any, stdout: TextIO) -> None:
    """One document, with paths as texts. ASCII, so that nothing in it steers a terminal."""
    stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def write_table(rows: Sequence[tuple[str, ...]], stdout: TextIO, *, right: Sequence[int] = ()) -> None:
    """Columns as wide as they must be, two blanks apart; those in `right` end alike."""
    cells = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        stdout.write("  ".join(padded).rstrip() + "\n")
