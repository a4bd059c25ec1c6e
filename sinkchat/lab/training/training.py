"""The paper's table 3 in miniature: which kinds of models need how many sinks (arXiv 2309.17453, section 3.3).

Three small models are trained on the same bytes in the same order, differing only in where they can put the weight
that they do not need; then each reads on, past a cache as long as what it was trained on, with 0, 1, 2 and 4 sinks.

Models this small hardly grow sinks: a sink comes with size and with long training. Measured with the defaults, about
a minute of CPU each, perplexity of a byte: vanilla 3.84 with any number of sinks, zero sink 3.78 with any; learnable
sink 3.838 without it, 3.824 with it and 3.828 with three more. The paper's models, of 160 million parameters: vanilla
27.87, then 18.49 and 18.05; learnable sink 1,235, then 18.01 and 18.02.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sinkchat.errors import InputError
from sinkchat.lab.training.model import KINDS, Held, Kind, SinkModel, Size
from sinkchat.lab.training.table import SINKS, Plan, Row

_WARM_UP = 40
_HELD_OUT = 10
"""one part in this many is not trained on"""


@dataclass(frozen=True, slots=True)
class Trained:
    """A model is so far in its training; it is number `number` of `kinds`, counted from 1."""

    kind: str
    number: int
    kinds: int
    step: int
    loss: float
    """of the step's batch, in nats a byte"""


Event: TypeAlias = Trained | Row


def compare(text: bytes, plan: Plan, kinds: Sequence[Kind] = KINDS) -> Iterator[Event]:
    """Trains each kind and measures it: an event a step, a row a model. Leaving the loop stops the work.

    Raises `InputError` for a text too short to train on.
    """
    data = torch.tensor(list(text))
    train, held_out = data[: -len(data) // _HELD_OUT], data[-len(data) // _HELD_OUT :]
    streams = min(plan.streams, len(held_out) // (4 * plan.length))
    if streams < 1:
        needed = 4 * plan.length * _HELD_OUT
        raise InputError(
            f"the text has {len(text):,} bytes, and {needed:,} are needed: a tenth is read past the window",
            hint="a longer text",
        )
    for number, kind in enumerate(kinds, 1):
        model = new_model(kind, Size(plan.layers, plan.heads, plan.width), seed=plan.seed)
        loss = math.nan
        for step, loss in enumerate(train_steps(model, train, plan), 1):
            yield Trained(kind.name, number, len(kinds), step, loss)
        unseen = held_out[: streams * (len(held_out) // streams)].view(streams, -1)[:, : 4 * plan.length]
        perplexities = tuple(perplexity(model, unseen, capacity=plan.length, sinks=sinks) for sinks in SINKS)
        yield Row(kind.name, loss, perplexities)


def new_model(kind: Kind, size: Size, *, seed: int) -> SinkModel:
    """A model with weights that depend on `seed` alone. Leaves torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SinkModel(kind, size)
        for weight in model.parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.5 / weight.shape[1] ** 0.5)
    return model


def train_steps(model: SinkModel, data: Tensor, plan: Plan) -> Iterator[float]:
    """Trains on passages of `data` (N,) drawn by the seed; the loss of each step."""
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(plan.steps):
        progress = step / plan.steps
        scale = min(1.0, (step + 1) / _WARM_UP) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
        optimizer.param_groups[0]["lr"] = plan.rate * scale
        starts = torch.randint(len(data) - plan.length, (plan.batch,), generator=generator)
        passages = data[starts[:, None] + torch.arange(plan.length + 1)]
        logits, _ = model(passages[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


@torch.inference_mode()
def perplexity(model: SinkModel, texts: Tensor, *, capacity: int, sinks: int) -> float:
    """Of each byte of `texts` (B, T) that is read while the cache is full, its first `sinks` tokens never evicted.

    A sink token is the first of them. Positions are ranks in the cache; one token leaves for each that comes.
    """
    losses = []
    cache: list[Held | None] | None = None
    for index in range(texts.shape[1] - 1):
        is_full = cache is not None and cache[0] is not None and cache[0].keys.shape[2] == capacity
        for held in cache if cache is not None and is_full else ():
            if held is not None:
                held.evict(sinks, 1)
        logits, cache = model(texts[:, index : index + 1], cache)
        if is_full:
            losses.append(cross_entropy(logits[:, 0], texts[:, index + 1]))
    return math.exp(torch.stack(losses).mean().item())
