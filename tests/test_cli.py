"""Options become a request; what cannot be meant is refused with one sentence before a model is loaded."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripted import ScriptedConversation
from worlds import KeyboardBytes, Terminal, sinkchat

from sinkchat.chat.options import MemoryOptions
from sinkchat.errors import ModelNotFound
from sinkchat.terminal.asked.request import Request

NOT_FOR_PEOPLE = "--format jsonl is for programs, and this would be a conversation at the keyboard"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads variables from the process."""
    import os

    for name in [name for name in os.environ if name.startswith("SINKCHAT_")]:
        monkeypatch.delenv(name)


def test_without_options_everything_is_left_to_the_defaults() -> None:
    (request,) = sinkchat("run", b"hi").requests
    assert request == Request(model=None, load={}, memory=MemoryOptions(), chat={}, sources={}, system=None)


def test_every_option_reaches_its_place(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_bytes(b"\xef\xbb\xbfbe brief\x1b\n")
    outcome = sinkchat(
        "run some/model 'a question' --cache-size 512 --sinks 8 --evict 64 --policy window --quant none "
        "--dtype float32 --device cuda:1 --revision v2 --offline --trust-remote-code --chat-template t.jinja "
        f"--system-file {tmp_path}/system.txt -t 0 --top-p 0.5 --top-k 40 --min-p 0.1 --repetition-penalty 1.1 "
        "--seed 7 -n 64 --stop 'END OF IT' --stop STOP --color never -q"
    )
    (request,) = outcome.requests
    assert request.model == "some/model"
    assert request.load == {
        "quant": "none",
        "dtype": "float32",
        "device": "cuda:1",
        "revision": "v2",
        "offline": True,
        "trust_remote_code": True,
        "chat_template": Path("t.jinja"),
    }
    assert request.memory == MemoryOptions(cache_size=512, sinks=8, evict="64", policy="window")
    assert request.chat == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "seed": 7,
        "max_tokens": 64,
        "stop": ("END OF IT", "STOP"),
    }
    assert set(request.sources) == set(request.chat)
    assert set(request.sources.values()) == {"flag"}
    assert request.system == "be brief\\x1b\n"


def test_a_variable_stands_in_for_an_option_and_a_flag_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_TEMPERATURE", "0.3")
    monkeypatch.setenv("SINKCHAT_TOP_P", "0.4")
    monkeypatch.setenv("SINKCHAT_OFFLINE", "1")
    monkeypatch.setenv("SINKCHAT_MODEL", "mine")
    outcome = sinkchat("run --top-p 0.6", b"hi", variables={"SINKCHAT_STOP": "a b"})
    (request,) = outcome.requests
    assert (request.model, request.load) == ("mine", {"offline": True})
    assert request.chat == {"temperature": 0.3, "top_p": 0.6, "stop": ("a b",)}
    assert request.sources == {
        "temperature": "SINKCHAT_TEMPERATURE",
        "top_p": "flag",
        "stop": "SINKCHAT_STOP",
    }


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_TOP_P", "7")
    assert sinkchat("run", b"hi").stderr == "error: SINKCHAT_TOP_P is 7; use a number above 0, up to 1\n"


def test_sinks_auto_is_the_default() -> None:
    (request,) = sinkchat("run --sinks auto", b"hi").requests
    assert request.memory == MemoryOptions(sinks=None)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("run -t -1", "--temperature is -1; use a number from 0 up"),
        ("run -t nan", "--temperature is nan; use a number from 0 up"),
        ("run --top-p 0", "--top-p is 0; use a number above 0, up to 1"),
        ("run --top-k 1.5", "--top-k is 1.5; use a whole number from 0 up"),
        ("run --min-p 2", "--min-p is 2; use a number from 0 to 1"),
        ("run --repetition-penalty 0", "--repetition-penalty is 0; use a number above 0"),
        ("run --seed x", "--seed is x; use a whole number from 0 up, or none"),
        ("run -n -5", "--max-tokens is -5; use a whole number from 0 up"),
        ("run --stop ''", "--stop is empty; use a text that is not empty, or none"),
        ("run --threads 0", "--threads is 0; use a whole number from 1 up"),
        ("run --cache-size 0", "--cache-size is 0; use a whole number from 1 up"),
        ("run --sinks few", "--sinks is few; use auto or a whole number from 0 up"),
        ("run -s a --system-file b", "--system and --system-file are both given"),
        ("run --system-file /nonexistent", "--system-file /nonexistent: no such file or directory"),
        ("run m ''", "PROMPT is empty"),
        ("run 'What is it?'", "MODEL comes before PROMPT, and 'What is it?' is no model"),
        ("run --xyzzy", "no such option: --xyzzy"),
        ("run -i", "a conversation at the keyboard needs a terminal, and stdout is none"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(command: str, error: str) -> None:
    outcome = sinkchat(command, b"hi")
    assert (outcome.status, outcome.stdout, outcome.requests) == (2, "", [])
    assert outcome.stderr.splitlines()[0] == f"error: {error}"


@pytest.mark.parametrize(
    "command", ["run --policy x", "run --input x", "run --format x", "run --fit x", "run m p x", "frob"]
)
def test_the_parsers_errors_have_the_same_form(command: str) -> None:
    outcome = sinkchat(command, b"hi")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert re.fullmatch(r"error: [a-z][^\n]+\n  try: sinkchat run --help\n", outcome.stderr)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("run --input lines", "--input lines reads a pipe or a file, and stdin is a terminal"),
        ("run --format jsonl", NOT_FOR_PEOPLE),
        ("run -i m hi --format jsonl", NOT_FOR_PEOPLE),
    ],
)
def test_a_terminal_refuses_what_only_a_pipe_can_do(command: str, error: str) -> None:
    outcome = sinkchat(command, KeyboardBytes(), stdout=Terminal())
    assert (outcome.status, outcome.requests) == (2, [])
    assert outcome.stderr.splitlines()[0] == f"error: {error}"


def test_errors_of_a_model_keep_their_words_and_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = ScriptedConversation()
    conversation.fails = [ModelNotFound("there is no model xyz\x1b[2J [bold]", hint="sinkchat run smollm2")]
    outcome = sinkchat("run m hi", conversation=conversation)
    assert outcome.status == 3
    assert outcome.stderr == "error: there is no model xyz\\x1b[2J [bold]\n  try: sinkchat run smollm2\n"


def test_our_own_mistake_is_one_sentence_and_a_traceback_for_who_asks() -> None:
    def broken(text: str) -> str:
        raise KeyError(text)

    outcome = sinkchat("run m hi", conversation=ScriptedConversation(broken))
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr == ("error: unexpected KeyError: 'hi'\n  try: SINKCHAT_DEBUG=1 shows where it happened\n")
    debugged = sinkchat("run m hi", conversation=ScriptedConversation(broken), variables={"SINKCHAT_DEBUG": "1"})
    assert debugged.stderr.startswith("Traceback (most recent call last):\n")


def test_loading_shows_its_progress_on_a_terminal_and_takes_it_away() -> None:
    outcome = sinkchat("run m hi", stderr=Terminal())
    assert outcome.stderr == "\r\x1b[2K\x1b[2mloading Echo-1\x1b[0m\r\x1b[2K"
    assert sinkchat("run -q m hi", stderr=Terminal()).stderr == ""


@pytest.mark.parametrize("command", ["", "-h", "--help"])
def test_help_lists_the_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sinkchat(command).status == 0
    assert "Commands:\n  run " in capsys.readouterr().out


def test_help_names_every_option_and_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert sinkchat("run -h").status == 0
    text = capsys.readouterr().out
    for word in ("Memory:", "Pipes:", "MODEL", "PROMPT", "-s, --system TEXT", "-n, --max-tokens N", "--stop TEXT"):
        assert word in text
    for word in ("--panel", "--markdown", "--ascii", "--accessible", "--vi", "--stats", "--raw"):
        assert f"\n  {word} " in text


def test_ctrl_c_ends_the_program_silently_until_it_can_say_so_itself() -> None:
    """A press while torch-free halves of the program are imported used to leave a traceback."""
    code = "import sinkchat.__main__, os, signal; os.kill(os.getpid(), signal.SIGINT); print('still here')"
    pressed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (pressed.returncode, pressed.stdout, pressed.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_sleep_soon_unless_told_otherwise(given: dict[str, str], expected: str | None) -> None:
    """libgomp reads it when it is loaded, that is, with torch: it must be set before."""
    code = "import sinkchat.__main__, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    told = subprocess.run(
        [sys.executable, "-c", code], env={**others, **given}, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"{expected} False\n"


def test_the_program_runs_as_a_module() -> None:
    told = subprocess.run([sys.executable, "-m", "sinkchat", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("sinkchat ")
