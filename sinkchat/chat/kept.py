"""A conversation's place on disk, from before its model is loaded until it is left.

It is opened first, since it says which model and which memory it had. The session then takes it up, writes down
what happens, and at the end leaves its keys there, so that it goes on as if it had never stopped.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sinkchat.chat.events import Notice, PromptProgress
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.past import Past, read_past
from sinkchat.chat.recorder import JournalRecorder, beginning
from sinkchat.chat.saved import Saved, Unkept
from sinkchat.chat.store import Store
from sinkchat.errors import DeviceLost, SinkchatError

if TYPE_CHECKING:
    from sinkchat.chat.session import ChatSession


class Kept:
    """The place of one conversation. `past` is what it was so far; None: it begins."""

    def __init__(self, place: Saved | Unkept, past: Past | None = None) -> None:
        self.past = past
        self._place = place

    @classmethod
    def begun(cls, store: Store, name: str | None = None) -> "Kept":
        """A new conversation."""
        return cls(store.create(name))

    @classmethod
    def resumed(cls, store: Store, name: str | None = None) -> "Kept":
        """The conversation of that name, or the latest. Raises SinkchatError where it cannot go on."""
        place = store.open(name)
        try:
            return cls(place, read_past(place.records()))
        except BaseException:
            place.close()
            raise

    def take_up(
        self,
        session: "ChatSession",
        *,
        memory: MemoryOptions,
        source: str,
        system: str | None,
        progress: Callable[[str], None],
    ) -> None:
        """The session goes on with it, and is written down from now on.

        `source` stands for its model. `system` was asked for now, and takes the place of the one it had.
        """
        notes = list(self._go_on(session, progress))
        if system is not None and system != session.system:
            for _ in session.change_system(system).events:
                progress("reading again what is remembered, under another system prompt")
        place = self._place
        created = self.past.header.created if self.past else time.strftime("%Y-%m-%d %H:%M")
        name = place.id if isinstance(place, Saved) else ""
        begin = beginning(name, session.card, memory, system=session.system, source=source, now=created)
        session.recorder = JournalRecorder(place, begin, clock=time.monotonic)
        session.recorder.options({name: getattr(session.options, name) for name in _chosen(session.sources)})
        session.taken_up = tuple(notes)
        session.kept_as = name or None
        session.leave = lambda: self._leave(session)

    def close(self) -> None:
        """Lets go of the place, where no session has taken it up."""
        self._place.close()

    def _go_on(self, session: "ChatSession", progress: Callable[[str], None]) -> list[str]:
        """What a person should read about it."""
        from sinkchat.chat.snapshot import identity_of, load_snapshot

        past, place = self.past, self._place
        if past is None or not isinstance(place, Saved):
            return []
        notes = ["the last words had not been written to their end, and are dropped"] if place.torn else []
        notes += past.notes
        at = past.outline.check if past.outline is not None else ""
        found = load_snapshot(place.snapshot, identity=identity_of(session.engine, session.card), at=at)
        for event in session.resume(past, found):
            match event:
                case Notice(text):
                    notes.append(text)
                case PromptProgress(read, total):
                    progress(f"reading again what is remembered: {read:,} of {total or 0:,} tokens")
        return notes

    def _leave(self, session: "ChatSession") -> str:
        from sinkchat.chat.snapshot import SavedMemory, identity_of, save_snapshot

        place = self._place
        try:
            if isinstance(place, Saved) and place.failure is None and session.latest:
                identity = identity_of(session.engine, session.card)
                save_snapshot(
                    place.snapshot, SavedMemory.of(session.engine), identity=identity, at=session.outline.check
                )
        except DeviceLost:
            raise  # it is why the program ends, and will be told
        except SinkchatError as error:
            return f"{error.message}; what is remembered will be read again"
        finally:
            place.close()
        return ""


def _chosen(sources: Mapping[str, str]) -> list[str]:
    """The options that a person chose, by whatever means: they hold when the conversation goes on."""
    return [name for name, source in sources.items() if source not in ("built-in", "model")]
