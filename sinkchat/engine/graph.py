"""The decode step as one launch: the model's own forward, recorded on a CUDA device and played again for each token.

To compute one token a GPU needs less time than Python needs to start its thousand kernels. Played from a recording
they follow each other without anybody asking. All that a step touches has an address that never changes: weights,
the slots of the ring and its bias, the id and the position. So one recording serves for ever, at any size of what is
held: the bias, read whole, says which slots count.

No family and no quantisation is known here. What cannot be recorded, because it waits for the device in the middle
of a forward, say, is found by trying; the plain forward then goes on, and `state` says why. A step that a compiler
has made of the model is recorded in the same way, and takes the place of the model's own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from sinkchat.cache.forward import Forward
from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.step import StepStack, stepping
from sinkchat.cache.storage import KeysValues, alike_layers
from sinkchat.engine.acceleration import Source, Step
from sinkchat.errors import SinkchatError

Work = Callable[[], list[Tensor]]

_WARM_UPS = 3
"""runs before the recording: libraries load kernels, choose algorithms and take their workspaces in the first ones"""


class Graphs(Protocol):
    """What a device does, recorded once, to be done again."""

    def warm_up(self, work: Work) -> None:
        """Does `work` until nothing is left that is done only once. Raises where it cannot be recorded."""

    def capture(self, work: Work) -> list[Tensor]:
        """Records `work`: the tensors that it gave, which every replay fills anew."""

    def replay(self) -> None:
        """Does what was recorded, on the same addresses."""


class CudaGraphs:
    """A CUDA graph, on `device`. Nothing is asked of the device before `warm_up`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm_up(self, work: Work) -> None:
        """On a stream of its own, as a recording wants it. The last run must not wait for the device: a recording
        broken off leaves the allocator worse than one that is never begun."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._aside.wait_stream(current)
            with torch.cuda.stream(self._aside):
                for _ in range(_WARM_UPS - 1):
                    work()
                with without_waiting():
                    work()
            current.wait_stream(self._aside)

    def capture(self, work: Work) -> list[Tensor]:
        graph = torch.cuda.CUDAGraph()
        # torch leaves the stream of a recording that fails as the current one: the second context puts ours back.
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            torch.cuda.graph(graph, stream=self._aside, capture_error_mode="thread_local"),
        ):
            outputs = work()
        self._graph = graph
        return outputs

    def replay(self) -> None:
        if self._graph is None:
            raise ValueError("nothing was captured")
        self._graph.replay()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Within this context an operation that waits for a CUDA device raises RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class ModelStep:
    """A step through the model's own forward, over the slots of `ring`, whose layers are those of `layouts`."""

    def __init__(self, model: nn.Module, ring: RingStorage, layouts: Sequence[LayerLayout]) -> None:
        self._forward = Forward(model)
        self._alike = alike_layers(layouts)
        self._cache = StepStack([(layer.keys[0], layer.values[0]) for layer in ring.layers], ring.bias)

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, list[KeysValues]]:
        with stepping(self._forward.model):
            logits = self._forward(input_ids, position_ids, self._cache)[0, -1]
        return logits, [KeysValues(*self._cache.new(layers)) for layers in self._alike]


class CapturedStep:
    """`step`, recorded by `graphs` on `device`: in less than a second. Raises whatever stands in the way of that."""

    def __init__(self, step: Step, device: torch.device, *, graphs: Graphs) -> None:
        self._step = step
        self._graphs = graphs
        self._input_ids = torch.zeros(1, 1, dtype=torch.long, device=device)
        self._position_ids = torch.zeros_like(self._input_ids)
        with torch.inference_mode():
            graphs.warm_up(self._work)
            self._logits, *new = graphs.capture(self._work)
        self._new = [KeysValues(keys, values) for keys, values in zip(new[::2], new[1::2], strict=True)]

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Logits (V,), the caller's own; keys and values that stay until the next step."""
        self._input_ids.copy_(input_ids)
        self._position_ids.copy_(position_ids)
        self._graphs.replay()
        return self._logits.clone(), self._new

    def _work(self) -> list[Tensor]:
        """Logits (V,), then keys and values (N, H, 1, D) of each group of layers."""
        logits, new = self._step(self._input_ids, self._position_ids)
        return [logits, *(part for tokens in new for part in (tokens.keys, tokens.values))]


class Capture:
    """The model's own step, recorded at the start where that can be; then, once it is there, that of `compiled`.

    Each recording is made by graphs of its own. A compiled step that is no use leaves the model's own recording.
    """

    runs_ahead = True

    def __init__(self, own: Step, device: torch.device, *, graphs: Callable[[], Graphs], compiled: Source) -> None:
        self._device = device
        self._graphs = graphs
        self._compiled = compiled
        self._faster: Step | None = None
        self._own, self._said = None, "captured"
        try:
            self._own = CapturedStep(own, device, graphs=graphs())
        except Exception as error:
            self._said = f"not captured: {_reason(error)}"

    @property
    def state(self) -> str:
        return self._said if self._own is None else f"{self._said}, {self._compiled.state}"

    @property
    def step(self) -> Step | None:
        """A recording. The first one of what was compiled is made here, between two tokens."""
        if self._faster is None and self._own is not None and (step := self._compiled.step) is not None:
            try:
                self._faster = CapturedStep(step, self._device, graphs=self._graphs())
            except Exception as error:
                self._compiled.refuse(f"it cannot be captured: {_reason(error)}")
        return self._faster if self._faster is not None else self._own

    def wait(self) -> bool:
        return self._compiled.wait()

    def working(self) -> AbstractContextManager[None]:
        return self._compiled.working()

    def refuse(self, reason: str) -> None:
        if self._faster is not None:
            self._faster = None
            self._compiled.refuse(reason)
        else:
            self._own, self._said = None, f"not captured: {reason}"


def _reason(error: Exception) -> str:
    """Why something was not recorded, in a line.

    The code of any model, of any kernel library meets a cache and a device that it was not written for, and fails
    in its own way. The chat goes on without a recording, and says why.
    """
    if isinstance(error, SinkchatError):
        return error.message
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
