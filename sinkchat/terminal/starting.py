"""From what was asked for to a conversation with a real model."""

from collections.abc import Callable
from pathlib import Path

from sinkchat.terminal.asked.request import Request
from sinkchat.terminal.conversation import Conversation


def start_with_model(request: Request, progress: Callable[[str], None]) -> Conversation:
    """A conversation with a real model. The first use of torch is here."""
    progress("starting")
    from sinkchat.chat.start import start_session
    from sinkchat.models.loading import LoadOptions
    from sinkchat.models.sources import DEFAULT_MODEL

    name = DEFAULT_MODEL if request.model is None else request.model
    session = start_session(
        name,
        load=LoadOptions(**{"compile": True, **request.load}),
        memory=request.memory,
        chat=request.chat,
        sources=request.sources,
        system=request.system,
        progress=progress,
        followers=request.followers,
    )
    if request.kept is not None:
        source = str(Path(name).absolute()) if Path(name).exists() else name
        request.kept.take_up(session, memory=request.memory, source=source, system=request.system, progress=progress)
    return session
