"""The conversation at a prompt: read a line, obey it or send it, show what happens, for ever.

The loop owns when the program leaves and what Ctrl-C means between two answers; how keys become a line is
the keyboard's matter, and what an answer looks like the view's. An error that a person can do something
about is told, and the conversation goes on.
"""

from collections.abc import Callable

from sinkchat.chat.events import TurnCancelled, TurnEnded
from sinkchat.errors import ExitStatus, SinkchatError
from sinkchat.terminal import commands
from sinkchat.terminal.commands import CommandLine, Desk, Leave
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.keyboard import LineSource
from sinkchat.terminal.pipes import WarnWhenTooLong
from sinkchat.terminal.sanitize import visible
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.signals import AGAIN_SECONDS, Interrupts
from sinkchat.terminal.view import PersonView

HINT = "Ctrl-D or /exit leaves"


class Repl:
    """One run of the prompt."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        screen: Screen,
        view: PersonView,
        clock: Callable[[], float],
    ) -> None:
        self._desk = Desk(conversation)
        self._screen = screen
        self._view = view
        self._clock = clock
        self._stopped_at = float("-inf")

    def stopped_lately(self) -> bool:
        """Whether Ctrl-C has just stopped a turn: then the next one leaves, whatever is on the line."""
        return self._clock() - self._stopped_at < AGAIN_SECONDS

    def run(self, lines: LineSource) -> ExitStatus:
        """Reads and answers until the person leaves."""
        draft = ""
        hinted = False
        while True:
            try:
                line = lines.read(draft)
            except EOFError:
                return ExitStatus.OK
            except KeyboardInterrupt:
                if self.stopped_lately():
                    return ExitStatus.INTERRUPTED
                if not hinted:
                    self._screen.aside(HINT)
                hinted, draft = True, ""
                continue
            try:
                draft = self._take(visible(line))
            except Leave:
                return ExitStatus.OK
            except SinkchatError as error:
                self._screen.error(error)
                draft = ""
            hinted = False

    def _take(self, line: str) -> str:
        """Obeys or sends a line; what comes back stands on the next one."""
        if not line or line.isspace():
            return ""
        command = commands.parse(line)
        if command is None:
            return self._send(line)
        self._obey(command)
        return ""

    def _obey(self, command: CommandLine) -> None:
        for line in commands.run(command, self._desk):
            self._screen.line(line)
        self._screen.line()

    def _send(self, text: str) -> str:
        conversation = self._desk.conversation
        with Interrupts(conversation.stop, clock=self._clock) as interrupts:
            try:
                for event in WarnWhenTooLong().watch(conversation.send(text), conversation.state):
                    self._view.show(event)
                    if isinstance(event, TurnEnded):
                        self._desk.tally.add(event)
            except (SinkchatError, KeyboardInterrupt):
                self._view.break_off()
                raise
            except TurnCancelled:
                self._view.break_off()
                return text
            finally:
                if interrupts.pressed:
                    self._stopped_at = self._clock()
        self._screen.line()
        return ""
