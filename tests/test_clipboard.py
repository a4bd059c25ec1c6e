"""Which clipboard a person gets, what is sent there, and what they are told."""

import base64
import io
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from sinkchat.errors import UsageError
from sinkchat.terminal.slash.clipboard import SEQUENCE_LIMIT, Clipboard, for_environment, run_program

TEXT = "naïve\n\tcode"
WORKS: dict[str, Exception | None] = {}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Programs:
    """Programs of a machine: which are installed, and which of those fail."""

    def __init__(self, *installed: str, failing: Mapping[str, Exception] = WORKS) -> None:
        self.installed = installed
        self.failing = failing
        self.runs: list[tuple[tuple[str, ...], bytes]] = []

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.installed else None

    def run(self, arguments: Sequence[str], text: bytes) -> None:
        self.runs.append((tuple(arguments), text))
        if error := self.failing.get(arguments[0]):
            raise error


def clipboard(
    programs: Programs, stream: io.StringIO, variables: Mapping[str, str], platform: str = "linux"
) -> Clipboard:
    return for_environment(variables, stream, which=programs.which, run=programs.run, platform=platform)


def osc_52(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x1b\\"


@pytest.mark.parametrize(
    ("platform", "variables", "arguments", "encoding"),
    [
        ("darwin", {}, ("pbcopy",), "utf-8"),
        ("linux", {"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, ("wl-copy", "--type", "text/plain"), "utf-8"),
        ("linux", {"DISPLAY": ":0"}, ("xclip", "-selection", "clipboard"), "utf-8"),
        ("linux", {"WSL_DISTRO_NAME": "Debian"}, ("clip.exe",), "utf-16-le"),
        ("win32", {}, ("clip.exe",), "utf-16-le"),
    ],
)
def test_each_desktop_has_its_program(
    platform: str, variables: dict[str, str], arguments: tuple[str, ...], encoding: str
) -> None:
    programs, stream = Programs("pbcopy", "wl-copy", "xclip", "xsel", "clip.exe", "tmux"), Terminal()
    said = clipboard(programs, stream, variables, platform).copy(TEXT)
    assert programs.runs == [(arguments, TEXT.encode(encoding))]
    assert said == f"copied 11 characters with {arguments[0]}"
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("xclip"), subprocess.TimeoutExpired("xclip", 5), subprocess.CalledProcessError(1, "xclip")],
)
def test_a_program_that_fails_or_hangs_makes_room_for_the_next(error: Exception) -> None:
    programs = Programs("xclip", "xsel", failing={"xclip": error})
    assert clipboard(programs, Terminal(), {"DISPLAY": ":0"}).copy("a") == "copied 1 character with xsel"
    assert [arguments[0] for arguments, _ in programs.runs] == ["xclip", "xsel"]


def test_a_program_that_is_not_installed_is_not_tried() -> None:
    programs = Programs("xsel")
    clipboard(programs, Terminal(), {"DISPLAY": ":0"}).copy("a")
    assert [arguments[0] for arguments, _ in programs.runs] == ["xsel"]


def test_over_ssh_the_far_desktop_is_left_alone() -> None:
    programs, stream = Programs("pbcopy"), Terminal()
    clipboard(programs, stream, {"SSH_CONNECTION": "1 2 3 4"}, "darwin").copy(TEXT)
    assert programs.runs == []
    assert stream.getvalue() == osc_52(TEXT)


def test_over_ssh_a_forwarded_display_is_the_persons_own() -> None:
    programs = Programs("xclip")
    said = clipboard(programs, Terminal(), {"SSH_CONNECTION": "1 2 3 4", "DISPLAY": "localhost:10.0"}).copy(TEXT)
    assert said == "copied 11 characters with xclip"


def test_the_terminal_is_asked_where_no_program_is() -> None:
    stream = Terminal()
    said = clipboard(Programs(), stream, {"TERM": "xterm-256color"}).copy(TEXT)
    assert stream.getvalue() == osc_52(TEXT)
    assert said == (
        "11 characters sent to the terminal's clipboard; if nothing arrives, the terminal is set to refuse (OSC 52)"
    )


def test_tmux_is_asked_by_its_own_command() -> None:
    programs = Programs("tmux")
    said = clipboard(programs, Terminal(), {"TMUX": "/tmp/tmux,1,0"}).copy(TEXT)
    assert programs.runs == [(("tmux", "load-buffer", "-w", "-"), TEXT.encode())]
    assert said == "copied 11 characters with tmux; inside it, prefix ] pastes"


def test_an_old_tmux_gets_the_sequence_unwrapped() -> None:
    stream = Terminal()
    programs = Programs("tmux", failing={"tmux": subprocess.CalledProcessError(1, "tmux")})
    said = clipboard(programs, stream, {"TMUX": "/tmp/tmux,1,0"}).copy(TEXT)
    assert stream.getvalue() == osc_52(TEXT)
    assert said == (
        "11 characters sent to the terminal's clipboard; if nothing arrives: tmux set -g set-clipboard on"
    )


def test_screen_gets_the_sequence_wrapped_in_small_pieces() -> None:
    stream, text = Terminal(), "x" * 1_000
    clipboard(Programs(), stream, {"STY": "1.pts"}).copy(text)
    pieces = re.findall(r"\x1bP([^\x1b]+|\x1b\][^\x1b]+)\x1b\\", stream.getvalue())
    assert "".join(f"\x1bP{piece}\x1b\\" for piece in pieces) == stream.getvalue()
    assert "".join(pieces) == f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    assert max(map(len, pieces)) == 76


def test_the_longest_text_that_the_terminal_takes() -> None:
    stream = Terminal()
    clipboard(Programs(), stream, {}).copy("x" * 74_991)
    assert SEQUENCE_LIMIT - 4 < len(stream.getvalue()) <= SEQUENCE_LIMIT


@pytest.mark.parametrize("text", ["x" * 74_992, "é" * 37_496])
def test_a_longer_text_is_refused_with_another_way(text: str) -> None:
    stream = Terminal()
    with pytest.raises(UsageError) as caught:
        clipboard(Programs(), stream, {}).copy(text)
    assert caught.value.message == ("74,992 bytes are too many for the terminal's clipboard, which takes 74,991")
    assert caught.value.hint == "/export FILE writes the conversation to a file"
    assert stream.getvalue() == ""


def test_a_program_takes_any_length() -> None:
    programs = Programs("xclip")
    clipboard(programs, Terminal(), {"DISPLAY": ":0"}).copy("x" * 1_000_000)
    assert len(programs.runs[0][1]) == 1_000_000


@pytest.mark.parametrize(("stream", "variables"), [(io.StringIO(), {}), (Terminal(), {"TERM": "dumb"})])
def test_without_program_and_terminal_there_is_no_clipboard(stream: io.StringIO, variables: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="there is no clipboard here"):
        clipboard(Programs(), stream, variables).copy(TEXT)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("installed", [("xclip",), ()])
def test_what_would_steer_the_place_of_pasting_is_made_visible(installed: tuple[str, ...]) -> None:
    programs, stream = Programs(*installed), Terminal()
    clipboard(programs, stream, {"DISPLAY": ":0"}).copy("ls\x1b[201~\udcff\u202e")
    shown = "ls\\x1b[201~\\udcff\\u202e"
    if installed:
        assert programs.runs[0][1] == shown.encode()
    else:
        assert stream.getvalue() == osc_52(shown)


def test_a_real_program_reads_the_text_from_stdin(tmp_path) -> None:
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read()); print('noise')"
    run_program([sys.executable, "-c", code, str(tmp_path / "copied")], TEXT.encode())
    assert (tmp_path / "copied").read_bytes() == TEXT.encode()


def test_a_real_program_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_program([sys.executable, "-c", "raise SystemExit(3)"], b"text")
