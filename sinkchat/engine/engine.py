"""Token ids in, token ids out. The engine knows no text, no turns and no screen.

It owns the loop around the model: before each forward room is made, and no forward brings more than there is room
for. So what is forgotten depends on how many tokens came, never on how they were handed over: 10,000 tokens one by
one, in chunks of 7 or as one paste give the same logits.

Everything is a generator of `Step`s. Leaving the loop stops the work, between two forwards, with all layers alike.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Begun, Forward
from sinkchat.cache.moments import Checkpoint, Snapshot
from sinkchat.cache.policy import CacheState, Span
from sinkchat.engine.reading import reading
from sinkchat.engine.sampling import Sampler
from sinkchat.engine.segment import Segment
from sinkchat.errors import DeviceLost, NotNumbers, OutOfMemory

CHUNK_SIZE = 512
"""Tokens of one forward while reading: SmolLM2 on two cores reads 1.6 times as fast as with 256."""

_NO_ID = -1
"""read in place of a token that was drawn from what are not numbers"""


def never() -> bool:
    """The stop flag that is never set."""
    return False


@dataclass(frozen=True, slots=True)
class Step:
    """One forward's worth of progress: the token that was drawn, or None while input is read."""

    token: int | None
    evicted: tuple[Span, ...]
    """what left memory since the step before"""
    state: CacheState


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that an engine can go back to."""

    checkpoint: Checkpoint
    held_ids: tuple[int, ...]
    pending: tuple[int, ...]
    logits: Tensor | None


@dataclass(frozen=True, slots=True)
class Image:
    """Everything that an engine remembers, copied out of its way."""

    cache: Snapshot
    held_ids: tuple[int, ...]
    pending: tuple[int, ...]
    logits: Tensor | None


class Engine:
    """A causal model and its cache, fed with ids. One stream; `generator` is a CPU one and decides every draw."""

    def __init__(
        self,
        model: nn.Module,
        cache: SinkCache,
        *,
        generator: torch.Generator | None = None,
        chunk_size: int = CHUNK_SIZE,
        forward: Forward | None = None,
    ) -> None:
        self.cache = cache
        self.generator = generator if generator is not None else torch.Generator()
        self.chunk_size = chunk_size
        self.held_ids: list[int] = []
        """the ids of the tokens that the cache holds, pinned ones first"""
        self.pending: list[int] = []
        """tokens of the stream that are not in the cache yet, such as the last one drawn"""
        self.logits: Tensor | None = None
        """(V,) of the last token that was fed"""
        self.model = model
        self._forward = forward if forward is not None else Forward(model)

    @property
    def device(self) -> torch.device:
        """Where input goes in."""
        return self._forward.device

    @property
    def vocabulary_size(self) -> int:
        """Ids that may be fed are below this."""
        return self._forward.vocabulary_size

    @property
    def decoding(self) -> str:
        """In words how single tokens are computed: "by the model's own code", "compiling", "compiled"."""
        return self._forward.state

    def settle(self) -> None:
        """Waits until tokens are computed as they will be from then on. For measurements; a chat never waits."""
        self._forward.settle()

    @property
    def device_bytes(self) -> int | None:
        """Memory that tensors take on the device, in bytes; None where the device does not tell."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    @property
    def state(self) -> CacheState:
        return self.cache.state

    def reset(self) -> None:
        """Begins a new stream."""
        self.cache.reset()
        self.held_ids.clear()
        self.pending.clear()
        self.logits = None

    def mark(self) -> Mark:
        """This moment, to come back to. An earlier mark is given up."""
        return Mark(self.cache.checkpoint(), tuple(self.held_ids), tuple(self.pending), self.logits)

    def rewind(self, mark: Mark) -> None:
        """Puts cache, ids and logits back as they were at the latest mark, to the bit."""
        self.cache.rewind(mark.checkpoint)
        self.held_ids[:] = mark.held_ids
        self.pending[:] = mark.pending
        self.logits = mark.logits

    def release(self) -> None:
        """Gives the latest mark up, and with it what was kept to go back there."""
        self.cache.release()

    def image(self) -> Image:
        """A copy of everything remembered, to put back whatever comes; a mark is cheaper, and holds for less."""
        with _device_loss_told():
            return Image(self.cache.snapshot(), tuple(self.held_ids), tuple(self.pending), self.logits)

    def restore(self, image: Image) -> None:
        """Puts `image` back, to the bit."""
        self.cache.restore(image.cache)
        self.held_ids[:] = image.held_ids
        self.pending[:] = image.pending
        self.logits = None if image.logits is None else image.logits.to(self.device)

    def truncate(self, seen: int) -> None:
        """Takes back every token of the stream after the first `seen`, as far as the window reaches."""
        self.cache.truncate(seen)
        del self.held_ids[self.state.occupied :]
        self.pending.clear()
        self.logits = None

    def window_segments(self) -> list[Segment]:
        """What the window holds, cut where its messages begin."""
        first, last = self.state.next_to_leave, self.state.seen
        starts = [first, *(at for at in self.cache.borders if first < at < last)]
        ids = self.held_ids[self.state.pinned :]
        opening = set(self.cache.borders)
        return [
            Segment(tuple(ids[start - first : stop - first]), opens_message=start in opening)
            for start, stop in zip(starts, [*starts[1:], last], strict=True)
            if stop > start
        ]

    def relay(
        self, head: Sequence[int], window: Iterable[Segment], *, pinned: int, forgotten: int = 0
    ) -> Iterator[Step]:
        """Lays memory out anew: reads `head`, then `window`; the first `pinned` tokens will never leave.

        Between the two, `forgotten` tokens count as seen and gone, so that the stream's count goes on; then `head`
        must be all that is pinned.
        """
        self.cache.pinned = pinned
        self.reset()
        yield from self.read([Segment(tuple(head))])
        if forgotten:
            self.cache.skip(forgotten)
        yield from self.read(window)

    def feed(self, ids: Iterable[int]) -> CacheState:
        """Reads `ids` at once; what the cache holds then."""
        for _ in self.read([Segment(tuple(ids))]):
            pass
        return self.state

    def read(self, segments: Iterable[Segment]) -> Iterator[Step]:
        """Feeds ids, in chunks; a step for each forward. Pulls only as much input as the next chunk takes."""
        for segment in segments:
            if segment.opens_message:
                self.cache.open_message(self.state.seen + len(self.pending))
            self.pending.extend(segment.ids)
            while len(self.pending) >= self.chunk_size:
                yield self._feed()
        while self.pending:
            yield self._feed()

    def generate(
        self, sampler: Sampler, *, stop_ids: frozenset[int], max_tokens: int = 0, stopped: Callable[[], bool] = never
    ) -> Iterator[Step]:
        """Draws tokens until one of `stop_ids` (its step is the last), `max_tokens` (0: no limit) or `stopped()`.

        A step is yielded before its token is fed, so that it can be shown while the model works on. The last token
        stays in `pending`, unless it is a stop id: that is not part of the answer, and what follows brings it.

        Where a forward can be begun with a token that only the device knows (`Forward.begin`), the id is read while
        the device computes the next one. Only where there is room: nothing is forgotten for a token that ends.
        """
        count = 0
        evicted: tuple[Span, ...] = ()
        while not stopped():
            if self.logits is None:
                raise ValueError("nothing was read: there is nothing to go on from")
            with _device_loss_told():
                drawn = sampler.draw(self.logits, self.held_ids, self.generator)
                read = reading(torch.where(self.logits.amax().isfinite(), drawn, _NO_ID))
                begun = self._begin(drawn) if count + 1 != max_tokens else None
                token = read()
            if token == _NO_ID:
                raise _overflow(self.logits.dtype)
            if token in stop_ids:
                yield Step(token, evicted, self.state)
                return
            self.pending.append(token)
            count += 1
            yield Step(token, evicted, self.state)
            if count == max_tokens or stopped():
                return
            evicted = self._feed(begun).evicted

    def _begin(self, drawn: Tensor) -> Begun | None:
        """Begins the forward of the token `drawn`, which nobody knows yet, if nothing must leave for it."""
        if self.pending or not self.cache.room:
            return None
        return self._forward.begin(drawn.view(1, 1), self.cache.positions(1))

    def _feed(self, begun: Begun | None = None) -> Step:
        """Moves ids from the front of `pending` into the cache: a chunk, or as many as there is room for.

        `begun` is the forward of the one token that is pending, where that is under way.
        """
        span = self.cache.make_room()
        if span is not None:
            del self.held_ids[self.cache.pinned : self.cache.pinned + len(span)]
        ids = self.pending[: min(self.chunk_size, self.cache.room)]
        self.logits = self._run(ids) if begun is None else begun()
        self.cache.commit(len(ids))
        self.held_ids.extend(ids)
        del self.pending[: len(ids)]
        return Step(None, (span,) if span is not None else (), self.state)

    def _run(self, ids: Sequence[int]) -> Tensor:
        """Logits (V,) of the last of `ids`. A forward that fails changes nothing that the cache counts."""
        try:
            with _device_loss_told():
                input_ids = torch.tensor([ids]).to(self._forward.device, non_blocking=True)
                return self._forward(input_ids, self.cache.positions(len(ids)), self.cache)[0, -1]
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"out of memory reading {len(ids):,} tokens with {self.state.occupied:,} in memory",
                hint="a smaller --cache-size, or --quant nf4; the conversation goes on as before this turn",
            ) from error


def _overflow(dtype: torch.dtype) -> NotNumbers:
    name = str(dtype).removeprefix("torch.")
    return NotNumbers(
        f"the model's logits are not numbers: what it computes in {name} overflows, or its weights are damaged",
        hint="the same with --dtype float32" if dtype != torch.float32 else "fetch the model again: sinkchat pull",
    )


@contextmanager
def _device_loss_told() -> Iterator[None]:
    """Turns what torch, since 2.8, raises once a device has failed into an error that says so."""
    try:
        yield
    except getattr(torch, "AcceleratorError", ()) as error:
        raise DeviceLost(
            f"the device failed: {str(error).splitlines()[0]}",
            hint="start again: what was said until here is saved with the conversation",
        ) from error
