"""A conversation as a filter: exchanges in, replies out, an exit status at the end.

Nothing is ever asked here. When the reader of stdout has gone, decoding stops at once; when Ctrl-C came,
what was being said is closed properly first.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import Event, Notice, PromptRead, TurnCancelled
from sinkchat.errors import ExitStatus, InputError, SinkchatError
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.pipe.exchanges import Exchange, SystemLine
from sinkchat.terminal.pipe.view import RunView
from sinkchat.terminal.signals import Interrupts, WaitInterrupted


class Fit(Protocol):
    """Decides what happens when one message is more than memory can hold."""

    def watch(self, events: Iterable[Event], before: CacheState) -> Iterator[Event]:
        """The events of one exchange; `before` is the state in which it began."""
        ...


class WarnWhenTooLong:
    """Lets the message in, and says how much of it the answer sees."""

    def watch(self, events: Iterable[Event], before: CacheState) -> Iterator[Event]:
        for event in events:
            yield event
            if isinstance(event, PromptRead) and _has_lost_its_beginning(before, event.state):
                yield Notice(wording.too_long(event.tokens, event.state))


class RefuseWhenTooLong:
    """Raises InputError as soon as the first token of the message is forgotten, and reads no further."""

    def watch(self, events: Iterable[Event], before: CacheState) -> Iterator[Event]:
        is_reading = True
        for event in events:
            if is_reading and not isinstance(event, Notice) and _has_lost_its_beginning(before, event.state):
                raise InputError(
                    f"input is more than the {event.state.window_capacity:,} tokens that memory can hold",
                    hint="--fit warn, or a larger --cache-size",
                )
            is_reading = is_reading and not isinstance(event, PromptRead)
            yield event


FITS: dict[str, type[Fit]] = {"warn": WarnWhenTooLong, "error": RefuseWhenTooLong}


def answer_all(
    exchanges: Iterable[Exchange],
    conversation: Conversation,
    *,
    view: RunView,
    fit: Fit,
    interrupts: Interrupts,
    reader_has_gone: Callable[[], bool],
) -> ExitStatus:
    """Answers each exchange as it comes. Raises BrokenPipeError when nobody reads the answers."""
    begun = False
    try:
        for exchange in exchanges:
            if isinstance(exchange, SystemLine):
                _set_system(exchange, conversation, view)
                continue
            if not begun:
                view.begin(conversation)
                begun = True
            for event in interrupts.steps(fit.watch(exchange.enter(conversation), conversation.state)):
                if reader_has_gone():
                    raise BrokenPipeError
                view.show(event)
            if interrupts.pressed:
                break
    except BrokenPipeError:
        raise
    except SinkchatError:
        view.break_off()
        raise
    except (WaitInterrupted, TurnCancelled):
        view.break_off()
    if not begun:
        view.begin(conversation)
    view.end(conversation)
    return ExitStatus.INTERRUPTED if interrupts.pressed else ExitStatus.OK


def _set_system(line: SystemLine, conversation: Conversation, view: RunView) -> None:
    """The system prompt of a transcript, unless another is in force or something was said: that is not lost to it."""
    if conversation.latest:
        view.show(Notice(f"the system message of {line.place} is not used: the conversation has begun before"))
    elif conversation.system is None:
        conversation.set_system(line.text)
    else:
        view.show(Notice(f"the system message of {line.place} is not used: --system was given"))


def _has_lost_its_beginning(before: CacheState, now: CacheState) -> bool:
    """Whether the oldest token of the window is younger than the first one of this exchange."""
    return now.next_to_leave > max(before.seen, now.pinned)
