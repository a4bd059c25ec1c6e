"""A decode step that another process compiles: what it computes, when it works, and every way in which it fails.

One small model is compiled in earnest, once. The rest look at a compiler that has hardly begun.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch
from stepping import ring_cache, ring_engine
from streams import distance, logits_one_by_one, random_ids
from tiny import tiny_model
from torch import nn

from sinkchat.cache.policy import EvictionPolicy, EvictMessages
from sinkchat.cache.probe import probe
from sinkchat.cache.ring import BLOCK, RingStorage
from sinkchat.engine.acceleration import PROOFS, AcceleratedForward
from sinkchat.engine.compilation import PATIENCE, Compilation, load_step, obstacle, step_folder
from sinkchat.engine.compiler import PARTS, Order, programs
from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy
from sinkchat.engine.skeleton import packed
from sinkchat.models.cachedir import is_whole
from sinkchat.models.placement import cxx_compiler

pytestmark = pytest.mark.skipif(cxx_compiler() is None, reason="no C++ compiler")
POSIX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process states are read from /proc")
CAPACITY = 3 * BLOCK
SECONDS = 300
"""the longest that anything is waited for"""


class Clock:
    """Stands still until it is moved on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def comes_true(fact: Callable[[], object], *, seconds: float = SECONDS) -> bool:
    until = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def state_of(pid: int) -> str:
    """R, S, T for a stopped one, and so on; Z where there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def compilers() -> list[int]:
    """Compilers that this process has started and that are still there."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "sinkchat.engine.compiler" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


def ring_for(model: nn.Module, capacity: int = CAPACITY) -> RingStorage:
    return ring_cache(model, capacity=capacity)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where this program's own files go, and nobody else's."""
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path))
    return tmp_path


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Compiled in earnest.


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Iterator[tuple[nn.Module, Path]]:
    """A model whose step is compiled, and the folder of files, made in a place that invites mistakes.

    The working folder holds a module that shadows one of Python's, and CXX names a program that is not there.
    """
    home = tmp_path_factory.mktemp("compiled")
    (home / "pickle.py").write_text(f"open({str(home / 'loaded')!r}, 'w')\nraise SystemExit('shadowed')\n")
    model = tiny_model("llama", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKCHAT_CACHE_DIR", str(home / "cache"))
        with patch.context() as uninviting:
            uninviting.setenv("CXX", "/nowhere/g++")
            uninviting.setenv("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")  # what is compiled faster runs as well
            uninviting.chdir(home)
            source = Compilation(model, ring_for(model)).begin()
            assert source.wait(SECONDS)
        assert source.state == "compiled"
        yield model, home


def compiled_engine(
    model: nn.Module, policy: EvictionPolicy | None = None, *, capacity: int = CAPACITY
) -> tuple[Engine, Compilation]:
    """An engine whose step is read from the disk."""
    cache, ring = ring_cache(model, policy, capacity=capacity)
    source = Compilation(model, ring).begin()
    assert source.wait(SECONDS)
    return Engine(model, cache, forward=AcceleratedForward(model, ring, source)), source


LOADING = """
from stepping import ring_cache
from tiny import tiny_model
from sinkchat.engine.compilation import Compilation

model = tiny_model("llama", 2)
source = Compilation(model, ring_cache(model, capacity=96)[1]).begin()
source.wait(300)
print(source.state)
"""


@pytest.mark.slow
def test_a_step_is_read_from_the_disk_without_a_word(compiled):
    """In a process of its own, since torch says what it has to say at its first import of a part."""
    _, home = compiled
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "SINKCHAT_CACHE_DIR": str(home / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", LOADING], env=environment, text=True, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == ("compiled\n", "")


def test_a_compiled_step_says_what_the_model_says_past_evictions(compiled):
    model, _ = compiled
    engine, source = compiled_engine(model)
    forwards = []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(None))
    ids = random_ids(4 * CAPACITY)
    logits = logits_one_by_one(engine, ids)
    handle.remove()
    assert (source.state, len(forwards)) == ("compiled", PROOFS)
    assert distance(logits, logits_one_by_one(ring_engine(model, capacity=CAPACITY), ids)) < 1e-4


def test_a_compiled_step_forgets_by_turns_and_reads_in_chunks(compiled):
    model, _ = compiled
    engine, source = compiled_engine(model, EvictMessages())
    plain = ring_engine(model, EvictMessages(), capacity=CAPACITY)
    for each in (engine, plain):
        for turn in range(8):
            each.cache.open_message(each.state.seen)
            each.feed(random_ids(13 + 9 * turn, seed=turn))
            logits_one_by_one(each, random_ids(10, seed=turn))
    assert source.state == "compiled"
    assert engine.held_ids == plain.held_ids
    assert distance(engine.logits, plain.logits) < 1e-4


def test_other_weights_of_the_same_shapes_need_no_other_step(compiled):
    other = tiny_model("llama", 2, seed=5)
    engine, source = compiled_engine(other)
    ids = random_ids(150)
    assert source.state == "compiled"
    assert (
        distance(logits_one_by_one(engine, ids), logits_one_by_one(ring_engine(other, capacity=CAPACITY), ids)) < 1e-4
    )


@pytest.mark.parametrize("capacity", [2 * BLOCK, 2 * BLOCK + 3, 8 * BLOCK])
def test_caches_of_other_sizes_need_no_other_step(compiled, capacity):
    model, _ = compiled
    engine, source = compiled_engine(model, capacity=capacity)
    ids = random_ids(capacity + 50)
    assert source.state == "compiled"
    assert (
        distance(logits_one_by_one(engine, ids), logits_one_by_one(ring_engine(model, capacity=capacity), ids)) < 1e-4
    )


def test_three_packages_serve_a_chat_of_five_thousand_tokens(compiled):
    model, home = compiled
    packages = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert sorted(path.name for path in packages if path.suffix == ".pt2") == [
        "after.pt2",
        "before.pt2",
        "layers.pt2",
    ]
    engine, source = compiled_engine(model, EvictMessages())
    for turn in range(24):
        engine.cache.open_message(engine.state.seen)
        engine.feed(random_ids(10 + 10 * turn, seed=turn))
        answer = list(engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=90))
        assert (len(answer), compilers()) == (90, [])
    assert engine.state.seen > 5_000
    assert source.state == "compiled"
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()} == packages


def test_a_second_program_reads_the_step_from_the_disk(compiled):
    model, home = compiled
    before = files_in(home)
    source = Compilation(model, ring_for(model)).begin()
    while not source.wait(0.001):
        assert compilers() == []
    assert (source.state, files_in(home)) == ("compiled", before)


def test_the_compiler_loads_nothing_from_the_working_folder(compiled):
    _, home = compiled
    assert not (home / "loaded").exists()


def test_loading_a_step_leaves_the_number_of_threads(compiled):
    model, _ = compiled
    ring, threads = ring_for(model), torch.get_num_threads()
    load_step(step_folder(model, ring), model, ring, reach=lambda: ring.reach)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_is_exported_for_a_device_and_weights_that_are_not_here(device):
    model = tiny_model("llama", 2).to(device)
    bias = torch.zeros(4, BLOCK, device=device)
    held = tuple(torch.zeros(4, 2, *shape, device=device) for shape in ((16, BLOCK), (BLOCK, 16)))
    made = dict(programs(packed(Order(model, bias, held, torch.get_num_threads()))))
    assert tuple(made) == PARTS
    for program in made.values():
        tensors = [value for node in program.graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
        assert {tensor.device.type for tensor in tensors} == {device}


def test_a_step_that_lost_a_file_is_not_taken_for_whole(compiled, folder):
    _, home = compiled
    (whole,) = (home / "cache" / "compiled").iterdir()
    copy = folder / "compiled" / whole.name
    copy.mkdir(parents=True)
    for path in whole.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert is_whole(copy)
    (copy / "after.pt2").unlink()
    assert not is_whole(copy)


def test_a_package_of_rubbish_is_refused_and_the_chat_goes_on(compiled, folder):
    model, home = compiled
    (whole,) = (home / "cache" / "compiled").iterdir()
    copy = folder / "compiled" / whole.name
    copy.mkdir(parents=True)
    for path in whole.iterdir():
        rubbish = path.suffix == ".pt2"
        (copy / path.name).write_bytes(b"x" * path.stat().st_size if rubbish else path.read_bytes())
    engine, source = compiled_engine(model)
    assert source.step is None
    assert source.state.startswith("not compiled: RuntimeError: ")
    ids = random_ids(20)
    assert torch.equal(logits_one_by_one(engine, ids), logits_one_by_one(ring_engine(model, capacity=CAPACITY), ids))


# Failures.


def refused(model: nn.Module, ring: RingStorage) -> str:
    """The state of a compilation that fails, once it has; the chat goes on as without one."""
    source = Compilation(model, ring).begin()
    assert source.wait(SECONDS)
    assert source.step is None
    assert compilers() == []
    return source.state


def test_without_a_compiler_nothing_is_compiled(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    model = tiny_model("llama", 1)
    state = refused(model, ring_for(model))
    assert state.startswith("not compiled: ")
    assert "No working C++ compiler found" in state
    assert files_in(folder) == ["compiled"]


def test_a_model_that_cannot_be_cut_starts_no_compiler(folder):
    ring = ring_for(tiny_model("llama", 1))
    assert refused(nn.Linear(2, 2), ring) == "not compiled: Linear has no list of layers"
    assert files_in(folder) == []


def test_a_model_that_cannot_be_sent_is_told(folder):
    model = tiny_model("llama", 1)
    ring = ring_for(model)
    model.answer = lambda: 42
    assert refused(model, ring).startswith("not compiled: ")
    assert files_in(folder) == ["compiled"]


@POSIX
def test_a_compiler_that_is_killed_leaves_nothing_and_the_chat_goes_on(folder):
    model = tiny_model("llama", 2)
    cache, ring = ring_cache(model, capacity=CAPACITY)
    source = Compilation(model, ring).begin()
    engine = Engine(model, cache, forward=AcceleratedForward(model, ring, source))
    assert comes_true(compilers)
    engine.feed(random_ids(20))
    os.kill(*compilers(), signal.SIGKILL)
    assert source.wait(SECONDS)
    assert (source.step, source.state) == (None, "not compiled: the compiler ended with -9")
    assert files_in(folder) == ["compiled"]
    ids = random_ids(CAPACITY)
    plain = ring_engine(model, capacity=CAPACITY)
    plain.feed(random_ids(20))
    assert torch.equal(logits_one_by_one(engine, ids), logits_one_by_one(plain, ids))


def test_a_step_that_is_refused_says_why():
    model = tiny_model("llama", 1)
    source = Compilation(model, ring_for(model))
    assert source.state == "compiling"
    source.refuse("it is off")
    assert (source.step, source.state) == (None, "not compiled: it is off")


# When it works.


@contextmanager
def compiling(clock: Clock) -> Iterator[tuple[Compilation, int]]:
    """A compilation that has begun, and its process, which is killed in the end."""
    model = tiny_model("llama", 1)
    source = Compilation(model, ring_for(model), clock=clock).begin()
    assert comes_true(compilers)
    (pid,) = compilers()
    try:
        yield source, pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        assert source.wait(SECONDS)


@POSIX
def test_the_compiler_stands_still_while_the_model_works_and_goes_on_when_it_rests(folder):
    clock = Clock()
    with compiling(clock) as (source, pid):
        for _ in range(3):
            with source.working():
                assert comes_true(lambda: state_of(pid) == "T")
                clock.now += 3
                time.sleep(0.2)
                assert state_of(pid) == "T"
            clock.now += 0.4
            time.sleep(0.2)
            assert state_of(pid) == "T"
            clock.now += 0.2
            assert comes_true(lambda: state_of(pid) in "RSD")


@POSIX
def test_a_compiler_that_has_waited_long_enough_is_stopped_no_more(folder):
    clock = Clock()
    with compiling(clock) as (source, pid):
        with source.working():
            clock.now += PATIENCE / 2
        clock.now += 100  # somebody typed
        with source.working():
            assert comes_true(lambda: state_of(pid) == "T")
            clock.now += PATIENCE / 2 - 0.1
            time.sleep(0.2)
            assert state_of(pid) == "T"
            clock.now += 0.2
            assert comes_true(lambda: state_of(pid) in "RSD")
        with source.working():
            time.sleep(0.2)
            assert state_of(pid) in "RSD"


PROGRAM = """
import sys, time
from stepping import ring_cache
from test_compilation import Clock, comes_true, compilers, state_of
from tiny import tiny_model
from sinkchat.engine.compilation import Compilation

model = tiny_model("llama", 1)
source = Compilation(model, ring_cache(model)[1], clock=Clock())
source.working().__enter__()
source.begin()
assert comes_true(lambda: compilers() and state_of(*compilers()) == "T")
print(*compilers(), flush=True)
sys.stdin.read()
"""
"""starts a compiler, which is stopped at once and never goes on"""


@contextmanager
def program_with_a_stopped_compiler() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A program that ends when its input does, and the compiler that it has started."""
    command = [sys.executable, "-c", PROGRAM]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as program:
        pid = int(program.stdout.readline())
        assert state_of(pid) == "T"
        yield program, pid


@POSIX
@pytest.mark.parametrize("ending", ["it ends", "it is killed"])
def test_a_compiler_ends_with_its_program_even_while_it_stands_still(folder, ending):
    with program_with_a_stopped_compiler() as (program, pid):
        if ending == "it is killed":
            program.kill()
        program.communicate()
    assert program.returncode == (-9 if ending == "it is killed" else 0)
    assert comes_true(lambda: state_of(pid) == "Z")


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans come to this process, as they come to the first one of a container.

    It is of their session, so the kernel does not take them for lost, and wakes none that was stopped.
    """
    set_child_subreaper = 36
    libc = ctypes.CDLL(None)
    libc.prctl(set_child_subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked for orphans")
def test_a_program_that_ends_in_a_container_leaves_no_compiler_that_stands_still(folder):
    with adopting(), program_with_a_stopped_compiler() as (program, pid):
        program.communicate()
        try:
            assert comes_true(lambda: state_of(pid) == "Z", seconds=5)
        finally:
            with suppress(ProcessLookupError, ChildProcessError):  # its program may have waited for it in time
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


# Whether, and where.


def test_where_a_step_lies_depends_on_all_that_it_was_compiled_for(folder):
    model = tiny_model("llama", 2)
    place = step_folder(model, ring_for(model))
    assert place.parent == folder / "compiled"
    assert place.name.startswith("LlamaForCausalLM-")
    assert step_folder(tiny_model("llama", 2, seed=3), ring_for(model)) == place
    assert step_folder(model, ring_for(model, capacity=2 * CAPACITY)) == place
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    other_threads = step_folder(model, ring_for(model))
    torch.set_num_threads(threads)
    others = [
        other_threads,
        *(
            step_folder(other, ring_for(other))
            for other in (
                tiny_model("llama", 2, dtype=torch.bfloat16),
                tiny_model("llama", 3),
                tiny_model("llama", 2, rms_norm_eps=1e-3),
                tiny_model("llama", 2, rope_theta=5_000.0),
                tiny_model("llama", 2, num_key_value_heads=1),
                tiny_model("mistral", 2),
            )
        ),
    ]
    assert len({place, *others}) == 1 + len(others)
    assert files_in(folder) == []


def test_what_stands_in_the_way_of_compiling_is_said(monkeypatch):
    layouts = probe(tiny_model("llama", 2), position_limit=512)
    others = probe(tiny_model("llama", 1, num_key_value_heads=1), position_limit=512)
    assert obstacle(layouts, 2 * BLOCK) is None
    assert obstacle(layouts, 2 * BLOCK - 1) == "a cache of 63 tokens gains nothing by it"
    assert obstacle([*layouts, *others], 1024) == "its layers keep keys of different kinds"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert obstacle(layouts, 1024) == "there is no C++ compiler (g++ or clang++)"


def test_the_compiler_that_is_named_comes_first(tmp_path, monkeypatch):
    for name in ("clang++", "mine"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert cxx_compiler() == str(tmp_path / "clang++")
    monkeypatch.setenv("CXX", "mine")
    assert cxx_compiler() == str(tmp_path / "mine")
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert cxx_compiler() == str(tmp_path / "clang++")
