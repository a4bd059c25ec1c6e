"""A process that compiles a model's decode step, beside the chat: `main` of this module, with a folder to fill.

Its input is an `Order`, without weights; its output three packages in the folder. It ends when its input is closed:
nobody compiles for a program that has gone.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
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


def build(order: bytes, folder: Path) -> None:
    """Compiles the sections of a packed `Order` into `folder`."""
    for part, program in programs(order):
        path = str(folder / f"{part}.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=dict(_SETTINGS))


def programs(order: bytes) -> Iterator[tuple[str, ExportedProgram]]:
    """The three sections of a packed `Order`, by their names. How many blocks of the ring are read stays open.

    Weights, keys and values are never there: their shapes are enough, and so is the name of their device.
    """
    with FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True):
        asked: Order = unpacked(order)
        device = asked.bias.device
        owner, name = decoder_layers(asked.model)
        layers = list(getattr(owner, name))
        sections = Sections(asked.model)
        outer = list(tensors_of(asked.model).values())
        weights = [tensor for layer in layers[: sections.group] for tensor in tensors_of(layer).values()]
        held = [torch.empty_like(buffer) for _ in range(sections.group) for buffer in asked.held]
        # No tensor twice: an exported program would take both for one.
        ids, position = (torch.zeros(1, 1, dtype=torch.long, device=device) for _ in range(2))
        given = sections.before(ids, position, outer)
        hidden, *_ = sections.layers(given, asked.bias, weights, held)
    torch.set_num_threads(asked.threads)
    blocks = {0: torch.export.Dim("blocks", min=2, max=2**20)}
    open_shapes = ([None] * len(given), blocks, [None] * len(weights), [blocks] * len(held))
    yield "before", _exported(sections.before, (ids, position, outer))
    yield "layers", _exported(sections.layers, (given, asked.bias, weights, held), (open_shapes,))
    yield "after", _exported(sections.after, (hidden, outer))


def _exported(function: Callable[..., Any], arguments: tuple[Any, ...], shapes: Any = None) -> ExportedProgram:
    return torch.export.export(_Function(function), arguments, dynamic_shapes=shapes, strict=False)


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
