"""However one of several processes ends, all end: with one sentence, in seconds, the terminal as it was."""

import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect
import pytest
from in_processes import Child, ranks_in
from terminals import CTRL_C
from tiny import tiny_model, tiny_tokenizer

from sinkchat.errors import DeviceLost, ExitStatus, ModelError, UsageError
from sinkchat.parallel.link import GRACE_SECONDS, Followers, Leader
from sinkchat.parallel.ranks import mute_followers
from sinkchat.terminal.signals import leaving_on_signals

SOON = GRACE_SECONDS + 5


def leading(folder: Path, work: Callable[[Followers], Any]) -> Child:
    def lead() -> Any:
        with Followers(ranks_in(folder, 0)) as followers:
            return work(followers)

    return Child(lead, folder / "first")


def following(folder: Path, work: Callable[[Leader], Any]) -> Child:
    return Child(lambda: work(Leader.met(ranks_in(folder, 1))), folder / "second")


def sleeping(followers: Followers) -> None:
    """What a program does that waits for a key, told to leave by signals as ours is."""
    with leaving_on_signals():
        followers.tell("begin")
        time.sleep(60)


def killed(leader: Leader) -> None:
    next(iter(leader.orders()))
    os.kill(os.getpid(), signal.SIGKILL)


def failing(error: Exception) -> Callable[[Leader], ExitStatus]:
    """A process that meets `error` with the first order."""

    def follow(orders: Any) -> None:
        next(orders)
        raise error

    return lambda leader: leader.serve(follow)


def obedient(leader: Leader) -> Any:
    return leader.serve(lambda orders: [None for _ in orders].clear())


def test_a_process_that_is_killed_ends_the_first_with_a_sentence(tmp_path: Path) -> None:
    first, second = leading(tmp_path, sleeping), following(tmp_path, killed)
    began = time.monotonic()
    assert second.status() == -signal.SIGKILL
    error = first.answer()
    assert time.monotonic() - began < SOON
    assert isinstance(error, DeviceLost)
    assert str(error) == "process 1 of 2 (counted from 0) ended unexpectedly"


def test_a_process_that_fails_says_why_by_the_first(tmp_path: Path) -> None:
    first, second = leading(tmp_path, sleeping), following(tmp_path, failing(ModelError("its weights are damaged")))
    assert second.answer() == ExitStatus.MODEL
    assert str(first.answer()) == "process 1 of 2 (counted from 0) failed: its weights are damaged"


def test_what_all_meet_alike_is_said_by_the_first_however_slow_it_is(tmp_path: Path) -> None:
    def slowly(followers: Followers) -> None:
        followers.tell("begin")
        time.sleep(3)
        raise UsageError("two cannot share it", hint="--processes 3")

    first, second = leading(tmp_path, slowly), following(tmp_path, failing(UsageError("two cannot share it")))
    error = first.answer()
    assert isinstance(error, UsageError)
    assert str(error) == "two cannot share it"
    assert second.answer() == ExitStatus.OK


def test_what_is_asked_of_a_process_that_is_gone_raises(tmp_path: Path) -> None:
    def ask(followers: Followers) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        followers.tell("begin")
        time.sleep(0.5)
        try:
            for _ in range(3):
                followers.tell("append", 1)
        except DeviceLost as error:
            raise RuntimeError(f"told: {error}") from error

    first, second = leading(tmp_path, ask), following(tmp_path, killed)
    second.status()
    assert str(first.answer()) == "told: process 1 of 2 (counted from 0) ended unexpectedly"


def test_ctrl_c_by_way_of_torchrun_leaves_orderly(tmp_path: Path) -> None:
    def lead() -> None:
        ranks = replace(ranks_in(tmp_path, 0), is_elastic=True)
        with Followers(ranks) as followers, leaving_on_signals():
            followers.tell("begin")
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            try:
                for _ in range(600):  # a signal that comes just before a sleep is heard after it
                    time.sleep(0.1)
            finally:
                followers.tell("while leaving")

    first, second = Child(lead, tmp_path / "first"), following(tmp_path, obedient)
    assert isinstance(first.answer(), KeyboardInterrupt)
    assert second.answer() == ExitStatus.OK


def test_the_first_leaves_at_once_where_it_cannot_leave_orderly(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)

    def stuck(followers: Followers) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raw = termios.tcgetattr(0)
        raw[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(0, termios.TCSANOW, raw)
        followers.tell("begin")
        time.sleep(60)

    def lead() -> None:
        os.dup2(theirs, 0)
        sys.stderr = open(tmp_path / "stderr", "w")  # noqa: SIM115
        with Followers(ranks_in(tmp_path, 0)) as followers:
            stuck(followers)

    first, second = Child(lead, tmp_path / "first"), following(tmp_path, killed)
    began = time.monotonic()
    second.status()
    assert first.status() == ExitStatus.RESOURCE
    assert time.monotonic() - began < SOON
    assert (tmp_path / "stderr").read_text() == "error: process 1 of 2 (counted from 0) ended unexpectedly\n"
    assert termios.tcgetattr(theirs) == modes
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_others_end_quietly_with_the_first(tmp_path: Path, number: signal.Signals) -> None:
    first, second = leading(tmp_path, sleeping), following(tmp_path, obedient)
    time.sleep(0.3)
    os.kill(first.number, number)
    first.status()
    assert second.answer() == ExitStatus.OK


def test_signals_that_torchrun_hands_on_do_not_end_the_others(tmp_path: Path) -> None:
    def lead(followers: Followers) -> str:
        followers.tell("begin")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(second.number, number)
        time.sleep(0.3)
        followers.tell("append", 1)
        return "all is well"

    second = following(tmp_path, obedient)
    first = leading(tmp_path, lead)
    assert first.answer() == "all is well"
    assert second.answer() == ExitStatus.OK


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}, ""),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}, "words\n"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "words\n"),
        ({}, "words\n"),
    ],
)
def test_only_the_followers_say_nothing(tmp_path: Path, variables: dict[str, str], said: str) -> None:
    def speak() -> None:
        stdout = os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(stdout, 1)
        mute_followers(variables)
        os.write(1, b"words\n")

    assert Child(speak, tmp_path / "answer").answer() is None
    assert (tmp_path / "stdout").read_text() == said


class Torchrun:
    """The program under torchrun, on a terminal, in the middle of an answer without end."""

    def __init__(self, folder: Path) -> None:
        model = tiny_model()
        model.lm_head.weight[tiny_tokenizer().eos_token_id] = 0  # never the likeliest
        model.save_pretrained(folder / "model")
        tiny_tokenizer().save_pretrained(folder / "model")
        root = str(Path(__file__).parent.parent)
        program = [
            "sinkchat",
            "run",
            str(folder / "model"),
            "--dtype",
            "float32",
            "-n",
            "0",
            "-t",
            "0",
            "--cache-size",
        ]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *program, "64"]
        more = {
            "PYTHONPATH": root,
            "XDG_STATE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "TERM": "xterm-256color",
        }
        self.child: Any = pexpect.spawn(sys.executable, launch, env={**os.environ, **more}, timeout=300)
        self.modes = termios.tcgetattr(self.child.child_fd)
        self.child.expect("cut across 2 processes")
        self.child.expect("kv 0/64")
        time.sleep(1)  # the prompt is drawn anew below the notes
        self.child.send("hello\r")
        self.child.expect("tok/s")

    def ranks(self) -> list[int]:
        """The numbers of the processes, rank 0 first."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.child.pid)], capture_output=True, text=True)
        return sorted(map(int, found.stdout.split()))

    def ended(self) -> tuple[list[str], float]:
        """The rows that are ours, without torch's words, and after how many seconds all processes had ended."""
        began, numbers = time.monotonic(), self.ranks()
        self.child.expect(pexpect.EOF)
        modes = termios.tcgetattr(self.child.child_fd)
        self.child.close()
        assert self.child.exitstatus == 1  # torchrun's own
        assert not [number for number in numbers if Path(f"/proc/{number}").exists()]
        assert modes == self.modes
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[78]", "", self.child.before.decode(errors="replace"))
        return [row.strip() for row in re.split(r"[\r\n]+", said)], time.monotonic() - began


@pytest.mark.slow
def test_ctrl_c_under_torchrun_leaves_with_the_conversation_saved(tmp_path: Path) -> None:
    run = Torchrun(tmp_path)
    run.child.send(CTRL_C)
    rows, seconds = run.ended()
    assert [row for row in rows if re.fullmatch("sinkchat resume [-a-z0-9]+ goes on with this conversation", row)]
    assert not [row for row in rows if row.startswith("error:")]
    assert seconds < 15


@pytest.mark.slow
def test_a_process_that_is_killed_under_torchrun_ends_all_with_one_sentence(tmp_path: Path) -> None:
    run = Torchrun(tmp_path)
    os.kill(run.ranks()[1], signal.SIGKILL)
    rows, seconds = run.ended()
    assert [row for row in rows if row.startswith("error:")] == [
        "error: process 1 of 2 (counted from 0) ended unexpectedly"
    ]
    assert seconds < 15
    kept = [path.read_bytes() for path in (tmp_path / "sinkchat" / "sessions").rglob("*") if path.is_file()]
    assert [words for words in kept if b"hello" in words]
