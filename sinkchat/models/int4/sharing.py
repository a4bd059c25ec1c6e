"""Linears that read the same tensor as one matmul: queries, keys and values; gate and up.

Which they are is found by watching one forward, not by their names. The modules stay where the model calls them: the
first computes for all and keeps the result, each of the others takes its part, and the last leaves nothing behind.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from sinkchat.models.int4.linear import Int4Linear


def reads_the_same(model: nn.Module, linears: Mapping[str, nn.Module]) -> list[list[str]]:
    """All names of `linears` in groups: those of one parent that are called in a row with the very same tensor.

    Runs `model` on one token. A tensor that was changed in place between two calls is not the same. Linears that were
    not called are alone.
    """
    groups: list[list[str]] = []
    last: list[tuple[str, Tensor, int]] = []

    def note(name: str, x: Tensor) -> None:
        parent = name.rpartition(".")[0]
        if last and last[0][0] == parent and last[0][1] is x and last[0][2] == x._version:
            groups[-1].append(name)
        else:
            groups.append([name])
        last[:] = [(parent, x, x._version)]

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs[0]))
        for name, module in linears.items()
    ]
    try:
        with torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.long), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    called = [name for group in groups for name in group]
    if len(called) != len(set(called)):  # some run twice in one forward: leave everything apart
        return [[name] for name in linears]
    return groups + [[name] for name in linears if name not in set(called)]


class _Result:
    """What the first computed, for which input, and who has not taken a part of it yet."""

    def __init__(self) -> None:
        self.input: Tensor | None = None
        self.output: Tensor | None = None
        self.waiting: tuple[int, ...] = ()

    def keep(self, x: Tensor, y: Tensor, waiting: tuple[int, ...]) -> None:
        self.input, self.output, self.waiting = x, y, waiting

    def take(self, x: Tensor, place: int) -> Tensor | None:
        """The whole result, once for each place; None where it is not that of `x`."""
        if self.input is not x or place not in self.waiting:
            return None
        y = self.output
        self.waiting = tuple(other for other in self.waiting if other != place)
        if not self.waiting:
            self.input = self.output = None
        return y


class FirstOfShared(nn.Module):
    """The first of several linears with one input: it computes for all of them, always anew."""

    def __init__(self, whole: Int4Linear, sizes: Sequence[int]) -> None:
        super().__init__()
        self.whole = whole
        self.in_features, self.out_features = whole.in_features, sizes[0]
        self.result = _Result()
        self._others = tuple(range(1, len(sizes)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.whole(x)
        self.result.keep(x, y, self._others)
        return y[..., : self.out_features]


class PartOfShared(nn.Module):
    """Another of them: it takes its part of what the first computed for the same tensor, else computes it itself."""

    def __init__(self, first: FirstOfShared, place: int, span: tuple[int, int]) -> None:
        super().__init__()
        self.in_features, self.out_features = first.in_features, span[1] - span[0]
        self._first = (first,)  # in a tuple it is no child: its weights are counted and saved once
        self._place, self._span = place, span

    def forward(self, x: Tensor) -> Tensor:
        first = self._first[0]
        y = first.result.take(x, self._place)
        if y is None:
            y = first.whole(x)
        return y[..., self._span[0] : self._span[1]]


def shared(whole: Int4Linear, sizes: Sequence[int]) -> list[nn.Module]:
    """A module for each of the linears whose outputs, of `sizes`, are those of `whole` in turn."""
    if len(sizes) == 1:
        return [whole]
    first = FirstOfShared(whole, sizes)
    stops = list(accumulate(sizes))
    return [first, *(PartOfShared(first, i, (stops[i - 1], stops[i])) for i in range(1, len(sizes)))]
