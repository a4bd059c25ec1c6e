"""What can be read off a conversation's memory at any time: how much of which turn is held, and what that takes."""

from collections.abc import Sequence

from sinkchat.cache.policy import CacheState, EvictNothing
from sinkchat.chat.memory import Memory
from sinkchat.chat.turns import Turn


class Remembered:
    """The side of a session that looks and changes nothing."""

    def __init__(self, memory: Memory) -> None:
        self.engine = memory.engine
        self._memory = memory

    @property
    def state(self) -> CacheState:
        return self.engine.state

    @property
    def pinned(self) -> int:
        """How many tokens are pinned once they have been read."""
        return self.engine.cache.pinned

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of the conversation, oldest first; of forgotten ones the latest 1,000."""
        return self._memory.ledger.turns(self.state)

    @property
    def held(self) -> Sequence[Turn]:
        """The turns of which the window holds something, in its order: the first leaves next."""
        return self._memory.ledger.held(self.state)

    @property
    def first(self) -> int:
        """The oldest turn whose words are kept."""
        return self._memory.transcript.first

    @property
    def latest(self) -> int:
        """The number of the latest turn; 0 before the first."""
        return self._memory.ledger.count

    @property
    def pinned_turns(self) -> tuple[int, ...]:
        """The turns that were pinned, and never leave."""
        return tuple(self._memory.ledger.pinned())

    @property
    def forgets(self) -> bool:
        """Whether something leaves when memory is full; under the dense policy the conversation ends instead."""
        return not isinstance(self.engine.cache.policy, EvictNothing)

    @property
    def decoding(self) -> str:
        """How tokens are computed, in words."""
        return self.engine.decoding

    @property
    def device_bytes(self) -> int | None:
        """Memory that tensors take on the device, in bytes; None where the device does not tell."""
        return self.engine.device_bytes
