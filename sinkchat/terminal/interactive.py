"""A conversation at the keyboard, put together: the prompt at once, the model behind it, the view between them.

The keyboard is built before the loader starts, since importing torch takes the processor for seconds.
"""

import time
from contextlib import suppress
from typing import TextIO

from sinkchat.chat.options import Weight
from sinkchat.errors import DeviceLost, ExitStatus
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.drawing import panel
from sinkchat.terminal.drawing.choice import PanelChoice
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.person import Look, PersonView
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.line.keyboard import Keyboard, open_keyboard
from sinkchat.terminal.line.quiet import Quiet
from sinkchat.terminal.line.typeahead import TypeAhead, typeahead_on
from sinkchat.terminal.loading import Load, Loading
from sinkchat.terminal.pipe.view import introduce
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.screen import Nowhere, Screen
from sinkchat.terminal.slash import clipboard, commands
from sinkchat.terminal.slash.desk import Desk

_WAIT_SECONDS = 0.1
_NEWS_SECONDS = 2.0
"""how long the toolbar says which panel was chosen"""


class Interactive:
    """One conversation at the keyboard of `terminal`, or of stdin where that is None."""

    def __init__(
        self,
        environment: Environment,
        screen: Screen,
        *,
        look: Look,
        choice: PanelChoice,
        keeps_history: bool = True,
        is_vi: bool = False,
        terminal: TextIO | None = None,
    ) -> None:
        self._environment = environment
        self._screen = screen
        self._beside: Screen = Nowhere(clock=environment.clock) if look.is_quiet else screen
        self._look = look
        self._choice = choice
        self._loading: Loading | None = None
        self._is_introduced = False
        self._is_waiting = False
        self._chosen_at = float("-inf")
        self._gauge = Gauge(clock=environment.clock, device_bytes=self._device_bytes)
        self._desk = Desk(
            self._awaited,
            clipboard=clipboard.for_environment(environment.variables, environment.stdout),
            panel=choice,
            columns=lambda: environment.terminal_size().columns,
            color=screen.has_color,
        )
        self._repl = Repl(
            self._desk,
            screen=screen,
            view=PersonView(
                screen,
                gauge=self._gauge,
                choice=choice,
                look=look,
                size=environment.terminal_size,
                clock=environment.clock,
                typeahead=self._typeahead,
            ),
            clock=environment.clock,
            is_loading=lambda: self._conversation is None,
        )
        self._keyboard = self._open_keyboard(keeps_history=keeps_history, is_vi=is_vi, terminal=terminal)
        self._quiet = Quiet(self._keyboard.keys_from)
        self._desk.attach = self._keyboard.attached

    def run(self, load: Load) -> ExitStatus:
        """Converses until the person leaves. Raises what `load` raises."""
        self._beside.aside("/help lists the commands, Ctrl-D leaves")
        self._loading = loading = Loading(load)
        loading.when_done(lambda: self._has_loaded(loading))
        try:
            with self._quiet:
                return self._repl.run(self._keyboard)
        finally:
            if not loading.is_done:
                loading.abandon()
            elif (conversation := loading.conversation) is not None:
                self._take_leave(conversation)

    def _take_leave(self, conversation: Conversation) -> None:
        """Makes the conversation ready to be resumed, and says how."""
        name = conversation.kept_as
        with suppress(DeviceLost):  # which is why it ends, and will be told
            if news := conversation.close():
                self._screen.note(news)
        if name is not None and conversation.latest:
            self._beside.aside(f"sinkchat resume {name} goes on with this conversation")

    @property
    def _conversation(self) -> Conversation | None:
        """The conversation, once it is loaded."""
        return None if self._loading is None else self._loading.conversation

    def _awaited(self) -> Conversation:
        """The conversation, after a wait if need be. Raises KeyboardInterrupt, or what the load raised."""
        loading = self._loading
        if loading is None:
            raise RuntimeError("nothing is being loaded")
        self._is_waiting = True
        try:
            while not loading.is_done:
                self._screen.status(f"{loading.status or 'loading'} · Ctrl-C stops")
                time.sleep(_WAIT_SECONDS)
        finally:
            self._is_waiting = False
            self._screen.erase_status()
        conversation = loading.result()
        self._introduce(conversation)
        return conversation

    def _has_loaded(self, loading: Loading) -> None:
        """Runs in the loader's thread."""
        if loading.error is not None:
            self._keyboard.abort(loading.error)
        elif (conversation := loading.conversation) is not None and not self._is_waiting:
            self._keyboard.announce(lambda: self._introduce(conversation))
            self._keyboard.refresh()

    def _introduce(self, conversation: Conversation) -> None:
        if not self._is_introduced:
            self._is_introduced = True
            introduce(conversation, self._beside)

    def _open_keyboard(self, *, keeps_history: bool, is_vi: bool, terminal: TextIO | None) -> Keyboard:
        environment = self._environment
        return open_keyboard(
            history=environment.state_folder / "history" if keeps_history else None,
            note=self._beside.note,
            leaves=self._repl.stopped_lately,
            color=self._screen.has_color,
            terminal=terminal,
            vi=is_vi,
            toolbar=None if self._look.is_accessible or not self._look.has_cursor else self._toolbar,
            is_changing=self._is_changing,
            on_panel_key=self._change_panel,
            weigh=self._weigh,
            words=commands.completions,
            path_commands=commands.PATH_COMMANDS,
        )

    def _toolbar(self, columns: int) -> str:
        charset = self._look.charset
        if self._is_news:
            return charset.cut(f"panel: {self._choice.form} · F2 changes it", columns - 1)
        if self._choice.form == "off":
            return ""
        conversation = self._conversation
        if conversation is None:
            status = self._loading.status if self._loading is not None else ""
            return charset.cut(
                charset.spell(f"{status or 'loading'} · what you type is sent when it is ready"), columns - 1
            )
        return panel.toolbar(self._gauge.facts(conversation), columns=columns, charset=charset)

    @property
    def _is_news(self) -> bool:
        return self._environment.clock() - self._chosen_at < _NEWS_SECONDS

    def _is_changing(self) -> bool:
        return self._is_news or (self._loading is not None and not self._loading.is_done)

    def _change_panel(self) -> None:
        self._choice.change()
        self._chosen_at = self._environment.clock()
        self._keyboard.refresh()

    def _weigh(self, text: str) -> Weight | None:
        conversation = self._conversation
        return None if conversation is None else conversation.weigh(text)

    def _device_bytes(self) -> int | None:
        conversation = self._conversation
        return None if conversation is None else conversation.device_bytes

    def _typeahead(self) -> TypeAhead:
        told = self._environment.stdout if self._look.has_cursor else Nowhere(clock=self._environment.clock).stream
        return typeahead_on(self._keyboard.keys_from, told, on_f2=self._choice.change, outer=self._quiet)
