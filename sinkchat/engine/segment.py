"""What is handed to the engine: token ids, and where messages begin among them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of token ids. With `opens_message`, a message begins at its first id: eviction may cut there."""

    ids: tuple[int, ...]
    opens_message: bool = False
