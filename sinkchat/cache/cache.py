"""The cache that never fills: sinks stay, a window of recent tokens rolls (StreamingLLM, arXiv 2309.17453).

Attention sinks are the first tokens of a stream. Softmax must put its weight somewhere, and a model learns to put
what it does not need there; take them away and it falls apart. Keep them, and a window of recent tokens is enough
to go on for ever.

To the model, positions are ranks inside the cache: with tokens 0-3 and 6-8 held, the next one stands at 7. Since
rotary scores know distance alone, two frames give the same ranks, and we use the one in which nearly nothing moves:

- a window key stays as the model wrote it, at its place in the stream;
- the next token is placed at `seen`;
- pinned token i is placed at `evicted + i`, directly in front of the window, each time from a pristine copy.

So forgetting moves a few pinned keys and nothing else. Only when positions grow large, where float32 angles
become coarse, everything is *rebased*: turned back once, by one distance.

Room is made between forwards, by whoever feeds the model: `make_room`, then a forward of at most `room` tokens at
`positions`, then `commit`. A forward in between that fails leaves the cache as it was.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import Cache

from sinkchat.cache.layers import ContiguousStorage
from sinkchat.cache.moments import Checkpoint, Snapshot
from sinkchat.cache.policy import CacheState, EvictionPolicy, Span
from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.storage import KeysValues, Storage
from sinkchat.errors import UsageError

# float32 angles err by 6e-4 rad at 10,000 and 4e-3 at 100,000: below this the error does not show.
POSITION_LIMIT = 16_384


class SinkCache(Cache):
    """Keys and values of pinned tokens and of a rolling window, for a `transformers` model.

    `layouts` come from `probe`. `capacity` counts pinned and window tokens together; memory for them is allocated
    here, once, in the layout that `storage` makes. `position_limit` is the first position that the model must never
    be given. A batch is one stream.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        policy: EvictionPolicy,
        *,
        capacity: int,
        pinned: int = 4,
        position_limit: int = POSITION_LIMIT,
        storage: Callable[[Sequence[LayerLayout], int], Storage] = ContiguousStorage,
    ) -> None:
        if capacity > position_limit:
            raise UsageError(
                f"a cache of {capacity:,} tokens is more than the {position_limit:,} positions that this model takes",
                hint=f"--cache-size {position_limit}",
            )
        self.layouts = tuple(layouts)
        self.policy = policy
        self.pinned = pinned
        self.capacity = capacity
        self.position_limit = position_limit
        self.storage = storage(layouts, capacity)
        super().__init__(layers=list(self.storage.layers))
        self._device = layouts[0].device
        self.reset()

    def reset(self) -> None:
        """Forgets everything: a new stream begins, of which the first `self.pinned` tokens will stay."""
        if not 0 <= self.pinned < self.capacity:
            raise UsageError(
                f"{self.pinned:,} pinned tokens leave no window in a cache of {self.capacity:,}",
                hint=f"fewer sinks, or --cache-size {self.pinned + max(16, self.pinned)}",
            )
        self.storage.clear(self.pinned)
        self._seen = 0
        self._evicted = 0
        self._base = 0
        self._borders: list[int] = []
        self._pristine: list[KeysValues] | None = None
        self._checkpoint: Checkpoint | None = None

    @property
    def state(self) -> CacheState:
        return CacheState(
            seen=self._seen,
            evicted=self._evicted,
            pinned=min(self.pinned, self._seen),
            capacity=self.capacity,
            nbytes=self.storage.nbytes,
        )

    @property
    def room(self) -> int:
        """How many tokens the next forward may bring."""
        return self.capacity - (self._seen - self._evicted)

    def positions(self, count: int) -> Tensor:
        """Position ids (1, `count`) of the next tokens."""
        first = self._seen - self._base
        return torch.arange(first, first + count, device=self._device).unsqueeze(0)

    def commit(self, count: int) -> None:
        """Counts the `count` tokens of a forward that has succeeded."""
        self.storage.append(count)
        self._seen += count

    def skip(self, count: int) -> None:
        """Counts `count` tokens as seen and forgotten that nobody reads; what is held stays in front of what comes.

        Only while nothing but the pinned tokens is held.
        """
        if self._seen != self.pinned or self._evicted:
            raise ValueError("only a cache that holds its pinned tokens and nothing else can skip")
        self._seen += count
        self._evicted += count
        self._base += count
        self.storage.clear(self.pinned, left=self._evicted)
        self.storage.append(self.pinned)

    def truncate(self, seen: int) -> None:
        """Takes the newest tokens back: the stream ends after `seen` tokens, as if no other had come.

        What had left to make room for them stays forgotten. Gives up the checkpoint.
        """
        state = self.state
        if not state.next_to_leave <= seen <= state.seen:
            raise ValueError(
                f"the window holds tokens {state.next_to_leave} to {state.seen}, and cannot end at {seen}"
            )
        self._checkpoint = None
        self.storage.cut(self._seen - seen)
        self._seen = seen
        self._borders = self._borders[: bisect_left(self._borders, seen)]

    def foresee(self, count: int) -> Span:
        """What would leave the window if `count` tokens came now. Nothing changes."""
        seen, evicted, borders = self._seen, self._evicted, self._borders
        while count > (room := self.capacity - (seen - evicted)):
            seen, count = seen + room, count - room
            window = Span(self.pinned + evicted, seen)
            borders = borders[bisect_left(borders, window.start) :]
            evicted += len(self.policy.span_to_evict(window, self.capacity - self.pinned, borders))
        return Span(self.pinned + self._evicted, self.pinned + evicted)

    @property
    def borders(self) -> tuple[int, ...]:
        """The stream indices at which messages of the window begin, ascending."""
        return tuple(self._borders)

    def open_message(self, at: int) -> None:
        """A message begins with token `at` of the stream, held or still to come: a place to cut."""
        if at >= self.pinned and (not self._borders or at > self._borders[-1]):
            self._borders.append(at)

    def make_room(self) -> Span | None:
        """Lets the oldest window tokens leave if the cache is full, by the policy; the span that left."""
        if self.room:
            return None
        window = Span(self.state.next_to_leave, self._seen)
        span = self.policy.span_to_evict(window, self.capacity - self.pinned, self._borders)
        self._keep_pristine()
        self._journal(len(span))
        self.storage.drop(len(span))
        self._evicted += len(span)
        self._borders = self._borders[bisect_left(self._borders, span.stop) :]
        self._rebase()
        self._place_pinned()
        return span

    def checkpoint(self) -> Checkpoint:
        """Marks this moment to come back to with `rewind`. An earlier mark is given up."""
        self._checkpoint = Checkpoint(self._seen, self._evicted, self._base, list(self._borders))
        return self._checkpoint

    def release(self) -> None:
        """Gives up the mark: what leaves from now on is gone."""
        self._checkpoint = None

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Puts the cache back as it was at the latest `checkpoint`, to the bit, whatever has left since.

        The checkpoint stays in force: it can be rewound to again.
        """
        if checkpoint is not self._checkpoint:
            raise ValueError("only the latest checkpoint can be rewound to")
        storage, pinned = self.storage, self.pinned
        window = max(0, checkpoint.seen - checkpoint.evicted - pinned)
        still_held = storage.read(pinned, pinned + window - checkpoint.kept)
        storage.clear(pinned, left=checkpoint.evicted)
        at = pinned
        for tokens in (*checkpoint.left, still_held):
            storage.write(at, tokens)
            at += tokens[0].keys.shape[2]
        storage.append(checkpoint.seen - checkpoint.evicted)
        self._seen, self._evicted, self._base = checkpoint.seen, checkpoint.evicted, checkpoint.base
        self._borders = list(checkpoint.borders)
        self._place_pinned()
        if self._seen < self.pinned:
            self._pristine = None
        checkpoint.left.clear()

    def snapshot(self) -> Snapshot:
        """A copy of all that is held."""
        return Snapshot(
            seen=self._seen,
            evicted=self._evicted,
            base=self._base,
            pinned=self.pinned,
            borders=self.borders,
            held=tuple(tokens.on("cpu") for tokens in self.storage.read(0, self.storage.held)),
            pristine=None if self._pristine is None else tuple(tokens.on("cpu") for tokens in self._pristine),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Puts back what `snapshot` holds, to the bit. Gives up the checkpoint."""
        self.pinned = snapshot.pinned
        self.reset()
        self._seen, self._evicted, self._base = snapshot.seen, snapshot.evicted, snapshot.base
        self._borders = list(snapshot.borders)
        self.storage.clear(self.pinned, left=snapshot.evicted)
        self.storage.write(0, snapshot.held)
        self.storage.append(snapshot.seen - snapshot.evicted)
        if snapshot.pristine is not None:
            self._pristine = [
                tokens.on(layers.keys.device)
                for layers, tokens in zip(self.storage.read(0, 0), snapshot.pristine, strict=True)
            ]

    def _keep_pristine(self) -> None:
        """Copies the pinned tokens as the model wrote them, before they are moved for the first time."""
        if self._pristine is None:
            self._pristine = self.storage.read(0, self.pinned)

    def _place_pinned(self) -> None:
        """Writes the pinned tokens directly in front of the window, at `evicted` and on."""
        if self._pristine is not None:
            self.storage.place(self._pristine, self._evicted - self._base)

    def _journal(self, count: int) -> None:
        """Keeps the oldest `count` window tokens for a rewind, as far as the checkpoint held them."""
        mark = self._checkpoint
        if mark is not None:
            count = min(count, mark.seen - mark.evicted - self.pinned - mark.kept)
            if count > 0:
                mark.left.append(self.storage.read(self.pinned, self.pinned + count))

    def _rebase(self) -> None:
        """Turns the window back to the first positions where the next tokens would reach the limit."""
        if self._seen + self.room - self._base <= self.position_limit:
            return
        held = self.storage.held
        self._journal(held - self.pinned)
        distance = self._evicted - self._base
        self.storage.turn(self.pinned, held, -distance)
        self._base = self._evicted
