"""What all measurements have in common: watched, stopped, told however they end, with the model of config.toml."""

import errno
import io
import json
import math
import os
import signal
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from worlds import Terminal, environment, sinkchat

from sinkchat.cli import run as sinkchat_run
from sinkchat.errors import ExitStatus, OutOfMemory, ResourceError, UsageError
from sinkchat.terminal.asked.config import keys_of
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab import attention, bench, perplexity, recall
from sinkchat.terminal.lab.options import Subject, chosen_for, subject_for
from sinkchat.terminal.lab.running import Output, Pace, Watch, between_steps, run


@dataclass
class Counting:
    """Counts to three, and meets what a test wants it to meet on the way."""

    meets: dict[int, BaseException] = field(default_factory=dict)
    resumption: str = ""
    found: list[int] = field(default_factory=list)
    drawing: OSError | UsageError | None = None

    def measure(self, watch: Watch) -> None:
        for number in (1, 2, 3):
            watch.tell("counting", f"{number} of 3")
            if number in self.meets:
                raise self.meets[number]
            self.found.append(number)

    @property
    def has_figures(self) -> bool:
        return bool(self.found)

    def record(self) -> Any:
        return {"found": (*self.found, math.inf)}

    def write(self, environment: Environment) -> None:
        environment.stdout.write(f"{self.found}\n")

    def draw(self, path: Path) -> None:
        if self.drawing is not None:
            raise self.drawing
        path.write_text(f"{self.found}")


def world(**streams: Any) -> tuple[Environment, io.StringIO, io.StringIO]:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()} | streams
    return environment(io.BytesIO(), **streams), streams["stdout"], streams["stderr"]


def test_what_was_measured_is_written() -> None:
    here, stdout, stderr = world()
    assert run(Counting(), Output(), here) == ExitStatus.OK
    assert (stdout.getvalue(), stderr.getvalue()) == ("[1, 2, 3]\n", "")


def test_ctrl_c_writes_what_was_measured_until_then() -> None:
    here, stdout, stderr = world()
    assert run(Counting({3: KeyboardInterrupt()}), Output(), here) == ExitStatus.INTERRUPTED
    assert stdout.getvalue() == "[1, 2]\n"
    assert stderr.getvalue() == "note: stopped: the figures are of what was measured until then\n"


def test_a_measurement_that_can_be_gone_on_with_says_how() -> None:
    here, _, stderr = world()
    run(Counting({2: KeyboardInterrupt()}, resumption="--resume it goes on"), Output(), here)
    assert (
        stderr.getvalue() == "note: stopped: the figures are of what was measured until then; --resume it goes on\n"
    )


def test_ctrl_c_before_there_is_a_figure_just_leaves() -> None:
    here, stdout, stderr = world()
    with pytest.raises(KeyboardInterrupt):
        run(Counting({1: KeyboardInterrupt()}), Output(), here)
    assert (stdout.getvalue(), stderr.getvalue()) == ("", "")


def test_an_error_is_raised_once_the_figures_are_told() -> None:
    here, stdout, _ = world()
    with pytest.raises(OutOfMemory):
        run(Counting({2: OutOfMemory("out of memory")}), Output(as_json=True), here)
    assert json.loads(stdout.getvalue()) == {"found": [1, None]}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_leave_does_not_lose_the_figures(name: str) -> None:
    class Killed(Counting):
        def measure(self, watch: Watch) -> None:
            self.found.append(1)
            signal.raise_signal(getattr(signal, name))

    here, stdout, _ = world()
    with pytest.raises(SystemExit) as left:
        run(Killed(), Output(), here)
    assert left.value.code == {"SIGTERM": ExitStatus.TERMINATED, "SIGHUP": ExitStatus.HANGUP}[name]
    assert stdout.getvalue() == "[1]\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plot.jpg", "a plot is not written as .jpg"),
        ("plot", "a plot is not written as a file without an ending"),
        ("no/plot.png", "there is no folder"),
        (".", "is a folder"),
    ],
)
def test_a_plot_that_cannot_be_is_refused_before_any_work(tmp_path: Path, name: str, message: str) -> None:
    pytest.importorskip("matplotlib")
    counting = Counting()
    with pytest.raises(UsageError, match=message):
        run(counting, Output(plot=tmp_path / name), world()[0])
    assert counting.found == []


def test_a_plot_that_fails_at_last_does_not_cost_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    here, stdout, _ = world()
    counting = Counting(drawing=UsageError("--plot cannot be written"))
    with pytest.raises(UsageError):
        run(counting, Output(plot=tmp_path / "plot.png"), here)
    assert stdout.getvalue() == "[1, 2, 3]\n"


class Failing(io.StringIO):
    """A stream to which nothing can be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def test_a_reader_that_has_gone_does_not_cost_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    here, _, _ = world(stdout=Failing(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        run(Counting(), Output(plot=tmp_path / "plot.png"), here)
    assert (tmp_path / "plot.png").read_text() == "[1, 2, 3]"


def test_a_full_disk_is_told_in_words() -> None:
    here, _, _ = world(stdout=Failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(ResourceError) as told:
        run(Counting(), Output(), here)
    assert told.value.message == "the figures cannot be written to stdout: no space left on device"


def narrow(columns: int, stderr: io.StringIO) -> Environment:
    here, _, _ = world(stderr=stderr)
    return Environment(
        here.stdin,
        here.stdout,
        stderr,
        {},
        here.state_folder,
        here.config_folder,
        clock=here.clock,
        terminal_size=lambda: os.terminal_size((columns, 24)),
    )


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (80, "4 sinks + 252 · 1,024 of 3,000 tokens · perplexity 15.70 · 7 s"),
        (40, "4 sinks + 252 · 1,024 of 3,000 tokens"),
        (30, "4 sinks + 252 · 7 s"),
        (9, "4 sink"),
    ],
)
def test_a_status_line_is_never_wider_than_the_terminal(columns: int, line: str) -> None:
    stderr = Terminal()
    Watch(narrow(columns, stderr)).tell("4 sinks + 252", "1,024 of 3,000 tokens", "perplexity 15.70", "7 s")
    assert stderr.getvalue().split("\x1b[2K")[1].replace("\x1b[2m", "").replace("\x1b[0m", "") == line


def test_the_time_left_is_that_of_the_rest_at_the_same_pace() -> None:
    now = [10.0]
    pace = Pace(lambda: now[0])
    assert pace.left(0, 100) == "Ctrl-C stops"
    now[0] = 20.0
    assert pace.left(1, 100) == "Ctrl-C stops"
    assert pace.left(25, 100) == "30 s left"
    assert pace.left(100, 100) == "0 s left"


def test_between_steps_ctrl_c_waits_for_the_event_and_the_work_is_closed() -> None:
    done = []

    def events() -> Generator[str, None, None]:
        try:
            signal.raise_signal(signal.SIGINT)
            done.append("computed")
            yield "event"
            done.append("more")
        finally:
            done.append("closed")

    found: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(between_steps(events(), lambda: 0.0))
    assert (found, done) == (["event"], ["computed", "closed"])


def subject_of(command: Any, words: list[str], config: str, folder: Path) -> Subject:
    """Which model a command measures, where config.toml is as it is."""
    (folder / "config.toml").write_text(config)
    caught: list[Subject] = []

    def catching(context: typer.Context, **_: Any) -> None:
        caught.append(subject_for(chosen_for(context)))

    app = typer.Typer()
    app.command(cls=GroupedHelp)(command)
    parser = typer.main.get_command(app)
    here = environment(io.BytesIO(), config_folder=folder)
    with parser.make_context(
        "x", words, obj=SimpleNamespace(environment=here, keys=keys_of(sinkchat_run))
    ) as context:
        catching(context)  # type: ignore[arg-type]
    return caught[0]


CONFIG = (
    'model = "mine"\ndtype = "float32"\ndevice = "cpu"\nquant = "none"\noffline = true\ncache-size = 99\nvi = true\n'
)


@pytest.mark.parametrize("command", [perplexity.perplexity, attention.attention, recall.recall, bench.bench])
def test_the_model_and_how_it_is_loaded_come_from_config_too(command: Any, tmp_path: Path) -> None:
    found = subject_of(command, [], CONFIG, tmp_path)
    assert found.model == "mine"
    assert found.load.items() >= {"dtype": "float32", "device": "cpu", "quant": "none", "offline": True}.items()


def test_what_is_typed_beats_config(tmp_path: Path) -> None:
    found = subject_of(attention.attention, ["typed", "--dtype", "bfloat16"], CONFIG, tmp_path)
    assert (found.model, found.load["dtype"], found.load["device"]) == ("typed", "bfloat16", "cpu")


def test_the_cache_size_of_chats_is_not_that_of_measurements(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("cache-size = 99\n")
    app = typer.Typer()
    app.command(cls=GroupedHelp)(recall.recall)
    here = environment(io.BytesIO(), config_folder=tmp_path)
    world = SimpleNamespace(environment=here, keys=keys_of(sinkchat_run))
    with typer.main.get_command(app).make_context("x", ["induction"], obj=world) as context:
        assert "cache_size" not in chosen_for(context)  # type: ignore[arg-type]


def test_a_slip_in_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no option modle, did you mean model"):
        subject_of(attention.attention, [], 'modle = "mine"\n', tmp_path)


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("attention --length 1", "--length 1 is not a whole number from 2 up", "a whole number from 2 up"),
        ("attention --sinks many", "--sinks many is not a whole number from 1 up", "a whole number from 1 up"),
        ("recall --rounds 0", "--rounds 0 is not a whole number from 1 up", "a whole number from 1 up"),
        ("recall --distances 1,,2", "--distances (nothing) is not a whole number from 1 up", "--distances 1,10,40"),
        ("pretrain --length 15", "--length 15 is not a whole number from 16 up", "a whole number from 16 up"),
        (
            "perplexity --text b --every 1e3",
            "--every 1e3 is not a whole number from 1 up",
            "a whole number from 1 up",
        ),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_in_the_same_words_by_all(
    typed: str, message: str, hint: str
) -> None:
    outcome = sinkchat(typed)
    assert (outcome.status, outcome.stdout) == (ExitStatus.USAGE, "")
    assert outcome.stderr == f"error: {message}\n  try: {hint}\n"
