"""Where the parts of a model lie: on one device, on several and on disk, or cut across processes.

Whole on one device is fastest for one stream, so a model is spread only where it does not fit, and cut only where
several processes were asked for. Each way is a small class that says what it asks of transformers, and where
things lie afterwards. Keys and values lie where their layer computes; the probe sees where that is.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from accelerate.utils import get_max_memory
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig

from sinkchat.errors import OutOfMemory, UsageError
from sinkchat.models.budget import Budget
from sinkchat.models.progress import memory_size
from sinkchat.parallel.ranks import Ranks

DeviceMap = Mapping[str, str | int]
"""accelerate's: which module lies where; "disk" is read from the checkpoint each time"""

_KEYS = ("k_proj", "kv_b_proj", "qkv_proj", "query_key_value")
_SHARE = 0.9
"""of what is free, for weights; the rest is for keys, values and what is in between"""


class Placement(Protocol):
    """One way to place a model."""

    @property
    def is_whole(self) -> bool:
        """Whether one process sees all of it on one device."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of `from_pretrained` that make it so."""

    def device(self, model: PreTrainedModel) -> str:
        """Where it computes, in a word or a few."""

    def notes(self, model: PreTrainedModel) -> tuple[str, ...]:
        """Sentences worth saying about it."""


@dataclass(frozen=True, slots=True)
class Whole:
    """On one device."""

    where: torch.device
    is_whole: bool = True

    def arguments(self) -> dict[str, Any]:
        return {"device_map": {"": self.where}}

    def device(self, model: PreTrainedModel) -> str:
        return str(self.where)

    def notes(self, model: PreTrainedModel) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Spread:
    """On several devices by a map of accelerate's; "auto" fills what `max_memory` (bytes) allows, then the disk."""

    device_map: DeviceMap | str
    max_memory: Mapping[str | int, int] | None = None
    is_whole: bool = False

    def arguments(self) -> dict[str, Any]:
        given = self.device_map if isinstance(self.device_map, str) else dict(self.device_map)
        return {"device_map": given} | ({"max_memory": dict(self.max_memory)} if self.max_memory else {})

    def device(self, model: PreTrainedModel) -> str:
        places = dict.fromkeys(_name(place) for place in model.hf_device_map.values())
        return " + ".join(sorted(places, key=["memory", "disk"].__contains__))

    def notes(self, model: PreTrainedModel) -> tuple[str, ...]:
        said = (f"the model is spread: {whereabouts(model.hf_device_map)}",)
        if "disk" in model.hf_device_map.values():
            return (*said, "what lies on disk is read again for each token; a smaller model answers much faster")
        return said


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of every layer in each of several processes, by the plan that the model's code has for it."""

    ranks: Ranks
    where: torch.device
    is_whole: bool = False

    def arguments(self) -> dict[str, Any]:
        return {"distributed_config": DistributedConfig(tp_size=self.ranks.count, tp_plan="auto")}

    def device(self, model: PreTrainedModel) -> str:
        return f"{self.ranks.count} x {self.where.type}"

    def notes(self, model: PreTrainedModel) -> tuple[str, ...]:
        return (f"every layer is cut across {self.ranks.count} processes",)

    def check(self, config: PreTrainedConfig, name: str) -> None:
        """Raises where the model cannot be cut so."""
        shared = _to_share(config)
        if shared is None:
            raise UsageError(
                f"{name} cannot be cut across {self.ranks.count} processes: transformers has no plan for its layers",
                hint="one process: --device auto spreads what does not fit",
            )
        others = (process_counts(config) or ())[1:]
        for what, number in shared.items():
            if number % self.ranks.count:
                raise UsageError(
                    f"{self.ranks.count} processes cannot share {name} alike: its {what} number {number}",
                    hint=f"--processes {' or '.join(map(str, others))}" if others else "one process",
                )


def process_counts(config: PreTrainedConfig) -> tuple[int, ...] | None:
    """How many processes can share a model, 1 among them; None: any number."""
    shared = _to_share(config)
    if shared is None:
        return (1,)
    if not shared:
        return None
    common = math.gcd(*shared.values())
    return tuple(count for count in range(1, common + 1) if common % count == 0)


def _to_share(config: PreTrainedConfig) -> dict[str, int] | None:
    """What the plan of a family divides alike among processes, as numbers; None where it has none for layers."""
    text = config.get_text_config(decoder=True)
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    if not any("*" in module for module in plan):  # for some families it names the embedding alone
        return None
    shared: dict[str, Any] = {}
    if any(module.endswith(_KEYS) and style == "colwise" for module, style in plan.items()):
        heads = text.num_attention_heads
        shared["attention heads"] = heads
        shared["heads of keys and values"] = getattr(text, "num_key_value_heads", None) or heads
    if any("experts" in module for module in plan):
        width = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None)
        # torch multiplies them together, at addresses that 16 bytes divide
        shared["groups of 8 columns in an expert"] = width // 8 if isinstance(width, int) else None
    return {what: number for what, number in shared.items() if isinstance(number, int)}


def place(
    budget: Budget,
    config: PreTrainedConfig,
    *,
    name: str,
    asked: str,
    device_map: DeviceMap | None = None,
    ranks: Ranks | None = None,
) -> Placement:
    """Where the model is to lie; `asked` is the word of `--device`. Raises OutOfMemory where it fits nowhere.

    `auto` spreads a model that does not fit its device: over all CUDA devices and, where its weights are not
    quantised, memory and disk.
    """
    if ranks is not None:
        cut = Cut(ranks, budget.device)
        cut.check(config, name)
        _check_parts(budget, ranks)
        return cut
    if device_map is not None:
        return Spread(device_map)
    return _in_one_process(budget, asked, get_max_memory)


def places(
    budget: Budget, asked: str, *, free: Callable[[], Mapping[str | int, int]] = get_max_memory
) -> tuple[str, ...]:
    """Where `place` puts weights in one process, in words, each filled before the next; nowhere: none.

    `free` gives bytes as accelerate does: by the number of a CUDA device, and of "cpu".
    """
    try:
        placement = _in_one_process(budget, asked, free)
    except OutOfMemory:
        return ()
    if isinstance(placement, Whole):
        return (str(placement.where),)
    names = tuple(_name(place) for place in placement.max_memory or ())
    return (*names, "disk") if "memory" in names else names


def _in_one_process(budget: Budget, asked: str, free: Callable[[], Mapping[str | int, int]]) -> "Whole | Spread":
    if asked == "auto" and budget.free is not None and budget.needed > budget.free:
        return _spread(budget, free)
    budget.check()
    return Whole(budget.device)


def _check_parts(budget: Budget, ranks: Ranks) -> None:
    """Raises OutOfMemory where the parts cannot fit: each its own device, or all together memory."""
    shares = ranks.count if budget.device.type == "cuda" else 1
    if budget.free is not None and budget.needed > budget.free * shares:
        raise OutOfMemory(
            f"out of memory loading weights: {memory_size(budget.needed)} in {ranks.count} parts, "
            f"{memory_size(budget.free)} free {'for each' if shares > 1 else 'for all'}",
            hint="one process: --device auto spreads what does not fit",
        )


def _spread(budget: Budget, free: Callable[[], Mapping[str | int, int]]) -> Spread:
    memory: dict[str | int, int]
    if budget.device.type == "cuda":
        memory = {where: int(_SHARE * nbytes) for where, nbytes in free().items() if where != "mps"}
        on_devices = {where: nbytes for where, nbytes in memory.items() if where != "cpu"}
        if budget.needed <= sum(on_devices.values()):
            return Spread("auto", on_devices)
    else:
        memory = {budget.device.type: int(_SHARE * (budget.free or 0))}
    if budget.method.name != "none" or budget.device.type == "mps":
        raise budget.out_of_memory()
    return Spread("auto", memory)


def whereabouts(device_map: Mapping[str, Any]) -> str:
    """Which layers lie where, in words: "layers 0 to 3 on cuda:0, 4 to 7 in memory"."""
    numbered = sorted(
        (int(found[1]), _name(place))
        for module, place in device_map.items()
        if (found := re.search(r"\.(\d+)$", module))
    )
    if not numbered:
        return ", ".join(f"{module or 'all'} {_at(_name(place))}" for module, place in device_map.items())
    runs = []
    for where, layers in groupby(numbered, key=lambda each: each[1]):
        numbers = [number for number, _ in layers]
        run = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        runs.append(f"{run} {_at(where)}")
    return "layers " + ", ".join(runs)


def _name(place: Any) -> str:
    if isinstance(place, int):
        return f"cuda:{place}"
    return "memory" if str(place) == "cpu" else str(place)


def _at(where: str) -> str:
    return f"in {where}" if where == "memory" else f"on {where}"
