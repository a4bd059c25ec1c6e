"""A model loaded in a thread: its result, its errors, and how the program leaves while it is at work."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from scripted import ScriptedConversation

from sinkchat.errors import ModelNotFound
from sinkchat.terminal.loading import Loading, load_is_running

TESTS = Path(__file__).parent


class Gate:
    """A load that tells its progress, then waits until it is opened."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.conversation = ScriptedConversation()
        self.opened = threading.Event()
        self.told = threading.Event()
        self._fails = fails

    def load(self, progress: Callable[[str], None]) -> ScriptedConversation:
        progress("loading Echo-1")
        self.told.set()
        self.opened.wait(20)
        if self._fails is not None:
            raise self._fails
        return self.conversation


def test_loading_begins_at_once_and_tells_its_progress() -> None:
    gate = Gate()
    loading = Loading(gate.load)
    assert gate.told.wait(20)
    assert (loading.status, loading.is_done, load_is_running()) == ("loading Echo-1", False, True)
    gate.opened.set()
    assert loading.result() is gate.conversation
    assert (loading.is_done, load_is_running()) == (True, False)


def test_an_error_keeps_its_traceback() -> None:
    gate = Gate(ModelNotFound("no such model"))
    gate.opened.set()
    loading = Loading(gate.load)
    for _ in range(2):
        with pytest.raises(ModelNotFound) as caught:
            loading.result()
    assert "in load\n" in "".join(traceback.format_exception(caught.value))


def test_the_wait_is_surrounded_so_that_it_can_be_ended() -> None:
    seen: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        seen.append("begins")
        threading.Timer(0.1, gate.opened.set).start()
        yield
        seen.append("ends")

    gate = Gate()
    assert Loading(gate.load).result(waiting) is gate.conversation
    assert seen == ["begins", "ends"]


def test_ctrl_c_ends_the_wait_and_the_loader_is_known_to_go_on() -> None:
    gate = Gate()
    loading = Loading(gate.load)
    main = threading.main_thread().ident
    assert main is not None
    press_ctrl_c = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    press_ctrl_c.start()
    with pytest.raises(KeyboardInterrupt):
        loading.result()
    assert (load_is_running(), loading.is_done) == (True, False)
    gate.opened.set()
    assert loading.result() is gate.conversation


def test_callbacks_come_from_the_loader_and_before_the_result() -> None:
    gate = Gate()
    loading = Loading(gate.load)
    seen: list[object] = []

    def slowly() -> None:
        time.sleep(0.1)
        seen.extend([threading.current_thread().name, loading.is_done, loading.result()])

    loading.when_done(slowly)
    gate.opened.set()
    loading.result()
    assert seen == ["loader", True, gate.conversation]
    loading.when_done(lambda: seen.append(threading.current_thread().name))
    assert seen[3:] == [threading.current_thread().name]


def test_an_abandoned_download_ends_at_its_next_report_and_cleans_up() -> None:
    cleaned: list[str] = []

    def download(progress: Callable[[str], None]) -> ScriptedConversation:
        try:
            while True:
                progress("downloading")
                time.sleep(0.02)
        finally:
            cleaned.append("the temporary folder")

    loading = Loading(download)
    loading.when_done(lambda: cleaned.append("called back"))
    assert loading.abandon()
    assert (cleaned, load_is_running()) == (["the temporary folder"], False)


def test_a_load_that_reports_nothing_is_left_behind() -> None:
    gate = Gate()
    loading = Loading(gate.load)
    assert gate.told.wait(20)
    assert not loading.abandon()
    assert load_is_running()
    gate.opened.set()


@pytest.mark.parametrize("load", ["sleep", "torch"])
@pytest.mark.parametrize("where", ["prompt", "waiting"])
def test_ctrl_c_leaves_at_once_while_loading(load: str, where: str, tmp_path: Path) -> None:
    program = f"{sys.executable} {TESTS / 'loading_program.py'} {load}"
    child = pexpect.spawn(
        "bash",
        ["-c", f"stty -g > before; {program}; echo left with $?; stty -g > after"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "TERM": "xterm-256color"},
        dimensions=(24, 80),
        timeout=20,
    )
    child.delaybeforesend = None
    child.expect(">")
    if where == "waiting":
        child.send("hello\r")
        child.expect("waiting for the model")
    time.sleep(0.3)  # in the middle of it
    began = time.monotonic()
    child.send("\x03")
    child.expect("left with ")
    seconds, shown = time.monotonic() - began, (child.before or b"").decode()
    child.expect(pexpect.EOF)
    assert (child.before or b"").strip() == b"130"
    assert "Traceback" not in shown
    assert "FATAL" not in shown
    assert seconds < 1  # 0.4 s on an idle machine, most of it the wait for a download to clean up
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
