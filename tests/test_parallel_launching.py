"""Processes that the program starts itself: what they are told, and that all end when one does, whenever that is."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from terminals import CTRL_C, CTRL_D, TESTS, Program
from worlds import sinkchat

from sinkchat.parallel.link import GRACE_SECONDS

SOON = 10.0
"""for a process to end on a busy machine; those that would wait do so for minutes"""


class First:
    """A process that does `first`, having started others that do `other`."""

    def __init__(self, folder: Path, first: str, other: str, count: int = 2) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "launched.py"), first, other, str(count)],
            env={**kept, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "FOLDER": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.number = self._process.pid

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def said(self) -> list[str]:
        """Waits for its end; the lines that it wrote on stdout, having written none on stderr."""
        stdout, stderr = self._process.communicate()
        assert stderr == ""
        return stdout.splitlines()

    def other(self, rank: int = 1) -> dict[str, object]:
        """What is known of another, once it has begun."""
        for _ in range(600):
            if found := [path for path in self._folder.glob(f"*-{rank}") if not path.suffix]:
                facts: dict[str, object] = json.loads(found[0].read_text())
                return facts
            time.sleep(0.05)
        raise AssertionError("it has not begun")

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def ends(number: object, seconds: float = SOON) -> bool:
    """Whether the process ends, or has ended, soon."""
    assert isinstance(number, int)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_each_process_is_told_which_it_is_and_where_to_meet(tmp_path: Path) -> None:
    first = First(tmp_path, "look_around", "obey", 3)
    threads = str(max(1, (os.cpu_count() or 1) // 3))
    told, left = first.said()
    port = json.loads(told)["MASTER_PORT"]
    every = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    every["OMP_NUM_THREADS"] = threads
    assert json.loads(told) == every | {"RANK": "0", "LOCAL_RANK": "0"}
    for rank in (1, 2):
        assert first.other(rank) == {
            "pid": first.other(rank)["pid"],
            "variables": every | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            "in a session of its own": True,
            "stdout": True,
        }
    assert left == "0 left"


def test_the_port_is_given_to_nobody_and_had_by_who_names_it(tmp_path: Path) -> None:
    assert First(tmp_path, "try_the_port", "never_meet").said() == ["taken", "had", "0 left"]


def test_ctrl_c_at_the_terminal_reaches_the_first_alone(tmp_path: Path) -> None:
    assert First(tmp_path, "interrupt_all_at_the_terminal", "obey").said() == ["all goes on", "0 left"]


@pytest.mark.parametrize("first", ["leave", "meet_and_leave"])
def test_nothing_is_left_when_the_first_leaves(tmp_path: Path, first: str) -> None:
    began = time.monotonic()
    assert First(tmp_path, first, "obey" if "meet" in first else "never_meet").said() == ["0 left"]
    assert time.monotonic() - began < SOON


def test_one_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    first = First(tmp_path, "leave", "never_end")
    assert first.said() == ["0 left"]
    assert time.monotonic() - began < GRACE_SECONDS + SOON
    assert ends(first.other()["pid"], 0.1)


def test_the_others_end_with_a_first_that_is_killed_before_they_have_met(tmp_path: Path) -> None:
    first = First(tmp_path, "wait", "never_meet")
    number = first.other()["pid"]
    assert not ends(number, 0.3)
    first.kill()
    assert ends(number)


def test_the_others_end_with_a_first_that_is_killed_after_they_have_met(tmp_path: Path) -> None:
    first = First(tmp_path, "meet_and_wait", "obey")
    assert first.line() == "met\n"
    number = first.other()["pid"]
    assert not ends(number, 0.3)
    first.kill()
    assert ends(number)


@pytest.mark.parametrize("first", ["wait", "meet_and_wait"])
@pytest.mark.parametrize(
    ("other", "why"), [("fail", "failed: ImportError: there is no torch here"), ("die", "ended unexpectedly")]
)
def test_one_that_ends_before_they_have_met_ends_the_first_with_its_reason(
    tmp_path: Path, first: str, other: str, why: str
) -> None:
    began = time.monotonic()
    assert First(tmp_path, first, other).said() == [f"lost: process 1 of 2 (counted from 0) {why}", "0 left"]
    assert time.monotonic() - began < SOON


def test_one_that_is_killed_after_they_have_met_ends_the_first(tmp_path: Path) -> None:
    first = First(tmp_path, "meet_and_wait", "obey")
    assert first.line() == "met\n"
    number = first.other()["pid"]
    assert isinstance(number, int)
    os.kill(number, signal.SIGKILL)
    assert first.said() == ["lost: process 1 of 2 (counted from 0) ended unexpectedly", "0 left"]


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads variables from the process."""
    for name in [name for name in os.environ if name.startswith("SINKCHAT_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("command", ["run m hi --processes {}", "resume --processes {}"])
@pytest.mark.parametrize("number", ["0", "two", "-1"])
def test_what_is_no_number_of_processes_is_refused(command: str, number: str) -> None:
    outcome = sinkchat(command.format(number))
    assert (outcome.status, outcome.requests) == (2, [])
    assert outcome.stderr == f"error: --processes is {number}; use a whole number from 1 up\n"


@pytest.mark.usefixtures("no_variables")
def test_a_number_of_processes_stands_in_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("processes = 0\n")
    for command in ("run m hi", "resume"):
        outcome = sinkchat(command, config_folder=tmp_path)
        assert outcome.stderr == "error: config.toml: processes is 0; use a whole number from 1 up\n"
    (request,) = sinkchat("run m hi --processes 1", config_folder=tmp_path).requests
    assert request.followers is None
    assert request.load == {}


@pytest.mark.usefixtures("no_variables")
def test_processes_that_torchrun_has_started_start_no_others() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"}
    outcome = sinkchat("run m hi --processes 2", variables=torchrun)
    assert (outcome.status, outcome.requests) == (2, [])
    assert outcome.stderr == (
        "error: --processes 2 starts processes, and RANK and WORLD_SIZE say that they are started already\n"
        "  try: either --processes or torchrun\n"
    )


class Chat(Program):
    """The real program in two processes, on a terminal, asked what a tiny model answers without end."""

    def __init__(self, command: str, home: Path) -> None:
        super().__init__(f"{command} --processes 2", home, program="whole_program.py", size=(40, 100))
        assert self.shows("every layer is cut across 2 processes", 300), self.rows
        assert self.is_asked(60)
        first = psutil.Process(self.child.pid)
        self.numbers = [first.pid, *(child.pid for child in first.children(recursive=True))]
        assert len(self.numbers) == 2

    def is_asked_and_answers(self, question: str, turn: int) -> bool:
        """Whether it is in the middle of the answer."""
        self.type(f"{question}\r")
        return self.shows(f"─ turn {turn} ", 60) and self.shows(" tok/s · first ", 60)

    def all_have_ended(self) -> bool:
        return all(ends(number) for number in self.numbers)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What to type for the tiny model, greedy, in a small memory."""
    from tiny import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny_model()
    model.lm_head.weight[tiny_tokenizer().eos_token_id] = 0  # never the likeliest
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return f"sinkchat run {folder} --dtype float32 --device cpu --no-compile -t 0 --cache-size 128"


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(tmp_path: Path, endless: str) -> None:
    with Chat(f"{endless} -n 0", tmp_path) as chat:
        for turn, question in ((1, "hello"), (2, "and then")):
            assert chat.is_asked_and_answers(question, turn), chat.rows
            chat.type(CTRL_C)
            assert chat.is_asked(), chat.rows
            assert [row for row in chat.rows if row.startswith("note: stopped: ")] == [
                "note: stopped: what was said so far is kept · /continue goes on"
            ] * turn
            chat.watch(2.5)  # a second one sooner would leave
        chat.type(CTRL_D)
        assert chat.status() == 0
        assert chat.rows[-1].endswith(" goes on with this conversation")
        assert chat.all_have_ended()


@pytest.mark.slow
def test_ctrl_c_twice_leaves_and_memory_goes_on_to_the_bit(tmp_path: Path, endless: str) -> None:
    with Chat(f"{endless} -n 0", tmp_path) as chat:
        assert chat.is_asked_and_answers("hello", 1)
        chat.type(CTRL_C)
        chat.watch(0.5)  # two signals at once are one
        chat.type(CTRL_C)
        assert chat.status() == 130
        assert not [row for row in chat.rows if row.startswith("error: ")]
        assert chat.all_have_ended()
    with Chat("sinkchat resume", tmp_path) as chat:
        assert "reading again" not in chat.written
        assert chat.is_asked_and_answers("and then", 2)
        chat.type(CTRL_C)
        assert chat.is_asked()


@pytest.mark.slow
def test_one_that_is_killed_in_mid_answer_ends_all_with_one_sentence(tmp_path: Path, endless: str) -> None:
    with Chat(f"{endless} -n 0", tmp_path) as chat:
        assert chat.is_asked_and_answers("hello", 1)
        os.kill(chat.numbers[1], signal.SIGKILL)
        began = time.monotonic()
        assert chat.status() == 4
        assert time.monotonic() - began < GRACE_SECONDS + SOON
        assert [row for row in chat.rows if row.startswith("error: ")] == [
            "error: process 1 of 2 (counted from 0) ended unexpectedly"
        ]
        assert chat.all_have_ended()


@pytest.mark.slow
def test_a_first_that_is_killed_in_mid_answer_leaves_no_other(tmp_path: Path, endless: str) -> None:
    with Chat(f"{endless} -n 0", tmp_path) as chat:
        assert chat.is_asked_and_answers("hello", 1)
        os.kill(chat.numbers[0], signal.SIGKILL)
        assert chat.all_have_ended()


@pytest.mark.slow
def test_a_terminal_that_is_closed_in_mid_answer_leaves_nothing(tmp_path: Path, endless: str) -> None:
    with Chat(f"{endless} -n 0", tmp_path) as chat:
        assert chat.is_asked_and_answers("hello", 1)
        chat.child.ptyproc.fileobj.close()
        assert chat.all_have_ended()


@pytest.mark.slow
def test_a_pipe_gets_the_same_text_from_two_processes_as_from_one(tmp_path: Path, endless: str) -> None:
    def piped(*more: str) -> tuple[int, bytes]:
        command = [sys.executable, str(TESTS / "whole_program.py"), *endless.split()[1:], "-n", "40", "-q", *more]
        done = subprocess.run(
            command,
            input=b"hi there",
            capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "XDG_STATE_HOME": str(tmp_path)},
            check=False,
        )
        assert done.stderr == b""
        return done.returncode, done.stdout

    alone = piped()
    assert len(alone[1]) > 20
    assert piped("--processes", "2") == alone
