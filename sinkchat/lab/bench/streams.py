"""Our engine as the bench sees it: a stream that can be timed from outside.

Whatever makes an engine faster comes behind the same class, so nothing here knows how a forward is run. The one
thing it must know is when everything is ready: `EngineStream.warm_up`.
"""

from collections.abc import Iterator, Sequence

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import eviction_policy
from sinkchat.engine.engine import Engine, Image
from sinkchat.engine.sampling import Greedy
from sinkchat.engine.segment import Segment

SINKS = 4
WARMING = 4
"""tokens drawn to warm up"""


class EngineStream:
    """An engine with the paper's four sinks, that reads messages and draws greedily."""

    name = "sinkchat"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.vocabulary_size = engine.vocabulary_size
        engine.cache.pinned = SINKS
        self.begin()

    @property
    def room(self) -> int:
        return self._engine.cache.room

    @property
    def cache_bytes(self) -> int:
        return self._engine.state.nbytes

    @property
    def device_bytes(self) -> int | None:
        return self._engine.device_bytes

    def warm_up(self) -> None:
        """Reads a chunk, draws, forgets and reads again, as far as the cache allows."""
        self._engine.settle()
        capacity = self._engine.state.capacity
        ids = [index % self.vocabulary_size for index in range(min(capacity, self._engine.chunk_size))]
        self.begin()
        for _ in range(2):
            self.read(ids)
            for _ in self.draw(WARMING):
                pass
        self.begin()

    def evict(self, words: str) -> None:
        self._engine.cache.policy = eviction_policy(MemoryOptions(evict=words))

    def begin(self) -> None:
        self._engine.reset()

    def read(self, ids: Sequence[int]) -> None:
        for _ in self._engine.read([Segment(tuple(ids), opens_message=True)]):
            pass

    def draw(self, count: int) -> Iterator[int]:
        """`count` tokens; the last waits to be read."""
        self._engine.feed(())
        for step in self._engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=count):
            if step.token is not None:
                yield step.token

    def moment(self) -> Image:
        return self._engine.image()

    def back_to(self, moment: Image) -> None:
        self._engine.restore(moment)
