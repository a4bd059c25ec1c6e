"""Which model families stream, and which cannot: measured on tiny random models, one row after the other."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn

from sinkchat.errors import CannotStream, UsageError
from sinkchat.lab.families.checks import measure
from sinkchat.lab.families.configs import REFUSED, STREAMING
from sinkchat.lab.families.table import Refused, Row
from sinkchat.models.untrained import is_known, untrained_model

FAMILIES = STREAMING | REFUSED


def rows(names: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each of the named families, or for all. Leaving the loop stops the work."""
    for name in names:
        if name not in FAMILIES:
            raise UsageError(f"no family here is called {name}", hint=", ".join(FAMILIES))
    for name in names or FAMILIES:
        yield row(name)


def row(name: str) -> Row:
    """The figures of one family, or why it cannot stream."""
    model_type, _ = FAMILIES[name]
    if not is_known(model_type):
        return Refused(name, "the installed transformers does not know it", is_known=False)
    try:
        return measure(name, partial(build, name))
    except CannotStream as refusal:
        return Refused(name, refusal.message.partition(" cannot stream: ")[2] or refusal.message)


def build(name: str, layers: int, dtype: torch.dtype) -> nn.Module:
    """The family's model, the same at each call but for its layers and numbers."""
    model_type, settings = FAMILIES[name]
    model: nn.Module = untrained_model(model_type, settings(layers), dtype=dtype)
    return model
