"""Engines that decode through a recording, and what stands where the device would that plays it.

`Rerun` needs no device: a replay does the work again, and fills the tensors of the recording.
"""

from collections.abc import Callable, Sequence

import torch
from streams import TRAINED
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import LayerLayout, probe
from sinkchat.cache.ring import RingStorage
from sinkchat.engine.acceleration import AcceleratedForward, Source
from sinkchat.engine.compilation import NoCompilation
from sinkchat.engine.engine import Engine
from sinkchat.engine.graph import Capture, Graphs, ModelStep, Work


class Rerun:
    """Graphs on a CPU."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.replays = 0

    def warm_up(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> list[Tensor]:
        self._work, self.outputs = work, work()
        return self.outputs

    def replay(self) -> None:
        self.replays += 1
        for held, fresh in zip(self.outputs, self._work(), strict=True):
            held.copy_(fresh)


class Broken(Rerun):
    """Graphs of a device that fails with `error` in one of the stages."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__()
        self._stage, self._error = stage, error

    def warm_up(self, work: Work) -> None:
        super().warm_up(work)
        self._fail("warm-up")

    def capture(self, work: Work) -> list[Tensor]:
        outputs = super().capture(work)
        self._fail("capture")
        return outputs

    def _fail(self, stage: str) -> None:
        if stage == self._stage:
            raise self._error


CAPTURED = "captured, not compiled: nobody asked"


class Captured:
    """An engine that decodes through a recording, with its parts at hand. `layouts` changes those of the model.

    `graphs` are those of the first recording, of the second one, and so on.
    """

    def __init__(
        self,
        model: nn.Module,
        *graphs: Graphs,
        capacity: int = 64,
        layouts: Callable[[Sequence[LayerLayout]], Sequence[LayerLayout]] = lambda layouts: layouts,
        compiled: Callable[[RingStorage], Source] = lambda _: NoCompilation("nobody asked"),
    ) -> None:
        of_model = layouts(probe(model, position_limit=TRAINED))
        cache = SinkCache(of_model, EvictTokens(), capacity=capacity, pinned=4, storage=RingStorage)
        assert isinstance(cache.storage, RingStorage)
        self.ring = cache.storage
        graphs_of_recordings = iter(graphs)
        own = ModelStep(model, self.ring, of_model)
        self.source = Capture(
            own, self.ring.bias.device, graphs=lambda: next(graphs_of_recordings), compiled=compiled(self.ring)
        )
        self.engine = Engine(model, cache, forward=AcceleratedForward(model, self.ring, self.source))


def without_weights_of_16_bits(model: nn.Module) -> nn.Module:
    """The same model with its layers' linear weights in NF4; its head stays as it is."""
    import bitsandbytes

    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, linear in list(module.named_children()):
            if isinstance(linear, nn.Linear) and linear is not head:
                weight = linear.weight
                small = bitsandbytes.nn.Linear4bit(
                    linear.in_features,
                    linear.out_features,
                    bias=linear.bias is not None,
                    compute_dtype=weight.dtype,
                    quant_type="nf4",
                    device="meta",
                )
                small.weight = bitsandbytes.nn.Params4bit(
                    weight.data.cpu(), requires_grad=False, quant_type="nf4", module=small
                ).to(weight.device)
                small.bias = linear.bias
                setattr(module, name, small)
    return model.eval()


def random_model(**shape: int) -> nn.Module:
    """A random Llama in bfloat16, made on the CUDA device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)
