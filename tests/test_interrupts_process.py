"""Ctrl-C at random moments of the whole program on a terminal: how it ends, and what it leaves behind there."""

import random
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from terminals import CTRL_C, Program

MODES = {"2026": "l", "25": "h", "7": "h", "2004": "l", "1049": "l", "1": "l"}
"""how each mode must be at the end, if it was ever changed: no half frame, a cursor, wrapping, pastes as typed"""

FAULTS = ("Traceback", "KeyboardInterrupt", "Exception ignored", "Fatal", "FATAL", "terminate called", "^[")


def started(home: Path, **variables: str) -> Program:
    home.mkdir()
    return Program(
        f"stty -g > {home}/before; sinkchat run; echo left with $?; stty -g > {home}/after",
        home,
        program="interrupt_program.py",
        **variables,
    )


def ended(program: Program, home: Path) -> int:
    """The exit status of the program, once all that it must not leave behind has been looked for."""
    assert program.status() == 0, program.all_rows
    text = program.raw.decode(errors="replace")
    faults = [fault for fault in FAULTS if fault in text]
    assert not faults, text[-3_000:]
    for mode, right in MODES.items():
        changes = re.findall(rf"\x1b\[\?{mode}([hl])", text)
        assert changes[-1:] in ([], [right]), (mode, text[-300:])
    assert program.screen.cursor.attrs == program.screen.default_char
    assert (home / "before").read_text() == (home / "after").read_text()
    found = re.findall(r"left with (\d+)", text)
    assert len(found) == 1, text[-3_000:]
    return int(found[0])


def interrupt_load(home: Path, draw: random.Random) -> float:
    """Ctrl-C at a random moment after the first prompt of a load; the seconds until the program has ended."""
    with started(home, ENDLESS_LOAD="1") as program:
        assert program.shows(">")
        has_typed = draw.random() < 0.5
        if has_typed:
            program.type("hello\r")
            assert program.shows("Ctrl-C stops")  # it waits for the model
        program.watch(draw.uniform(0, 1.5))
        pressed = time.monotonic()
        program.type(CTRL_C)
        assert ended(program, home) == 130, program.all_rows
        return time.monotonic() - pressed


def interrupt_exchanges(home: Path, draw: random.Random, *, moments: int) -> Counter[str]:
    """Ctrl-C at random moments of reading and answering, one an exchange, then twice in the last: 130."""
    met: Counter[str] = Counter()
    with started(home) as program:
        assert program.shows(" · cache ", 60)
        for number in range(moments):
            assert program.is_asked(), program.rows
            said = len(program.raw)
            is_last = number == moments - 1
            program.type(f"m{number} {'x ' * (900 if is_last else draw.choice((50, 200, 300)))}!")
            assert program.waits(lambda: "!" in program.rows[-2] or "!" in program.rows[-1]), program.rows
            program.type("\r")
            if is_last:
                assert program.waits(lambda: "reading" in "\n".join(program.rows)), program.rows
            program.watch(draw.uniform(0.05, 0.15) if is_last else draw.uniform(0, 0.7))
            program.type(CTRL_C)
            if is_last:  # it is still being read, for a second at least
                program.watch(draw.uniform(0, 0.5))
                program.type(CTRL_C)
                break
            assert program.waits(partial(is_back, program, said)), program.rows
            program.watch(0.2)  # the line is drawn
            what = "answering" if b"is kept" in program.raw[said:] else "over already"
            if not program.is_asked(0.2):
                what = "reading"  # the message is back on the line
                program.watch(2.1)  # or Ctrl-C would leave
                program.type(CTRL_C)
            met[what] += 1
            program.watch(0.1)
        status = ended(program, home)
        assert status == 130, (status, program.all_rows)
    return met


def is_back(program: Program, said: int) -> bool:
    """Whether the prompt is open again: it brackets pastes anew."""
    return program.raw[said:].count(b"\x1b[?2004h") >= 2


def test_ctrl_c_at_two_random_moments_of_loading(tmp_path: Path) -> None:
    draw = random.Random(0)
    assert max(interrupt_load(tmp_path / str(number), draw) for number in range(2)) < 3


def test_ctrl_c_at_eight_random_moments_of_exchanges(tmp_path: Path) -> None:
    met = interrupt_exchanges(tmp_path / "home", random.Random(1), moments=8)
    assert sum(met.values()) == 7
    print(met)


@pytest.mark.slow
def test_ctrl_c_at_a_hundred_random_moments(tmp_path: Path) -> None:
    draw = random.Random(2)
    seconds = [interrupt_load(tmp_path / f"load{number}", draw) for number in range(30)]
    met: Counter[str] = Counter()
    for number in range(10):
        met += interrupt_exchanges(tmp_path / f"exchanges{number}", draw, moments=8)
    print(f"{max(seconds):.2f} s at most to leave a load", met)
    assert sum(met.values()) == 70
