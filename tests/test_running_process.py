"""Measurements as a person runs them: on a terminal, stopped by a key, and in a pipe whose reader goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import CTRL_C, TESTS, Program

pytestmark = pytest.mark.slow

ENDLESS = "sinkchat recall induction --cache-size 256 --distances 1,90 --rounds 9000"


def test_ctrl_c_erases_the_status_line_and_leaves_the_figures(tmp_path: Path) -> None:
    with Program(ENDLESS, tmp_path, program="whole_program.py", size=(24, 60)) as program:
        assert program.shows("4 of 18,000 questions", 120)
        assert len(program.rows) == 1  # the status line fits into a row
        program.type(CTRL_C)
        assert program.status() == 130
        rows = program.rows
    assert rows[0] == "induction head, built by hand: recall of a line's number, by"
    assert [row.split()[0] for row in rows if "%" in row] == ["1", "90"]
    assert rows[-2:] == ["note: stopped: the figures are of what was measured until th", "en"]


def test_ctrl_c_in_a_pipe_leaves_one_whole_document(tmp_path: Path) -> None:
    command = f"{ENDLESS} --json > {tmp_path}/found.json; echo left with $?"
    with Program(command, tmp_path, program="whole_program.py") as program:
        assert program.shows("4 of 18,000 questions", 120)
        program.type(CTRL_C)
        assert program.writes("left with 130", 60), program.rows
    (recall,) = json.loads((tmp_path / "found.json").read_text())["recalls"]
    assert [point["lines_back"] for point in recall["points"]] == [1, 90]


def test_a_reader_that_goes_is_no_error() -> None:
    run = f"{sys.executable} {TESTS}/whole_program.py recall induction --rounds 1 --cache-size 64,128,256"
    piped = subprocess.run(
        ["bash", "-c", f"{run} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=True
    )
    assert (piped.stdout, piped.stderr) == ("141\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_in_words() -> None:
    run = f"{sys.executable} {TESTS}/whole_program.py recall induction --rounds 1 --cache-size 64"
    full = subprocess.run(["bash", "-c", f"{run} > /dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 4
    assert full.stderr == (
        "error: the figures cannot be written to stdout: no space left on device\n  try: another place\n"
    )
