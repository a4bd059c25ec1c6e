"""Devices that fail in mid-work."""

from torch import nn
from torch.utils.hooks import RemovableHandle


def fail_after(model: nn.Module, forwards: int, error: Exception) -> RemovableHandle:
    """After so many more forwards, every one breaks off in the second layer with `error`, until that is removed."""
    count = 0

    def fail(*_: object) -> None:
        nonlocal count
        count += 1
        if count > forwards:
            raise error

    return model.model.layers[1].register_forward_pre_hook(fail)  # type: ignore[union-attr, operator, index, return-value]
