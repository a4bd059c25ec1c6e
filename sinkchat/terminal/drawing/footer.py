"""What it takes to draw rows below the cursor and to come back, in as few bytes as is simple.

Whatever is written here leaves the cursor where it was, wraps nothing and scrolls nothing away but text, even
when the terminal has just become another size and we do not know yet.
"""

import re
from itertools import takewhile

from wcwidth import wcswidth, wcwidth

STYLE = re.compile(r"\x1b\[[0-9;:]*m")
RESETS = ("\x1b[m", "\x1b[0m")
_UNFINISHED_STYLE = re.compile(r"\x1b[^m]*\Z")
_SAVE, _RESTORE = "\x1b7\x1b[?7l", "\x1b8\x1b[?7h"  # in between no row wraps
_DOWN = "\x1bD"  # scrolls at the bottom, and keeps the column
_NEXT_ROW = "\x1b[E"
_ERASE_RIGHT = "\x1b[K"
_ALL_NARROW = "\u2e7f"  # beyond it are the characters about which terminals disagree


def drawn_below(rows: list[str]) -> str:
    """Makes room below the cursor and draws `rows` there."""
    if not rows:
        return ""
    room = f"{_DOWN * len(rows)}\x1b[{len(rows)}A"
    return f"{room}{_SAVE}{''.join(f'{_NEXT_ROW}{row}' for row in rows)}{_RESTORE}"


def changes(drawn: list[str], rows: list[str]) -> str:
    """Makes `rows` of the rows that are `drawn` below the cursor; nothing where they are equal."""
    changed, down = "", 0
    for before, row in zip(drawn, rows, strict=True):
        down += 1
        if row != before:
            changed += f"\x1b[{down}E{_from_difference(before, row)}{_ERASE_RIGHT}"
            down = 0
    return f"{_SAVE}{changed}{_RESTORE}" if changed else ""


def _from_difference(drawn: str, row: str) -> str:
    """What makes `row` of the row that is drawn: all of it, unless the column of the first difference is certain."""
    alike = (old == new for old, new in zip(drawn, row, strict=False))
    common = sum(takewhile(bool, alike))
    before = _UNFINISHED_STYLE.sub("", row[:common])
    seen, after = STYLE.sub("", before), row[len(before) :]
    next_seen = STYLE.sub("", after)[:1]
    if not seen or max(seen) > _ALL_NARROW or wcswidth(seen) != len(seen) or wcwidth(next_seen or " ") < 1:
        return row
    style = ""
    for found in STYLE.findall(before):
        style = "" if found in RESETS else style + found
    return f"\x1b[{len(seen)}C{style}{after}"
