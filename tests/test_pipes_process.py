"""What only a process shows: signals, closed pipes, encodings, and what is imported for a help page."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, cast

import pytest

TESTS = Path(__file__).parent
PROGRAM = [sys.executable, str(TESTS / "echo_program.py")]


def world(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS.parent), **variables}


def run(*arguments: str | bytes, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, env=world(**variables), timeout=60
    )


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    line = line.replace("sinkchat", " ".join(PROGRAM))
    return subprocess.run(["bash", "-c", line], capture_output=True, env=world(**variables), timeout=60)


class Running:
    """The program while it runs. Leaving the context ends it."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        pipe = subprocess.PIPE
        self._folder = tempfile.TemporaryDirectory()
        self._loading = Path(self._folder.name, "loading")
        environment = world(LOADING=str(self._loading), **variables)
        self.process = subprocess.Popen([*PROGRAM, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        self.stdin = cast(IO[bytes], self.process.stdin)
        self.stdout = cast(IO[bytes], self.process.stdout)
        self.stderr = cast(IO[bytes], self.process.stderr)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self._folder.cleanup()

    def wait_for_loading(self) -> None:
        """Waits until it has started, however busy the machine is, and a little longer."""
        while not self._loading.exists():
            assert self.process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)

    def type(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def first_words(self) -> bytes:
        return os.read(self.stdout.fileno(), 100)

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def status(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)


def test_text_comes_as_it_is_said() -> None:
    with Running("run", "m", "hi", ECHO="one two three", TOKEN_SECONDS="0.5") as process:
        process.stdin.close()
        assert process.first_words() == b"one "


def test_lines_flow_through_a_pipe_that_stays_open() -> None:
    with Running("run", "--input", "lines") as process:
        process.type(b"one\n")
        assert process.stdout.readline() == b"you said: one\n"
        process.type(b"two\n")
        assert [process.stdout.readline(), process.stdout.readline()] == [b"\n", b"you said: two\n"]
        process.stdin.close()
        assert (process.status(20), process.stdout.read()) == (0, b"")


@pytest.mark.parametrize("output", ["text", "jsonl"])
def test_a_closed_pipe_stops_decoding_at_once_without_a_word(output: str) -> None:
    answer = "word " * 1_000
    with Running("run", "m", "hi", "--format", output, ECHO=answer, TOKEN_SECONDS="0.02") as process:
        process.stdin.close()
        process.first_words()
        process.stdout.close()
        began = time.monotonic()
        assert process.status(20) == 141
        assert time.monotonic() - began < 5
        assert process.stderr.read() == b""


def test_a_closed_pipe_at_the_last_flush_says_nothing_either() -> None:
    process = shell("sinkchat run -h | true; echo ${PIPESTATUS[0]}")
    assert process.stderr == b""
    assert process.stdout in (b"141\n", b"0\n")  # 0 where `true` had not left yet


def test_nobody_needs_to_read_stderr() -> None:
    process = shell("yes word | head -500 | sinkchat run -v m hi 2> >(true)", ECHO="fine", TOKEN_SECONDS="0.1")
    assert (process.returncode, process.stdout) == (0, b"fine\n")


def test_ctrl_c_while_answering_keeps_the_part_and_ends_the_line() -> None:
    with Running("run", "m", "hi", ECHO="word " * 100, TOKEN_SECONDS="0.05") as process:
        process.stdin.close()
        process.first_words()
        process.press_ctrl_c()
        assert process.status(20) == 130
        rest = process.stdout.read()
        assert rest.endswith(b"\n")
        assert rest.count(b"word") < 20
        assert process.stderr.read() == b"note: stopped: what was said so far is kept\n"


def test_ctrl_c_while_answering_writes_whole_records() -> None:
    with Running("run", "m", "hi", "--format", "jsonl", ECHO="word " * 100, TOKEN_SECONDS="0.05") as process:
        process.stdin.close()
        process.stdout.readline()
        time.sleep(0.3)
        process.press_ctrl_c()
        records = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert process.status(20) == 130
        assert [record["event"] for record in records] == ["reply", "end"]
        assert records[0]["finish"] == "interrupt"


def test_ctrl_c_while_waiting_for_stdin_leaves() -> None:
    for form in ("text", "lines"):
        with Running("run", "--input", form) as process:
            process.type(b"one\n")
            process.wait_for_loading()
            process.press_ctrl_c()
            assert process.status(20) == 130
            assert process.stdout.read() == (b"you said: one\n" if form == "lines" else b"")
            assert process.stderr.read() == b""


def test_ctrl_c_while_reading_a_long_input_leaves_without_an_answer() -> None:
    with Running("run", TOKEN_SECONDS="0.02") as process:
        process.type(b"word " * 12_000)
        process.stdin.close()
        process.wait_for_loading()
        process.press_ctrl_c()
        assert (process.status(20), process.stdout.read()) == (130, b"")


def test_ctrl_c_twice_leaves_at_once() -> None:
    with Running("run", "m", "hi", ECHO="word " * 10, TOKEN_SECONDS="20") as process:
        process.stdin.close()
        process.first_words()
        process.press_ctrl_c()
        time.sleep(0.2)
        assert process.process.poll() is None
        process.press_ctrl_c()
        assert process.status(5) == 130


def test_a_background_job_does_not_hear_ctrl_c() -> None:
    line = "sinkchat run m hi & job=$!; sleep 0.8; kill -INT $job; wait $job; echo $?"
    assert shell(line, ECHO="one two three", TOKEN_SECONDS="0.4").stdout == b"one two three\n0\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_loading_leaves(number: signal.Signals, status: int) -> None:
    with Running("run", "m", "hi", LOAD_SECONDS="20") as process:
        process.wait_for_loading()
        process.process.send_signal(number)
        assert process.status(5) == status
        assert process.stderr.read() == b""


def test_sigterm_while_answering_leaves_with_143() -> None:
    with Running("run", "m", "hi", ECHO="word " * 100, TOKEN_SECONDS="0.1") as process:
        process.stdin.close()
        process.first_words()
        process.process.terminate()
        assert (process.status(5), process.stderr.read()) == (143, b"")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PYTHONIOENCODING": "utf-8"}, "é😀 ─\n".encode()),
        ({"PYTHONIOENCODING": "ascii"}, b"\\xe9\\U0001f600 \\u2500\n"),
        ({"PYTHONIOENCODING": "cp1252"}, b"\xe9\\U0001f600 \\u2500\n"),
        ({"LANG": "C", "LC_ALL": "C"}, "é😀 ─\n".encode()),
    ],
)
def test_no_encoding_of_stdout_crashes(variables: dict[str, str], expected: bytes) -> None:
    result = run("run", "m", "hi", ECHO="\\xe9\\U0001f600 \\u2500", **variables)
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, b"")


def test_our_own_signs_become_plain_where_the_encoding_lacks_them() -> None:
    result = run("run", "-v", "m", "hi", ECHO="ok", PYTHONIOENCODING="ascii")
    assert b"Echo-1 | float32 | cpu | cache 100 tokens, 5 pinned\n" in result.stderr


def test_stdin_is_utf_8_in_every_locale() -> None:
    stdin = b"caf\xc3\xa9 \xff\xed\xa0\x80\n"
    result = run("run", stdin=stdin, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="latin-1")
    assert result.stdout == b"you said: caf\xe9 \\ufffd\\ufffd\\ufffd\\ufffd\n"
    assert result.stderr == b"note: 4 bytes of stdin are not UTF-8 and were read as U+FFFD\n"


def test_bytes_that_are_not_text_in_an_argument_are_shown() -> None:
    process = run("run", "m", b"a\xffb")
    assert (process.returncode, process.stdout) == (0, b"you said: a\\udcffb\n")


def test_closed_standard_streams_are_no_accident() -> None:
    for streams in ("<&-", ">&- </dev/null", "2>&- </dev/null"):
        process = shell(f"sinkchat run m hi {streams}")
        assert (process.returncode, process.stderr) == (0, b""), streams


def test_a_help_page_needs_no_torch_and_little_time() -> None:
    code = (
        "import sys; from sinkchat.cli import main; status = main(['run', '--help']);"
        "heavy = {'torch', 'transformers', 'rich', 'prompt_toolkit'} & set(sys.modules);"
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, env=world(), timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (result.returncode, result.stderr) == (0, b"")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6  # 0.2 s measured
