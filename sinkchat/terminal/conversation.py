"""What the terminal needs of a conversation, as a protocol.

The session of sinkchat.chat fulfils it, and so does a scripted one in a test. Nothing here knows a
model or a tensor: the terminal starts before either is loaded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import Event
from sinkchat.chat.options import ChatOptions, ModelCard, Weight


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
    @property
    def is_pinned(self) -> bool: ...


class SaidLike(Protocol):
    """One exchange word for word."""

    @property
    def user(self) -> str: ...
    @property
    def answer(self) -> str: ...


class ChangeLike(Protocol):
    """Something to be done to memory: `tokens` must be read again, 0 if it costs nothing. `events` does it."""

    @property
    def tokens(self) -> int: ...
    @property
    def events(self) -> Iterator[Event]: ...


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
    def held(self) -> Sequence[TurnLike]:
        """The turns of which the window holds something; the first leaves next."""
        ...

    @property
    def first(self) -> int:
        """The oldest turn whose words are kept."""
        ...

    @property
    def latest(self) -> int:
        """The number of the latest turn; 0 before the first."""
        ...

    @property
    def kept_as(self) -> str | None:
        """The name under which the conversation can be resumed, if it is kept."""
        ...

    @property
    def pinned_turns(self) -> tuple[int, ...]: ...
    @property
    def forgets(self) -> bool:
        """Whether something leaves when memory is full, instead of an end."""
        ...

    @property
    def decoding(self) -> str:
        """How tokens are computed, in words."""
        ...

    @property
    def device_bytes(self) -> int | None:
        """Device memory in use; None where the device does not tell."""
        ...

    @property
    def sources(self) -> Mapping[str, str]:
        """Option name to where its value came from."""
        ...

    @property
    def system(self) -> str | None: ...
    @property
    def notices(self) -> tuple[str, ...]: ...

    @property
    def taken_up(self) -> tuple[str, ...]:
        """Those of the notices that are about a conversation which was left and goes on."""
        ...

    @property
    def can_proceed(self) -> bool:
        """Whether the latest answer was cut, and can go on."""
        ...

    def send(self, text: str | Iterable[str]) -> Iterator[Event]:
        """One exchange. Ends with `TurnEnded`, or raises `TurnCancelled` when stopped while reading."""
        ...

    def read(self, user: str, assistant: str) -> Iterator[Event]:
        """A past exchange enters memory without a reply."""
        ...

    def proceed(self) -> Iterator[Event]:
        """The latest answer goes on where it was cut."""
        ...

    def said(self, turn: int) -> SaidLike: ...
    def weigh(self, text: str) -> Weight:
        """What sending `text` now would cost."""
        ...

    def undo(self, turn: int | None = None) -> ChangeLike:
        """Takes back a turn and all after it; None: the latest one, or what `clear` did."""
        ...

    def pin(self, turn: int) -> ChangeLike: ...
    def unpin(self, turn: int) -> ChangeLike: ...
    def change_system(self, text: str | None) -> ChangeLike: ...
    def stop(self) -> None: ...
    def close(self) -> str:
        """Nothing more is said for now: what is kept is made ready. What a person should hear of it, or nothing."""
        ...

    def clear(self) -> None: ...
    def set_system(self, text: str | None) -> None: ...
    def pinned_text(self) -> str: ...
    def window_text(self) -> str: ...
