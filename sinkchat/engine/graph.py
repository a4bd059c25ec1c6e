"""The decode step as one launch: the model's own forward, recorded on a CUDA device and played again for each token.

To compute one token a GPU needs less time than Python needs to start its thousand kernels. Played from a recording
they follow each other without anybody asking. All that a step touches has an address that never changes: weights,
the slots of the ring and its bias, the id and the position. So one recording serves for ever, at any size of what is
held: the bias, read whole, says which slots count.

No family and no quantisation is known here. What cannot be recorded, because it waits for the device in the middle
of a forward, say, is found by trying; the plain forward then goes on, and `state` says why.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from sinkchat.cache.forward import Forward
from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.step import StepStack, stepping
from sinkchat.cache.storage import KeysValues, alike_layers
from sinkchat.engine.acceleration import Step
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


class CapturedStep:
    """A step that `graphs` has recorded of `model`, over the slots of `ring`, whose layers are those of `layouts`.

    Made in less than a second. Raises whatever stands in the way of the recording.
    """

    def __init__(
        self, model: nn.Module, ring: RingStorage, layouts: Sequence[LayerLayout], *, graphs: Graphs
    ) -> None:
        self._forward = Forward(model)
        self._graphs = graphs
        self._alike = alike_layers(layouts)
        self._cache = StepStack([(layer.keys[0], layer.values[0]) for layer in ring.layers], ring.bias)
        self._input_ids = torch.zeros(1, 1, dtype=torch.long, device=ring.bias.device)
        self._position_ids = torch.zeros_like(self._input_ids)
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
        with stepping(self._forward.model):
            logits = self._forward(self._input_ids, self._position_ids, self._cache)[0, -1]
        return [logits, *(new for layers in self._alike for new in self._cache.new(layers))]


class Capture:
    """A step that is captured at the start, where that can be. `state` says in words what came of it."""

    def __init__(
        self, model: nn.Module, ring: RingStorage, layouts: Sequence[LayerLayout], *, graphs: Graphs
    ) -> None:
        self.step: Step | None = None
        try:
            self.step = CapturedStep(model, ring, layouts, graphs=graphs)
            self.state = "captured"
        except SinkchatError as error:
            self.refuse(error.message)
        except Exception as error:
            # The code of any model, of any kernel library meets a cache and a device that it was not written for,
            # and fails in its own way. The chat goes on without a recording, and says why.
            self.refuse(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")

    def wait(self) -> bool:
        return True

    def working(self) -> AbstractContextManager[None]:
        """Nothing goes on beside the chat."""
        return nullcontext()

    def refuse(self, reason: str) -> None:
        self.step = None
        self.state = f"not captured: {reason}"
