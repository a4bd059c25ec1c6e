"""Views show what happens in a conversation: a class with `show(event)`, and nothing that it shows comes back.

A view holds no conversation and decides nothing about it. Here is the view of a pipe, where stdout
carries the model's text and all else goes to stderr. A pipe often ends on a terminal after all (`| tee`), so its
text is made visible as on a screen; the exact characters travel in `--format jsonl`. A person's is in `person`.
"""

from typing import Protocol

from sinkchat.chat.events import Event, Evicted, Notice, PromptProgress, PromptRead, TextDelta, TurnEnded
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.left import Left
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.screen import Screen


class View(Protocol):
    """Shows one event after the other."""

    def show(self, event: Event) -> None: ...


class RunView(View, Protocol):
    """A view of a whole run in a pipe: it also sees the conversation begin and end."""

    def begin(self, conversation: Conversation) -> None: ...

    def end(self, conversation: Conversation) -> None:
        """Called once, after the last event, unless an error came first."""
        ...

    def break_off(self) -> None:
        """Called instead of `end`: an error came in the middle."""
        ...


class Progress:
    """Tells stderr how far the reading is, and what a session has to say."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def begin(self, conversation: Conversation) -> None:
        for notice in conversation.taken_up:
            self._screen.note(notice)

    def show(self, event: Event) -> None:
        match event:
            case PromptProgress():
                self._screen.status(wording.reading(event))
            case PromptRead():
                self._screen.erase_status()
            case Notice(text):
                self._screen.note(text)


class Losses(Progress):
    """Tells stderr also what has left memory, and that an answer was cut."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._left = Left()

    def show(self, event: Event) -> None:
        super().show(event)
        match event:
            case Evicted():
                self._left.add(event)
            case TurnEnded():
                for sentence in (wording.left_memory(self._left), wording.cut(event)):
                    if sentence:
                        self._screen.note(sentence)
                self._left = Left()


class Stats(Losses):
    """Tells stderr also the memory line after each answer."""

    def show(self, event: Event) -> None:
        super().show(event)
        if isinstance(event, TurnEnded):
            self._screen.aside(wording.memory_after(event))


class Details(Stats):
    """Tells stderr everything: what is loaded too, and how tokens are computed, anew when that changes."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._conversation: Conversation | None = None
        self._decoding = ""

    def begin(self, conversation: Conversation) -> None:
        introduce(conversation, self._screen)
        self._conversation = conversation
        self._tell_decoding()

    def show(self, event: Event) -> None:
        super().show(event)
        if isinstance(event, TurnEnded):
            self._tell_decoding()

    def _tell_decoding(self) -> None:
        if self._conversation is not None and (decoding := self._conversation.decoding) != self._decoding:
            self._decoding = decoding
            self._screen.aside(f"decoding: {one_line(decoding)}")


class TextView:
    """The model's text on stdout, as it comes: a blank line between two replies, one newline at the end."""

    def __init__(self, stdout: Screen, beside: Progress) -> None:
        self._stdout = stdout
        self._beside = beside
        self._replies = 0
        self._in_reply = False
        self._newlines = ""
        """line feeds held back: those that end a reply are not written"""

    def begin(self, conversation: Conversation) -> None:
        self._beside.begin(conversation)

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._write(text)
            case TurnEnded():
                self._write("")  # an answer without a word is a reply too
                self.break_off()
        self._beside.show(event)

    def end(self, conversation: Conversation) -> None:
        self.break_off()

    def break_off(self) -> None:
        """Ends the line of a reply that has begun."""
        if self._in_reply:
            self._stdout.text("\n")
            self._in_reply, self._newlines = False, ""

    def _write(self, text: str) -> None:
        if not self._in_reply:
            self._in_reply = True
            self._replies += 1
            self._stdout.text("\n" if self._replies > 1 else "")
        text = self._newlines + text
        body = text.rstrip("\n")
        self._newlines = text[len(body) :]
        if body:
            self._stdout.text(body)


def introduce(conversation: Conversation, screen: Screen) -> None:
    """Says what is loaded, and what the session has to say about it."""
    screen.aside(wording.start(conversation))
    for notice in conversation.notices:
        screen.note(notice)
