"""From a model to its compiled decode step: another process compiles, the disk keeps it, the chat goes on meanwhile.

Compiling takes half a minute of both cores, once for each model, machine and version. It is paused while the model
reads or answers, so that it takes place while a person types or reads; only where nobody ever pauses, in a long
pipe, it comes to its turn after `PATIENCE` seconds. A program that ends takes its compiler with it.
"""

import atexit
import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.ring import BLOCK, RingStorage
from sinkchat.cache.storage import alike_layers
from sinkchat.engine import compiler, sections
from sinkchat.engine.acceleration import SectionedStep, Step
from sinkchat.engine.compiler import PARTS, Order
from sinkchat.engine.sections import decoder_layers, facts_of, tensors_of
from sinkchat.engine.skeleton import packed
from sinkchat.errors import CannotStream, SinkchatError
from sinkchat.models.cachedir import cache_folder, is_whole, published
from sinkchat.models.placement import cxx_compiler

PATIENCE = 30.0
"""Seconds of reading and answering, all together, for which a compiler waits."""

_IDLE = 0.5
"""seconds without a forward after which the machine counts as free"""


class NoCompilation:
    """No step is compiled, for `reason`."""

    runs_ahead = False
    step = None

    def __init__(self, reason: str) -> None:
        self.refuse(reason)

    def wait(self) -> bool:
        return True

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def refuse(self, reason: str) -> None:
        self.state = f"not compiled: {reason}"


class Compilation:
    """A step that is compiled, or read from the disk, beside the chat. `state` says in words how far it is."""

    runs_ahead = False

    def __init__(
        self,
        model: nn.Module,
        ring: RingStorage,
        *,
        reach: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step: Step | None = None
        self.state = "compiling"
        self._model, self._ring = model, ring
        self._reach = reach if reach is not None else lambda: ring.reach
        self._clock = clock
        self._working_since: float | None = None
        self._rested_at = float("-inf")
        self._worked = 0.0
        self._done = threading.Event()

    def begin(self) -> "Compilation":
        """Starts the work, on a thread that ends with the program."""
        threading.Thread(target=self._work, name="compilation", daemon=True).start()
        return self

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is settled, one way or the other, within so many seconds."""
        return self._done.wait(seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        self._working_since = since = self._clock()
        try:
            yield
        finally:
            self._rested_at = self._clock()
            self._worked += self._rested_at - since
            self._working_since = None

    def _must_wait(self) -> bool:
        """Whether the machine is wanted for the model: it works, or has just worked; and not for too long in all."""
        now, since = self._clock(), self._working_since
        worked = self._worked + (now - since if since is not None else 0.0)
        return worked < PATIENCE and (since is not None or now < self._rested_at + _IDLE)

    def refuse(self, reason: str) -> None:
        self.step = None
        self.state = f"not compiled: {reason}"

    def _work(self) -> None:
        try:
            folder = step_folder(self._model, self._ring)
            if not is_whole(folder):
                with published(folder) as fresh:
                    self._compile(fresh)
            self.step = load_step(folder, self._model, self._ring, reach=self._reach)
            self.state = "compiled"
        except SinkchatError as error:
            self.refuse(error.message)
        except Exception as error:
            # A compiler fails in as many ways as there are machines. The chat goes on without one, and says why.
            self.refuse(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        finally:
            self._done.set()

    def _compile(self, folder: Path) -> None:
        """Has another process fill `folder`, in the times when nothing better is to be done."""
        (blocks,) = self._ring.groups
        held = (blocks.keys[0], blocks.values[0])
        order = packed(Order(self._model, self._ring.bias, held, torch.get_num_threads()))
        with tempfile.TemporaryFile() as told, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            command = [sys.executable, "-c", _program(), str(folder)]
            # A group of its own, so that it can be stopped with all it has started; in our session, so that the
            # kernel ends it, even stopped, when we are gone. Python 3.10 knows no word for that yet.
            group: dict[str, Any] = (
                {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
            )
            env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": scratch}  # what is left there is of no use to anybody
            if (cxx := cxx_compiler()) is not None:
                env["CXX"] = cxx  # torch looks for one name only
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=told, stderr=told, env=env, **group)
            assert process.stdin is not None
            with suppress(BrokenPipeError), _ended_with_us(process), process.stdin:
                process.stdin.write(len(order).to_bytes(8, "little") + order)
                process.stdin.flush()
                self._attend(process)
            if process.wait():
                told.seek(0)
                lines = told.read().decode(errors="replace").strip().splitlines()
                raise CannotStream(lines[-1] if lines else f"the compiler ended with {process.returncode}")

    def _attend(self, process: "subprocess.Popen[bytes]") -> None:
        """Stops the compiler while the model works, and lets it go on when it does not."""
        is_stopped = False
        while process.poll() is None:
            must_stop = self._must_wait()
            if must_stop != is_stopped:
                is_stopped = must_stop
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGSTOP if must_stop else signal.SIGCONT)
            time.sleep(0.05)


@contextmanager
def _ended_with_us(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kills `process` and its group if this program ends meanwhile.

    The kernel wakes what is stopped only where nobody of its session is left to do so, which in a container there is.
    """

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    atexit.register(end)
    try:
        yield
    finally:
        atexit.unregister(end)


def _program() -> str:
    """What Python is given to run: the compiler, with modules from where this program has its own.

    `python -m` would look into the working folder first, which is anybody's.
    """
    return f"import sys; sys.path[:] = {sys.path!r}; from {compiler.__name__} import main; main(sys.argv[1:])"


def step_folder(model: nn.Module, ring: RingStorage) -> Path:
    """Where the compiled step of a model of this kind lies: for its shapes, this machine, these versions."""
    owner, name = decoder_layers(model)
    layers: nn.ModuleList = getattr(owner, name)
    own = [sections, compiler, sys.modules["sinkchat.cache.step"]]
    facts: list[Any] = [
        facts_of(layers[0]),
        [(key, it.shape, it.dtype) for key, it in tensors_of(model).items()],
        cast(Any, model).config.to_json_string(),
        [(it.dtype, it[0].stride()) for it in (ring.groups[0].keys, ring.groups[0].values)],
        (torch.__version__, sys.modules["transformers"].__version__, sys.version),
        (torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), _cpu_flags()),
        [Path(str(module.__file__)).read_bytes() for module in own],
    ]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return cache_folder() / "compiled" / f"{type(model).__name__}-{key}"


def _cpu_flags() -> str:
    """What the CPU can do, as Linux tells it; compiled code is for this machine alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def load_step(folder: Path, model: nn.Module, ring: RingStorage, *, reach: Callable[[], int]) -> Step:
    """The compiled step in `folder` over the weights of `model` and the first `reach()` blocks of `ring`."""
    with _one_thread_setting(), _no_word_of_cuda():
        packages = {part: torch._inductor.aoti_load_package(str(folder / f"{part}.pt2")) for part in PARTS}
    runs = {part: package.loader.run for part, package in packages.items()}
    return SectionedStep(model, ring, reach=reach, **runs)


@contextmanager
def _one_thread_setting() -> Iterator[None]:
    """Loading a package may set the number of threads; it stays what it was."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def _no_word_of_cuda() -> Iterator[None]:
    """A torch for CUDA that finds a toolkit and no device says so (2.11), amid the prompt. It was not asked."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def obstacle(layouts: Sequence[LayerLayout], capacity: int) -> str | None:
    """Why no decode step can be compiled for such a cache here; None where nothing is in the way so far."""
    device = layouts[0].device.type
    if device not in ("cpu", "cuda"):
        return f"on {device} nothing is compiled"
    if len(alike_layers(layouts)) != 1:
        return "its layers keep keys of different kinds"
    if capacity < 2 * BLOCK:
        return f"a cache of {capacity} tokens gains nothing by it"
    if cxx_compiler() is None:
        return "there is no C++ compiler (g++ or clang++)"
    return None
