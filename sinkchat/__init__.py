"""Chat that never ends: StreamingLLM's attention sinks around a local model.

    import sinkchat

    session = sinkchat.start_session("smollm2")
    for event in session.send("Hello!"):
        if isinstance(event, sinkchat.TextDelta):
            print(event.text, end="")

The terminal is one user of this library; nothing here needs one. Names load what they need when they are first
used, so that `import sinkchat` itself loads neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkchat.cache.cache import SinkCache
    from sinkchat.cache.policy import CacheState, EvictMessages, EvictNothing, EvictTokens, Span
    from sinkchat.cache.probe import probe
    from sinkchat.chat.events import Evicted, TextDelta, TurnEnded
    from sinkchat.chat.options import ChatOptions, MemoryOptions
    from sinkchat.chat.session import ChatSession
    from sinkchat.chat.start import session_for, start_session
    from sinkchat.engine.engine import Engine
    from sinkchat.engine.sampling import Greedy, Sampling
    from sinkchat.engine.segment import Segment
    from sinkchat.errors import SinkchatError
    from sinkchat.models.loading import LoadOptions, load_model

__version__ = "0.1.0"

_HOMES = {
    "CacheState": "sinkchat.cache.policy",
    "ChatOptions": "sinkchat.chat.options",
    "ChatSession": "sinkchat.chat.session",
    "Engine": "sinkchat.engine.engine",
    "EvictMessages": "sinkchat.cache.policy",
    "EvictNothing": "sinkchat.cache.policy",
    "EvictTokens": "sinkchat.cache.policy",
    "Evicted": "sinkchat.chat.events",
    "Greedy": "sinkchat.engine.sampling",
    "LoadOptions": "sinkchat.models.loading",
    "MemoryOptions": "sinkchat.chat.options",
    "Sampling": "sinkchat.engine.sampling",
    "Segment": "sinkchat.engine.segment",
    "SinkCache": "sinkchat.cache.cache",
    "SinkchatError": "sinkchat.errors",
    "Span": "sinkchat.cache.policy",
    "TextDelta": "sinkchat.chat.events",
    "TurnEnded": "sinkchat.chat.events",
    "load_model": "sinkchat.models.loading",
    "probe": "sinkchat.cache.probe",
    "session_for": "sinkchat.chat.start",
    "start_session": "sinkchat.chat.start",
}

__all__ = [
    "CacheState",
    "ChatOptions",
    "ChatSession",
    "Engine",
    "EvictMessages",
    "EvictNothing",
    "EvictTokens",
    "Evicted",
    "Greedy",
    "LoadOptions",
    "MemoryOptions",
    "Sampling",
    "Segment",
    "SinkCache",
    "SinkchatError",
    "Span",
    "TextDelta",
    "TurnEnded",
    "load_model",
    "probe",
    "session_for",
    "start_session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
