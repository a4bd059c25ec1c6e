"""How fast a token could come at best: the bytes it must move, by how fast this machine moves bytes.

One token of one stream reads every weight that takes part and all keys and values that are held, and computes next
to nothing with them. So bytes over bandwidth is the floor of its time. What a step reads is counted on the model's
own tensors, loaded or on the `meta` device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkchat.lab.bench.timing import Clock
from sinkchat.models.checkpoint import Weight
from sinkchat.models.quantization import Quantization

COPIED = {"cpu": 1 << 28, "cuda": 1 << 30, "mps": 1 << 29}
"""bytes that are copied: many times what the device's caches hold"""


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor that a step reads, or the share of it."""

    name: str
    shape: tuple[int, ...]
    nbytes: float
    share: float = 1.0


def reads_of(model: nn.Module) -> Iterator[Read]:
    """What one token reads of the weights: of an embedding that is no head one row, of experts those it is sent to.

    Quantised weights count as the bytes that are there, their scales with them.
    """
    whole: Any = model
    looked_up, multiplied = _tensors_of(whole.get_input_embeddings()), _tensors_of(whole.get_output_embeddings())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(tensor.shape)
        nbytes = tensor.nbytes + sum(scale.nbytes for scale in _scales_of(tensor))
        if id(tensor) in looked_up and id(tensor) not in multiplied:
            yield Read(name, (1, *shape[1:]), nbytes / shape[0])
        elif id(tensor) in looked_up:
            yield Read("lm_head.weight", shape, nbytes)  # a head by what is done with it, whatever it is called
        else:
            share = _share_of_experts(model) if "experts" in name.split(".") else 1.0
            yield Read(name, shape, nbytes * share, share)


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that one token reads, as they are held."""
    return round(sum(read.nbytes for read in reads_of(model)))


def weight_bytes_if(method: Quantization, model: nn.Module, dtype: torch.dtype) -> int:
    """Bytes that one token would read, were the weights of `model` held by `method`."""
    held = method.dtype(dtype)
    return round(
        sum(read.share * method.nbytes([Weight(read.name, read.shape, 0)], held) for read in reads_of(model))
    )


def tokens_per_s(bandwidth: float, nbytes: float) -> float:
    return bandwidth / nbytes


class CopyBandwidth:
    """Bytes a second that a copy moves on `device`, read and written both counted."""

    def __init__(self, device: torch.device, clock: Clock, *, nbytes: int | None = None) -> None:
        # Written to, both: memory that is only promised reads from one page of zeros, which fits every cache.
        self._source = torch.ones(nbytes or COPIED[device.type], dtype=torch.uint8, device=device)
        self._target = torch.ones_like(self._source)
        self._clock = clock

    def __call__(self) -> float:
        self._copy()
        start = self._clock()
        self._copy()
        return 2 * self._source.nbytes / (self._clock() - start)

    def _copy(self) -> None:
        self._target.copy_(self._source)
        if self._source.device.type != "cpu":
            self._target[-1].item()  # waits until the device has done it


def _tensors_of(module: Any) -> set[int]:
    """The identities of what a module holds; nothing where there is none."""
    return set() if module is None else {id(tensor) for tensor in (*module.parameters(), *module.buffers())}


def _share_of_experts(model: nn.Module) -> float:
    """Of all experts, the share that one token is sent to."""
    config: Any = model.config
    config = config.get_text_config(decoder=True)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((count for name in names if (count := getattr(config, name, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / experts if experts and chosen else 1.0


def _scales_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that bitsandbytes hangs on a quantised weight: its scales, and the scales of those."""
    for name in ("quant_state", "SCB"):
        yield from _tensors_in(getattr(tensor, name, None))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "state2"):
        for part in vars(value).values():
            yield from _tensors_in(part)
