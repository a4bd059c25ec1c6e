"""The conversation at a prompt: read a line, obey it or send it, show what happens, for ever.

The loop owns when the program leaves and what Ctrl-C means between two answers; how keys become a line is
the keyboard's matter, and what an answer looks like the view's. An error that a person can do something
about is told, and the conversation goes on.
"""

from collections.abc import Callable, Iterable, Iterator

from sinkchat.chat.events import TurnCancelled, TurnEnded
from sinkchat.errors import DeviceLost, ExitStatus, SinkchatError
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing.person import PersonView
from sinkchat.terminal.line.keyboard import LineSource
from sinkchat.terminal.pipe.pipes import WarnWhenTooLong
from sinkchat.terminal.sanitize import visible
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.signals import AGAIN_SECONDS, Interrupts
from sinkchat.terminal.slash import commands
from sinkchat.terminal.slash.desk import Desk, Draft, Leave, Output, Page

HINT = "Ctrl-D or /exit leaves"


class LoadInterrupted(Exception):
    """Ctrl-C while the model was being loaded: there is nothing to go on with."""


class Repl:
    """One run of the prompt. `is_loading` says whether the conversation has to be waited for."""

    def __init__(
        self,
        desk: Desk,
        *,
        screen: Screen,
        view: PersonView,
        clock: Callable[[], float],
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        self._desk = desk
        self._screen = screen
        self._view = view
        self._clock = clock
        self._is_loading = is_loading
        self._draft = ""
        self._stopped_at = float("-inf")
        self._stop: Callable[[], None] = _nothing
        """stops what is going on"""
        self._interrupts = Interrupts(lambda: self._stop(), clock=clock)

    def stopped_lately(self) -> bool:
        """Whether Ctrl-C has just stopped a turn: then the next one leaves, whatever is on the line."""
        return self._clock() - self._stopped_at < AGAIN_SECONDS

    def run(self, lines: LineSource) -> ExitStatus:
        """Reads and answers until the person leaves."""
        with self._interrupts:  # at every moment: between two exchanges too, a single Ctrl-C is no reason to leave
            try:
                return self._converse(lines)
            finally:
                self._view.end()

    def _converse(self, lines: LineSource) -> ExitStatus:
        hinted = False
        while True:
            try:
                with self._interrupts.asking():
                    line = lines.read(self._draft)
            except EOFError:
                return ExitStatus.OK
            except KeyboardInterrupt:
                if self.stopped_lately() or self._is_loading():
                    return ExitStatus.INTERRUPTED
                if not hinted:
                    self._screen.aside(HINT)
                hinted, self._draft = True, ""
                continue
            self._draft, hinted, self._stopped_at = "", False, float("-inf")
            try:
                self._take(visible(line))
            except Leave:
                return ExitStatus.OK
            except LoadInterrupted:
                return ExitStatus.INTERRUPTED
            except SinkchatError as error:
                if self._is_loading() or isinstance(error, DeviceLost):
                    raise
                self._screen.error(error)

    def _take(self, line: str) -> None:
        """Obeys or sends a line."""
        if not line or line.isspace():
            return
        command = commands.parse(line)
        if command is None:
            self._await()
            self._show(self._sent(line), self._desk.conversation)
        elif commands.command_of(command).waits:
            self._await()
            self._show(commands.run(command, self._desk), self._desk.conversation)
        else:
            self._show(commands.run(command, self._desk), None)

    def _await(self) -> None:
        """Waits for the conversation. What went wrong with it, the keyboard raises when it is asked next."""
        if not self._is_loading():
            return
        try:
            with self._interrupts.waiting():
                self._desk.awaited()
        except KeyboardInterrupt as error:
            raise LoadInterrupted from error

    def _sent(self, text: str) -> Iterator[Output]:
        conversation = self._desk.conversation
        try:
            yield from WarnWhenTooLong().watch(conversation.send(text), conversation.state)
        except TurnCancelled:
            yield Draft(text)

    def _show(self, outputs: Iterable[Output], conversation: Conversation | None) -> None:
        """Shows all of them. The view begins before the first, which may be long in coming and take turns with it."""
        self._stop = stop = conversation.stop if conversation is not None else _nothing
        try:
            if conversation is not None:
                self._view.begin(conversation)
            for output in self._interrupts.steps(outputs):
                self._put(output)
                if self._interrupts.pressed:
                    stop()  # again: Ctrl-C may have come before the exchange had begun to listen
        except TurnCancelled:
            """It said what comes back; memory is as it was."""
        finally:
            self._stop = _nothing
            self._view.end()
            if self._interrupts.pressed:
                self._stopped_at = self._clock()
        if not self._draft:
            self._screen.line()

    def _put(self, output: Output) -> None:
        match output:
            case str():
                self._view.line(output)
            case Draft(text):
                self._draft = text
            case Page(text):
                self._screen.dressed(text)
            case _:
                self._view.show(output)
                if isinstance(output, TurnEnded):
                    self._desk.tally.add(output)


def _nothing() -> None:
    """There is nothing to stop."""
