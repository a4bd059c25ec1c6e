"""`sinkchat run`, once its options are objects: a conversation at a prompt, a filter in a pipe, or both.

What stdin and stdout are decides. Whatever cannot be meant is refused before a model is loaded.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.environment import ColorChoice, Environment
from sinkchat.terminal.loading import Load
from sinkchat.terminal.pipe.exchanges import FORMS, Exchange, Question
from sinkchat.terminal.pipe.intake import Intake
from sinkchat.terminal.pipe.pipes import FITS, answer_all
from sinkchat.terminal.pipe.records import RecordsView
from sinkchat.terminal.pipe.view import Details, Losses, Progress, RunView, Stats, TextView
from sinkchat.terminal.sanitize import visible
from sinkchat.terminal.screen import Beside, Nowhere, Screen
from sinkchat.terminal.signals import Interrupts, leaving_on_signals

Verbosity: TypeAlias = Literal["quiet", "normal", "verbose"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a person or a program wants to be spoken to."""

    prompt: str | None = None
    input: Literal["auto", "text", "lines", "jsonl"] = "auto"
    format: Literal["text", "jsonl"] = "text"
    fit: Literal["warn", "error"] = "warn"
    interactive: bool = False
    history: bool = True
    verbosity: Verbosity = "normal"
    color: ColorChoice = "auto"
    panel: Literal["auto", "full", "line", "off"] = "auto"
    markdown: Literal["light", "off"] = "light"
    ascii: bool = False
    accessible: bool = False
    vi: bool = False
    stats: bool = False
    raw: bool = False


class Run:
    """One run of the program."""

    def __init__(self, options: RunOptions, environment: Environment) -> None:
        self._options = options
        self._environment = environment
        self._stdin_is_terminal = environment.stdin.isatty()
        self._stderr = Beside.on(environment.stderr, environment, options.color)
        self._beside = self._unless_quiet(self._stderr)
        self._refuse_contradictions()

    @property
    def is_talk(self) -> bool:
        """Whether a person converses at the keyboard, now or after a pipe has ended."""
        return self._options.interactive or (self._stdin_is_terminal and self._options.prompt is None)

    def main(self, load: Load) -> ExitStatus:
        """Loads the model and converses until there is nothing more to say."""
        with leaving_on_signals():
            if self._stdin_is_terminal and self._options.prompt is None:
                return self._at_the_prompt(load)
            try:
                conversation = load(self._beside.status)
            finally:
                self._beside.erase_status()
            try:
                status = self._in_the_pipe(conversation)
                if status is ExitStatus.OK and self._options.interactive:
                    return self._at_the_prompt(lambda progress: conversation)
            finally:
                if news := conversation.close():
                    self._beside.note(news)
            return status

    def _refuse_contradictions(self) -> None:
        options, stdout_is_terminal = self._options, self._environment.stdout.isatty()
        if self._stdin_is_terminal and options.input != "auto":
            raise UsageError(
                f"--input {options.input} reads a pipe or a file, and stdin is a terminal",
                hint=f"sinkchat run --input {options.input} < FILE",
            )
        if options.prompt is not None and not options.prompt.strip():
            raise UsageError("PROMPT is empty", hint='sinkchat run smollm2 "What is a transformer?"')
        if self.is_talk and not stdout_is_terminal:
            raise UsageError(
                "a conversation at the keyboard needs a terminal, and stdout is none",
                hint='sinkchat run smollm2 "What is a transformer?" for one answer',
            )
        if self.is_talk and options.format == "jsonl":
            raise UsageError(
                "--format jsonl is for programs, and this would be a conversation at the keyboard",
                hint="give a PROMPT, or pipe some text in, without -i",
            )
        if options.interactive and not self._stdin_is_terminal:
            self._environment.open_terminal().close()

    def _in_the_pipe(self, conversation: Conversation) -> ExitStatus:
        options, environment = self._options, self._environment
        with Interrupts(conversation.stop, clock=environment.clock) as interrupts:
            intake = Intake(environment.stdin, waiting=interrupts.waiting)
            if self._stdin_is_terminal and options.prompt is not None:
                exchanges: Iterable[Exchange] = [Question(visible(options.prompt))]
            else:
                form = FORMS["text" if options.input == "auto" else options.input]
                exchanges = form(intake, options.prompt)
            try:
                status = answer_all(
                    exchanges,
                    conversation,
                    view=self._run_view(),
                    fit=FITS[options.fit](),
                    interrupts=interrupts,
                    reader_has_gone=environment.reader_has_gone,
                )
            finally:
                self._beside.erase_status()
        if intake.bad_bytes:
            self._beside.note(f"{intake.bad_bytes:,} bytes of stdin are not UTF-8 and were read as U+FFFD")
        return status

    def _run_view(self) -> RunView:
        beside = self._details()
        stdout = self._environment.stdout
        if self._options.format == "jsonl":
            return RecordsView(stdout, beside or Progress(self._beside))
        screen = Screen.on(stdout, self._environment, self._options.color)
        return TextView(screen, beside or Losses(self._beside))

    def _details(self) -> Progress | None:
        """What else stderr is told, where that was asked for."""
        if self._options.verbosity == "verbose":
            return Details(self._beside)
        return Stats(self._beside) if self._options.stats else None

    def _at_the_prompt(self, load: Load) -> ExitStatus:
        from sinkchat.terminal.drawing.choice import PanelChoice
        from sinkchat.terminal.drawing.person import Look
        from sinkchat.terminal.interactive import Interactive

        environment, options = self._environment, self._options
        form = "off" if options.raw or options.verbosity == "quiet" else options.panel
        look = Look(
            has_cursor=environment.has_cursor(environment.stdout),
            is_accessible=options.accessible,
            is_quiet=options.verbosity == "quiet",
            has_markdown=options.markdown == "light" and not options.raw,
            has_stats=options.stats or options.verbosity == "verbose",
            is_ascii=options.ascii or not environment.is_unicode(environment.stdout),
        )
        with nullcontext() if self._stdin_is_terminal else environment.open_terminal() as terminal:
            return Interactive(
                environment,
                Screen.on(environment.stdout, environment, options.color, is_ascii=look.is_ascii),
                look=look,
                choice=PanelChoice("full" if form == "auto" else form),
                keeps_history=options.history,
                is_vi=options.vi,
                terminal=terminal,
            ).run(load)

    def _unless_quiet(self, screen: Screen) -> Screen:
        return Nowhere(clock=self._environment.clock) if self._options.verbosity == "quiet" else screen
