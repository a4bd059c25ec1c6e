"""An answer above its footer in a real terminal: tmux, which lays lines out anew when it is resized."""

import operator
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import psutil
import pytest
from frames_program import FAULTS, FOOTER_GLYPHS, paragraphs

TESTS = Path(__file__).parent

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """A tmux server of its own, with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        self._settings = folder / "tmux.conf"
        self._settings.write_text("set -g history-limit 100000\nset -g default-terminal screen-256color\n")

    def __call__(self, *arguments: str, check: bool = True) -> str:
        command = ["tmux", "-S", self._socket, "-f", str(self._settings), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=20).stdout

    def start(self, command: str, *, columns: int = 80, lines: int = 24) -> None:
        self("new-session", "-d", "-x", str(columns), "-y", str(lines), command)

    def text(self) -> list[str]:
        """The whole scrollback and screen, wrapped lines joined."""
        return [row.rstrip() for row in self("capture-pane", "-p", "-J", "-S", "-").rstrip().splitlines()]

    def type(self, text: str) -> None:
        self("send-keys", "-l", text)

    def wait_for(self, row: str, seconds: float = 60) -> list[str]:
        """The text as soon as one of its rows begins with `row`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if any(shown.startswith(row) for shown in text):
                return text
            time.sleep(0.1)
        raise AssertionError(f"{row!r} never came: {text[-30:]}")


def program(*arguments: str) -> str:
    line = shlex.join([sys.executable, str(TESTS / "frames_program.py"), *arguments])
    return f"PYTHONPATH={shlex.quote(str(TESTS.parent))} {line}"


def shown(tmux: Tmux, *arguments: str, columns: int = 80) -> list[str]:
    """What is left on the terminal by a program that ran to its end, without the blank rows before it."""
    tmux.start(f"exec env {program(*arguments)}", columns=columns)
    text = [row for row in tmux.wait_for("END") if not row.startswith("END")]
    return list(dropwhile(operator.not_, text))


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    server("kill-server", check=False)


@pytest.mark.parametrize("columns", [58, 80, 100, 140])
def test_each_paragraph_is_there_once_and_nothing_else(tmux: Tmux, columns: int) -> None:
    assert shown(tmux, "200", "plain", "none", columns=columns) == paragraphs(200)


def test_letters_of_unsure_width_are_not_lost_at_the_margin(tmux: Tmux) -> None:
    assert shown(tmux, "40", "all", "none", columns=61) == paragraphs(40, "all")


def test_resizing_loses_nothing_and_leaves_nothing_behind(tmux: Tmux) -> None:
    sizes = [58, 12, 140, 30, 100, 6, 61, 24, 33, 20, 80, 24]
    assert shown(tmux, "20", "plain", "none", *map(str, sizes)) == paragraphs(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        "58 24 100 24 140 24 80 24",
        "80 10 80 24 80 5 80 40",
        " ".join(f"{columns} 24" for columns in [*range(137, 60, -4), *range(61, 140, 4)]),
        "58 12 140 30 100 6 61 24 33 20 80 24",
    ],
)
def test_a_hundred_resizes_lose_nothing_and_leave_nothing_behind(tmux: Tmux, sizes: str) -> None:
    assert shown(tmux, "200", "plain", "none", *sizes.split()) == paragraphs(200)


@pytest.mark.slow
def test_frames_drawn_before_a_resize_is_known_lose_nothing_either(tmux: Tmux) -> None:
    sizes = [58, 12, 140, 30, 100, 6, 61, 24, 33, 20, 80, 24]
    assert shown(tmux, "60", "plain", "none", "now", *map(str, sizes)) == paragraphs(60)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_writer_with_a_fault_is_caught(tmux: Tmux, fault: str) -> None:
    assert shown(tmux, "30", "plain", fault) != paragraphs(30)


def test_a_footer_that_is_not_erased_is_seen(tmux: Tmux) -> None:
    assert set(FOOTER_GLYPHS) & set("".join(shown(tmux, "30", "plain", "unerased")))


class Shell:
    """A shell with job control, in which the program answers slowly."""

    def __init__(self, tmux: Tmux, folder: Path) -> None:
        self._tmux = tmux
        self._folder = folder
        tmux.start("env PS1='$ ' bash --norc --noprofile -i")
        tmux.wait_for("$")
        self.settings_before = self.settings()
        tmux.type(f"clear; env {program('typing')}\n")
        tmux.wait_for(f"{paragraphs(6)[2][:10]}")

    def settings(self) -> str:
        """The terminal's settings, told by a shell that has the terminal back."""
        settings = self._folder / "settings"
        settings.unlink(missing_ok=True)
        self._tmux.type(f"stty -g > {settings}.new && mv {settings}.new {settings}\n")
        deadline = time.monotonic() + 20
        while not settings.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return settings.read_text()


def row_of(beginning: str, text: list[str]) -> int:
    return next(number for number, row in enumerate(text) if row.startswith(beginning))


def letters(text: list[str]) -> str:
    return "".join("".join(text).split())


@pytest.fixture
def shell(tmux: Tmux, tmp_path: Path) -> Shell:
    return Shell(tmux, tmp_path)


def test_what_is_typed_meanwhile_is_not_echoed_and_stands_at_the_prompt(tmux: Tmux, shell: Shell) -> None:
    tmux.type("hel")
    tmux("send-keys", "F2")
    tmux.type("lo")
    text = tmux.wait_for("> hello")
    tmux.type("!\r")
    text = tmux.wait_for("heard")
    assert "heard 'hello!'" in text
    answer = letters(text[row_of("<0>", text) : row_of("> hello!", text)])
    assert answer.replace("<F2>", "", 1) == letters(paragraphs(6))
    assert shell.settings() == shell.settings_before


def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on(tmux: Tmux, shell: Shell) -> None:
    tmux("send-keys", "C-z")
    text = tmux.wait_for("[1]+  Stopped")
    assert not set(FOOTER_GLYPHS) & set("".join(text))
    assert shell.settings() == shell.settings_before
    tmux.type("fg\n")
    text = tmux.wait_for(">")
    begun, stopped = row_of("<0>", text), row_of("[1]+  Stopped", text)
    resumed = row_of("$ fg", text) + 2  # bash repeats the command
    answer = text[begun:stopped] + text[resumed : row_of(">", text)]
    assert letters(answer) == letters(paragraphs(6))
    tmux.type("still here\r")
    tmux.wait_for("heard 'still here'")
    assert shell.settings() == shell.settings_before


def test_sigterm_leaves_text_and_a_whole_terminal(tmux: Tmux, shell: Shell) -> None:
    shell_process = tmux("display-message", "-p", "#{pane_pid}").strip()
    (answering,) = psutil.Process(int(shell_process)).children()
    answering.terminate()
    psutil.wait_procs([answering], timeout=20)
    text = tmux.text()
    assert not set(FOOTER_GLYPHS) & set("".join(text))
    assert tmux("display-message", "-p", "#{cursor_flag}#{wrap_flag}").strip() == "11"
    tmux.type("\necho status $?\n")
    tmux.wait_for("status 143")
    assert shell.settings() == shell.settings_before
