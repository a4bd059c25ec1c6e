"""`sinkchat recall`: its options, and the run of it. What is measured is in `lab/recall/`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from sinkchat.chat.options import MemoryOptions
from sinkchat.errors import ExitStatus, InputError, UsageError
from sinkchat.lab.recall.questions import Question, Reply, read_questions, score
from sinkchat.lab.recall.recall import Answer, Plan, Report, recall_of
from sinkchat.terminal.asked import options
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import (
    Plot,
    Subject,
    chosen_for,
    environment_of,
    given,
    measuring,
    subject_for,
    whole_number,
    whole_numbers,
)
from sinkchat.terminal.lab.recall_table import write_reply, write_report, write_score
from sinkchat.terminal.lab.running import Action, Dtype, Output, Pace, Tell, Watch, run

if TYPE_CHECKING:
    from sinkchat.lab.recall.start import Started

Model = typer.Argument(
    metavar="MODEL",
    rich_help_panel="Arguments",
    help="As for run; or induction, a model built by hand that recalls all it remembers.",
    envvar="SINKCHAT_MODEL",
    show_default=False,
    show_envvar=False,
)
CacheSizes = measuring("--cache-size", "N,N,...", "Tokens remembered, one size or several (512).")
Sinks = measuring("--sinks", "N", "Tokens that are never forgotten (4).")
Distances = measuring("--distances", "N,N,...", "Lines back that are asked for (up to half beyond the window).")
Rounds = measuring("--rounds", "N", "How many times all distances are asked for (10).")
Questions = measuring("--questions", "FILE", "Ask these instead, as one conversation: JSON objects, one a line.")
MaxTokens = measuring("--max-tokens", "N", "Longest answer to one of --questions (64).")
Seed = measuring("--seed", "N", "Other numbers in the lines.")

CACHE_SIZES = (512,)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured; of `questions`, a file of them, where there is one."""

    subject: Subject = field(default_factory=Subject)
    plan: Plan = field(default_factory=Plan)
    cache_sizes: tuple[int, ...] = CACHE_SIZES
    evict: str = "turn"
    questions: str | None = None
    max_tokens: int = 64
    output: Output = field(default_factory=Output)

    @property
    def memory(self) -> MemoryOptions:
        """Of a conversation."""
        return MemoryOptions(cache_size=self.cache_sizes[0], sinks=self.plan.sinks, evict=self.evict)


Start: TypeAlias = Callable[[Asked, Tell], "Started"]
Ask: TypeAlias = Callable[[Asked, list[Question], Tell], tuple[str, Iterator[Reply]]]


def start(asked: Asked, tell: Tell) -> "Started":
    """Loads the model, or builds one. The first use of torch is here."""
    tell("starting")
    from sinkchat.lab.recall.start import start_recall

    name, load = asked.subject.name, asked.subject.load
    return start_recall(name, load, asked.plan, cache_sizes=asked.cache_sizes, evict=asked.evict, progress=tell)


def ask(asked: Asked, questions: list[Question], tell: Tell) -> tuple[str, Iterator[Reply]]:
    """Loads the model, for a conversation. The first use of torch is here."""
    tell("starting")
    from sinkchat.lab.recall.start import start_questions

    name, load = asked.subject.name, asked.subject.load
    return start_questions(name, load, questions, memory=asked.memory, max_tokens=asked.max_tokens, progress=tell)


def recall(
    context: typer.Context,
    model: Annotated[str | None, Model] = None,
    cache_size: Annotated[list[str] | None, CacheSizes] = None,
    sinks: Annotated[str | None, Sinks] = None,
    evict: Annotated[str | None, options.Evict] = None,
    distances: Annotated[list[str] | None, Distances] = None,
    rounds: Annotated[str | None, Rounds] = None,
    seed: Annotated[str | None, Seed] = None,
    questions: Annotated[str | None, Questions] = None,
    max_tokens: Annotated[str | None, MaxTokens] = None,
    plot: Annotated[Path | None, Plot] = None,
    quant: Annotated[options.QuantName | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """See what is recalled from how far back: facts stream by and are asked for, to the window's edge and beyond."""
    sizes = whole_numbers("--cache-size", cache_size, at_least=1, example="512,1024") or CACHE_SIZES
    plan = given(
        sinks=whole_number("--sinks", sinks, at_least=0),
        rounds=whole_number("--rounds", rounds, at_least=1),
        seed=whole_number("--seed", seed, at_least=0),
        distances=tuple(sorted(whole_numbers("--distances", distances, at_least=1, example="1,10,40"))),
    )
    chosen = given(evict=evict, max_tokens=whole_number("--max-tokens", max_tokens, at_least=1))
    asked = Asked(
        subject=subject_for(chosen_for(context)),
        plan=Plan(**plan),
        cache_sizes=tuple(sorted(sizes)),
        questions=questions,
        **chosen,
        output=Output(as_json, plot),
    )
    environment = environment_of(context)
    if questions is None:
        if max_tokens is not None:
            raise UsageError("--max-tokens is for --questions", hint="--questions FILE, or no --max-tokens")
        return lambda: measure(environment, asked)
    if plot is not None or distances or len(sizes) > 1:
        raise UsageError("--questions is one conversation with one cache, and no plot", hint="--cache-size 512")
    return lambda: answer(environment, asked)


def measure(environment: Environment, asked: Asked, start: Start = start) -> ExitStatus:
    """Measures recall by distance, and writes what was measured, however it ends."""
    return run(Recalls(environment, asked, start), asked.output, environment)


def answer(environment: Environment, asked: Asked, ask: Ask = ask) -> ExitStatus:
    """Asks the questions of a file, writing each verdict when it is there, and the score however it ends."""
    return run(Replies(environment, asked, ask), asked.output, environment)


class Recalls:
    """The answers so far, a cache after the other."""

    resumption = ""

    def __init__(self, environment: Environment, asked: Asked, start: Start) -> None:
        self._environment, self._asked, self._start = environment, asked, start
        self._model = ""
        self._answers: dict[int, list[Answer]] = {}

    def measure(self, watch: Watch) -> None:
        started = self._start(self._asked, watch.tell)
        self._model = started.model
        for size, coming in started.caches:
            pace = Pace(self._environment.clock)
            for event in coming:
                if isinstance(event, Answer):
                    self._answers.setdefault(size, []).append(event)
                    continue
                watch.tell(
                    f"cache of {size:,}",
                    f"line {event.lines:,} of {event.of_lines:,}",
                    f"{event.asked:,} of {event.to_ask:,} questions",
                    pace.left(event.lines + event.asked, event.of_lines + event.to_ask),
                )

    @property
    def has_figures(self) -> bool:
        return bool(self._answers)

    @property
    def _report(self) -> Report:
        sinks = self._asked.plan.sinks
        recalls = (recall_of(found, capacity=size, sinks=sinks) for size, found in self._answers.items())
        return Report(self._model, self._asked.evict, tuple(recalls))

    def record(self) -> Any:
        return asdict(self._report)

    def write(self, environment: Environment) -> None:
        write_report(self._report, environment)

    def draw(self, path: Path) -> None:
        from sinkchat.lab.recall.plot import draw

        draw(self._report, path)


class Replies:
    """The replies so far; each is written when it is there, unless all are to be one document."""

    resumption = ""

    def __init__(self, environment: Environment, asked: Asked, ask: Ask) -> None:
        self._environment, self._asked, self._ask = environment, asked, ask
        self._model = ""
        self._replies: list[Reply] = []

    def measure(self, watch: Watch) -> None:
        questions = list(_read(self._asked.questions or "-", self._environment))
        self._model, coming = self._ask(self._asked, questions, watch.tell)
        pace = Pace(self._environment.clock)
        for reply in coming:
            self._replies.append(reply)
            if not self._asked.output.as_json:
                watch.erase()
                write_reply(reply, self._environment)
            done, total = len(self._replies), len(questions)
            watch.tell(f"{done:,} of {total:,} questions", pace.left(done, total))

    @property
    def has_figures(self) -> bool:
        return bool(self._replies)

    def record(self) -> Any:
        marks = [{"is_exact": reply.is_exact, "has_answer": reply.has_answer} for reply in self._replies]
        replies = [asdict(reply) | mark for reply, mark in zip(self._replies, marks, strict=True)]
        return {"model": self._model, **asdict(score(self._replies)), "replies": replies}

    def write(self, environment: Environment) -> None:
        write_score(score(self._replies), self._model, environment)

    def draw(self, path: Path) -> None:
        """A conversation has no plot; `--plot` beside `--questions` is refused."""


def _read(name: str, environment: Environment) -> Iterator[Question]:
    try:
        data = environment.stdin.read() if name == "-" else Path(name).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"--questions {name} cannot be read: {reason}", hint="the path of a .jsonl file") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"--questions {name} is not UTF-8 text: byte {error.start:,}", hint="JSON in UTF-8"
        ) from error
    return read_questions(text.splitlines(), "stdin" if name == "-" else Path(name).name)
