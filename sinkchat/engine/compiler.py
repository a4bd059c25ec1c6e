"""A process that compiles a model's decode step, beside the chat: `main` of this module, with a folder to fill.

Its input is an `Order`, without weights; its output three packages in the folder. It ends when its input is closed:
nobody compiles for a program that has gone.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sinkchat.engine.sections import Sections, decoder_layers, tensors_of
from sinkchat.engine.skeleton import unpacked

PARTS = ("before", "layers", "after")
"""the packages of a compiled step, `before.pt2` and so on"""

_SETTINGS: Mapping[str, Any] = {
    "realize_reads_threshold": 2,  # the rotated query is computed once, not anew for every key
    "cpp.enable_floating_point_contract_flag": "fast",  # products and sums as one instruction
}
"""what is asked of the compiler beyond its own choice"""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be compiled: a model, and the ring that its layers will be given."""

    model: nn.Module
    bias: Tensor
    held: tuple[Tensor, Tensor]
    """keys and values of one layer of the ring"""
    threads: int


class _Function(nn.Module):
    """A function as a module, which is what `torch.export` takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def build(data: bytes, folder: Path) -> None:
    """Compiles the three sections of the order in `data` into `folder`.

    Weights, keys and values are never there: their shapes are enough. How many blocks are read stays open.
    """
    with FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True):
        order: Order = unpacked(data)
        device = order.bias.device
        owner, name = decoder_layers(order.model)
        layers = list(getattr(owner, name))
        sections = Sections(order.model)
        outer = list(tensors_of(order.model).values())
        weights = [tensor for layer in layers[: sections.group] for tensor in tensors_of(layer).values()]
        held = [torch.empty_like(buffer) for _ in range(sections.group) for buffer in order.held]
        # No tensor twice: an exported program would take both for one.
        ids, position = (torch.zeros(1, 1, dtype=torch.long, device=device) for _ in range(2))
        given = sections.before(ids, position, outer)
        hidden, *_ = sections.layers(given, order.bias, weights, held)
    torch.set_num_threads(order.threads)
    blocks = {0: torch.export.Dim("blocks", min=2, max=2**20)}
    open_shapes = ([None] * len(given), blocks, [None] * len(weights), [blocks] * len(held))
    _compile(sections.before, (ids, position, outer), None, folder / "before.pt2")
    _compile(sections.layers, (given, order.bias, weights, held), open_shapes, folder / "layers.pt2")
    _compile(sections.after, (hidden, outer), None, folder / "after.pt2")


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...], open_shapes: Any, path: Path) -> None:
    shapes = None if open_shapes is None else (tuple(open_shapes),)
    program = torch.export.export(_Function(function), arguments, dynamic_shapes=shapes, strict=False)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(_SETTINGS))


def _leave_with_the_parent(stdin: int) -> None:
    os.read(stdin, 1)
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Reads an order from stdin, its length first, and carries it out."""
    os.nice(10)
    stdin = sys.stdin.buffer
    order = stdin.read(int.from_bytes(stdin.read(8), "little"))
    threading.Thread(target=_leave_with_the_parent, args=(stdin.fileno(),), daemon=True).start()
    with torch.no_grad():
        build(order, Path(arguments[0]))
