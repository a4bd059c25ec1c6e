"""What a person at a terminal sees of an exchange: the text as it comes, the panel below it, a line about what left.

While an exchange goes on the keyboard is held, so that what is typed waits for the next prompt and F2 is heard at
once; the stage owns the screen. Between two exchanges neither is in force.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from sinkchat.chat.events import Event, Evicted, Notice, PromptProgress, TextDelta, TurnEnded
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing import panel
from sinkchat.terminal.drawing.cells import ASCII, UNICODE, Charset
from sinkchat.terminal.drawing.choice import PanelChoice
from sinkchat.terminal.drawing.frames import Frames, Plain, Stage
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.markdown import LightMarkdown, PlainText, StreamedText
from sinkchat.terminal.drawing.suspension import Suspension
from sinkchat.terminal.left import Left
from sinkchat.terminal.line.typeahead import NoTypeAhead, TypeAhead
from sinkchat.terminal.screen import Screen

_LONG_READING = 1_000
"""tokens from which on a person without a panel is told that reading takes a while"""


@dataclass(frozen=True, slots=True)
class Look:
    """How a person wants to be shown things."""

    has_cursor: bool = True
    is_accessible: bool = False
    is_quiet: bool = False
    has_markdown: bool = True
    has_stats: bool = False
    is_ascii: bool = False

    @property
    def charset(self) -> Charset:
        return ASCII if self.is_ascii else UNICODE


class PersonView:
    """Shows exchanges on `screen`, with the panel that `choice` names below them."""

    def __init__(
        self,
        screen: Screen,
        *,
        gauge: Gauge,
        choice: PanelChoice,
        look: Look,
        size: Callable[[], os.terminal_size],
        clock: Callable[[], float],
        typeahead: Callable[[], TypeAhead] = NoTypeAhead,
    ) -> None:
        self._screen = screen
        self._gauge = gauge
        self._choice = choice
        self._look = look
        self._size = size
        self._clock = clock
        self._new_typeahead = typeahead
        self._open: ExitStack | None = None
        self._left = Left()

    def begin(self, conversation: Conversation) -> None:
        """An exchange begins: takes the screen and the keyboard."""
        if self._open is not None:
            return
        self._conversation = conversation
        self._before = self._gauge.facts(conversation)
        self._text: StreamedText = (
            LightMarkdown()
            if self._look.has_markdown and self._screen.has_color
            else PlainText(mark=self._screen.dim)
        )
        self._in_text = self._is_reading = False
        self._stage: Stage = (
            Frames(self._screen.stream, self._footer, size=self._size, clock=self._clock)
            if self._look.has_cursor and not self._look.is_accessible
            else Plain(self._screen.stream)
        )
        with ExitStack() as stack:
            self._typeahead = stack.enter_context(self._new_typeahead())
            stack.enter_context(self._stage)
            self._suspension = stack.enter_context(Suspension(self._stage, self._typeahead))
            self._open = stack.pop_all()

    def end(self) -> None:
        """Nothing more comes: ends a line that has begun, and gives screen and keyboard back."""
        if self._open is None:
            return
        stack, self._open = self._open, None
        with stack:
            self._gauge.break_off()
            self._finish_text()
            self._beside(self._tell_losses)

    def show(self, event: Event) -> None:
        """Shows an event of an exchange that has begun."""
        self._gauge.show(event)
        self._typeahead.poll()
        match event:
            case TextDelta(text):
                self._in_text = True
                self._stage.write(self._text.push(text))
            case PromptProgress():
                self._reading(event)
                self._stage.tick()
            case Evicted():
                self._left.add(event)
                self._stage.tick()
            case Notice(text):
                self._beside(lambda: self._screen.note(text))
            case TurnEnded():
                self._ended(event)
        self._suspension.poll()

    def line(self, text: str) -> None:
        """Shows a line of ours, between events or where there are none."""
        if self._open is None:
            self._screen.line(text)
        else:
            self._beside(lambda: self._screen.line(text))

    def _reading(self, progress: PromptProgress) -> None:
        if self._look.is_accessible and not self._is_reading and (progress.total or 0) > _LONG_READING:
            self._is_reading = True
            self._screen.line(f"Reading {progress.total:,} tokens. Ctrl-C stops.")

    def _ended(self, turn: TurnEnded) -> None:
        self._finish_text()
        self._beside(lambda: self._sum_up(turn))

    def _sum_up(self, turn: TurnEnded) -> None:
        if self._look.has_stats:
            self._screen.aside(wording.memory_after(turn))
        if cut := wording.cut(turn):
            self._screen.note(f"{cut} · /continue goes on")
        self._tell_losses()

    def _tell_losses(self) -> None:
        """Says what has left since the last time, unless it was taken back."""
        left, self._left = self._left, Left()
        before, self._before = self._before, self._gauge.facts(self._conversation)
        if self._look.is_accessible:
            for sentence in panel.sentences(before, self._before):
                self._screen.line(sentence)
        elif left.tokens and left.evicted <= self._before.state.evicted and not self._look.is_quiet:
            recall = f" · /recall {left.turns[0].start}" if left.turns else ""
            self._screen.aside(f"── {wording.left_memory(left)}{recall} ──")

    def _finish_text(self) -> None:
        if self._in_text:
            self._in_text = False
            self._stage.write(self._text.flush())

    def _beside(self, show: Callable[[], None]) -> None:
        self._stage.step_aside()
        show()

    def _footer(self, columns: int, lines: int) -> list[str]:
        rows = panel.rows(
            self._gauge.facts(self._conversation),
            columns=columns,
            lines=lines,
            form=self._choice.form,
            color=self._screen.has_color,
            charset=self._look.charset,
        )
        if typed := self._typeahead.pending_text:
            shown = self._look.charset.cut(f"> {typed}", columns - 1)
            rows = [*rows, self._screen.dim(self._look.charset.spell(shown))]
        return rows
