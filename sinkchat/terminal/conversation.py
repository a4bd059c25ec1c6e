"""What the terminal needs of a conversation, as a protocol.

The session of sinkchat.chat fulfils it, and so does a scripted one in a test. Nothing here knows a
model or a tensor: the terminal starts before either is loaded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import Event
from sinkchat.chat.options import ChatOptions, ModelCard


class TurnLike(Protocol):
    """One exchange as it is remembered: previews of its texts, and how much of it is still held."""

    @property
    def number(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def left(self) -> int: ...


class Conversation(Protocol):
    """An endless conversation with a loaded model."""

    options: ChatOptions
    """how answers are drawn; a replaced one takes effect with the next answer"""

    @property
    def card(self) -> ModelCard: ...
    @property
    def state(self) -> CacheState: ...
    @property
    def pinned(self) -> int:
        """Tokens that will be pinned once that many were read; `state.pinned` counts those that are."""
        ...

    @property
    def turns(self) -> Sequence[TurnLike]: ...
    @property
    def sources(self) -> Mapping[str, str]:
        """Option name to where its value came from."""
        ...

    @property
    def system(self) -> str | None: ...
    @property
    def notices(self) -> tuple[str, ...]: ...

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        """One exchange. Ends with `TurnEnded`, or raises `TurnCancelled` when stopped while reading."""
        ...

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        """A past exchange enters memory without a reply."""
        ...

    def stop(self) -> None: ...
    def clear(self) -> None: ...
    def set_system(self, text: str | None) -> None: ...
    def pinned_text(self) -> str: ...
    def window_text(self) -> str: ...
