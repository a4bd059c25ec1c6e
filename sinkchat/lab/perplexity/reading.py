"""How each method reads a text: a stream of losses, broken off anywhere, taken up where it was left."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from sinkchat.cache.moments import Snapshot
from sinkchat.cache.probe import LayerLayout, layer_shapes
from sinkchat.cache.storage import KeysValues
from sinkchat.engine.engine import Engine, Image
from sinkchat.lab.inside.plain import CHUNK_SIZE, DenseStream, read_afresh
from sinkchat.lab.perplexity.scores import Losses
from sinkchat.models.placement import free_memory

TOKENS_AT_ONCE = {"cuda": 16_384}
"""tokens of windows that are read afresh together; elsewhere 1,024, for which a processor is busy enough"""

_TEMPORARY = 3
"""times the logits of a chunk that stand in memory at once, and keys that are joined"""


class ReadingEnded(Exception):
    """The method can read no further; the message says why."""


class Reading(Protocol):
    """One method at work on one text."""

    def losses(self, start: int) -> Iterator[Losses]:
        """Losses of the tokens from `start` on; of earlier ones too, where these must be read again."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What it remembers, for `restore`; nothing, where it can be read again."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Stream(Protocol):
    """A cache that is fed with ids."""

    @property
    def seen(self) -> int: ...
    def read(self, ids: Sequence[int]) -> Iterator[Tensor]: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class StreamReading:
    """A text through a cache."""

    def __init__(self, stream: Stream, ids: Sequence[int]) -> None:
        self._stream, self._ids = stream, ids

    def losses(self, start: int) -> Iterator[Losses]:
        yield from _losses_of(self._stream, self._ids)

    def state(self) -> dict[str, Tensor]:
        return self._stream.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._stream.restore(state)


class DenseReading:
    """A text with everything kept, as long as memory lasts; to go on with it, it is read again.

    `limit` is the number of positions that there are, None where any can be asked for.
    """

    def __init__(
        self,
        model: nn.Module,
        ids: Sequence[int],
        *,
        limit: int | None = None,
        free: Callable[[torch.device], int | None] = free_memory,
    ) -> None:
        self._model, self._ids, self._limit, self._free = model, ids, limit, free

    def losses(self, start: int) -> Iterator[Losses]:
        layouts = layer_shapes(self._model)
        stream = DenseStream(self._model)
        stop = len(self._ids) if self._limit is None else self._limit + 1
        self._require(layouts, 0)
        for losses in _losses_of(stream, self._ids[:stop]):
            yield losses
            self._require(layouts, stream.seen)
        if stop < len(self._ids):
            raise ReadingEnded(f"this model has no positions past {self._limit:,}")

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to put back."""

    def _require(self, layouts: Sequence[LayerLayout], seen: int) -> None:
        """Ends the reading before the system does: it would end the whole program."""
        device = layouts[0].device
        if device.type != "cpu" or (free := self._free(device)) is None:
            return
        by_layer = [one.heads * (one.key_width + one.value_width) * one.dtype.itemsize for one in layouts]
        vocabulary = self._model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        needed = CHUNK_SIZE * (sum(by_layer) + _TEMPORARY * 4 * vocabulary) + _TEMPORARY * seen * max(by_layer)
        if needed > free:
            raise ReadingEnded(f"out of memory: {free / 2**30:.1f} GiB are free, the next tokens take more")


class RecomputeReading:
    """Every `every`-th token from `first` on, each from the `cache_size` tokens before it, read afresh."""

    def __init__(self, model: nn.Module, ids: Sequence[int], *, cache_size: int, first: int, every: int) -> None:
        self._model, self._ids, self._cache_size = model, ids, cache_size
        self._first, self._every = first, every

    def losses(self, start: int) -> Iterator[Losses]:
        done = max(0, -(-(start - self._first) // self._every))
        targets = range(self._first + done * self._every, len(self._ids), self._every)
        device = next(self._model.parameters()).device
        batch = max(1, TOKENS_AT_ONCE.get(device.type, 1024) // self._cache_size)
        for begin in range(0, len(targets), batch):
            some = targets[begin : begin + batch]
            windows = torch.tensor([self._ids[target - self._cache_size : target] for target in some])
            logits = read_afresh(self._model, windows)
            yield Losses(some[0], _surprises(logits, [self._ids[target] for target in some]), self._every)

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to put back."""


class SteppedStream:
    """A stream read one by one, for models that cannot be read in bands: the engine at its plainest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def seen(self) -> int:
        return self._engine.state.seen

    def read(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """Logits (1, V), token by token."""
        for token in ids:
            self._engine.feed([token])
            assert self._engine.logits is not None
            yield self._engine.logits.unsqueeze(0)

    def state(self) -> dict[str, Tensor]:
        image = self._engine.image()
        cache = image.cache
        tensors = {
            "counts": torch.tensor([cache.seen, cache.evicted, cache.base, cache.pinned]),
            "ids": torch.tensor(image.held_ids, dtype=torch.int64),
        }
        for name, groups in (("held", cache.held), ("pristine", cache.pristine or ())):
            for index, tokens in enumerate(groups):
                tensors |= {f"{name}.{index}.keys": tokens.keys, f"{name}.{index}.values": tokens.values}
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        seen, evicted, base, pinned = map(int, state["counts"])
        pristine = _groups(state, "pristine")
        snapshot = Snapshot(seen, evicted, base, pinned, (), _groups(state, "held"), pristine or None)
        self._engine.restore(Image(snapshot, tuple(state["ids"].tolist()), (), None))


def with_line_breaks(ids: Sequence[int], count: int, line_break: int) -> list[int]:
    """The text whose first `count` tokens are line breaks instead."""
    return [line_break] * count + list(ids[count:])


def _losses_of(stream: "Stream | DenseStream", ids: Sequence[int]) -> Iterator[Losses]:
    """Losses of the tokens after those that the stream has seen."""
    token = stream.seen + 1
    for logits in stream.read(ids[stream.seen : -1]):
        yield Losses(token, _surprises(logits, ids[token : token + len(logits)]))
        token += len(logits)


def _surprises(logits: Tensor, targets: Sequence[int]) -> list[float]:
    """Negative log-likelihoods of the targets, in nats; computed in float32."""
    wanted = torch.tensor(targets, device=logits.device)
    losses: list[float] = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none").tolist()
    return losses


def _groups(state: Mapping[str, Tensor], name: str) -> tuple[KeysValues, ...]:
    count = sum(each.startswith(f"{name}.") and each.endswith(".keys") for each in state)
    return tuple(KeysValues(state[f"{name}.{index}.keys"], state[f"{name}.{index}.values"]) for index in range(count))
