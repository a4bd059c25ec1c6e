"""The parts of a conversation's journal: which there are, what they say in short, how another appears."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sinkchat.chat.journal import Reading, records_backwards
from sinkchat.chat.tally import Tally
from sinkchat.errors import SinkchatError

_PART = re.compile(r"[0-9]{5,}\.jsonl")
_HEAD = 200
"""records in which the first message is looked for"""


def part(folder: Path, number: int) -> Path:
    """Where the part of that number lies, counted from 1."""
    return folder / f"{number:05}.jsonl"


def parts_of(folder: Path) -> list[Path]:
    """The parts in which something stands, oldest first."""
    found = (path for path in folder.iterdir() if _PART.fullmatch(path.name) and path.stat().st_size)
    return sorted(found, key=lambda path: int(path.stem))


def records_of(folder: Path) -> Iterator[dict[str, Any]]:
    """What all parts in `folder` say, one after the other."""
    turns = 0
    for path in parts_of(folder):
        if path.exists():  # who writes it may have dropped it since
            yield from (reading := Reading(path, turns=turns))
            turns = reading.turns


def head_of(path: Path) -> tuple[dict[str, Any], str]:
    """The `begin` of a part and the beginning of its first message, as far as they can be read."""
    tally, begin = Tally(), dict[str, Any]()
    with suppress(SinkchatError):
        for number, record in enumerate(Reading(path)):
            begin = begin or record
            tally.see(record)
            if tally.has_title or number == _HEAD:
                break
    return begin, tally.title


def latest_turn(path: Path) -> int:
    """The number of the turn that was begun last and not taken back, read from the part's end."""
    is_cleared = False
    for record in records_backwards(path):
        match record["op"]:
            case "clear" if is_cleared:
                is_cleared = False
            case "unclear":
                is_cleared = True
            case "clear":
                return 0
            case "turn" if not is_cleared:
                return int(record.get("number", 0))
            case "keep" if not is_cleared:
                return int(record.get("count", 0))
            case "begin":
                return int(record.get("turns", 0))
    return 0


def publish(path: Path, data: bytes) -> None:
    """The file appears with all of `data` in it, or not at all."""
    beside = path.with_name(f".{path.name}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with suppress(OSError):  # it has become the part
            beside.unlink()
