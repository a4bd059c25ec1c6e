"""Where attention goes, seen while it happens: what is wanted of each layer's weights is taken as they are computed.

A map of all queries and keys of all layers is too much to keep: 4 GiB for Llama-2-7B over 1,024 tokens. So the
model is left to compute its own weights, softmax, soft caps, masks, learned sinks and all, in its eager attention;
a hook on each attention module hands them on and keeps no more than what was made of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from sinkchat.errors import CannotStream

Reduced = TypeVar("Reduced")


class Recording(dict[int, Reduced]):
    """What was made of the latest forward's weights, by the index of the layer."""

    def by_layer(self) -> list[Reduced]:
        """All layers that have attention, first to last. Raises `CannotStream` for a model that shows none."""
        if not self:
            raise CannotStream(
                "this model does not show where its attention goes: no layer gives its weights",
                hint="a model of the usual kind, such as smollm2",
            )
        return [self[index] for index in sorted(self)]


@contextmanager
def recorded(model: nn.Module, reduce: Callable[[Tensor], Reduced]) -> Iterator[Recording[Reduced]]:
    """Within the block every forward of `model` runs in eager attention and leaves `reduce(weights)` of each layer.

    `weights` is (B, H, T, K): of T new tokens, what each of H heads gives to K keys, in the model's dtype. A row
    that sums to less than 1 belongs to a head with a learned sink. `reduce` must keep no view of it.
    """
    recording: Recording[Reduced] = Recording()

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        for part in output if isinstance(output, tuple) else ():
            if isinstance(part, Tensor) and part.ndim == 4:
                recording[int(module.layer_idx)] = reduce(part)  # type: ignore[arg-type]

    modules = [module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    handles = [module.register_forward_hook(keep) for module in modules]
    config: Any = model.config
    before = config._attn_implementation
    try:
        config._attn_implementation = "eager"  # set_attn_implementation refuses Falcon, which asks here all the same
        yield recording
    finally:
        config._attn_implementation = before
        for handle in handles:
            handle.remove()
