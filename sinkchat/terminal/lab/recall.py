"""`sinkchat recall`: its options, and the run of it. What is measured is in `lab/recall/`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, cast

import typer

from sinkchat.chat.options import MemoryOptions
from sinkchat.errors import ExitStatus, InputError, UsageError
from sinkchat.lab.recall.questions import Question, Reply, read_questions, score
from sinkchat.lab.recall.recall import Answer, Plan, Report, recall_of
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.request import load_options_for
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.options import Plot, measuring
from sinkchat.terminal.lab.recall_table import write_reply, write_report, write_score
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.table import write_json

if TYPE_CHECKING:
    from sinkchat.lab.recall.start import Started

Action: TypeAlias = Callable[[], ExitStatus]
Progress: TypeAlias = Callable[[str], None]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

Subject = typer.Argument(
    metavar="MODEL",
    rich_help_panel="Arguments",
    help="As for run; or induction, a model built by hand that recalls all it remembers.",
    envvar="SINKCHAT_MODEL",
    show_default=False,
    show_envvar=False,
)
CacheSizes = measuring("--cache-size", "N,N,...", "Tokens remembered, one size or several (512).")
Sinks = measuring("--sinks", "N", "Tokens that are never forgotten (4).", min=0)
Distances = measuring("--distances", "N,N,...", "Lines back that are asked for (up to half beyond the window).")
Rounds = measuring("--rounds", "N", "How many times all distances are asked for (10).", min=1)
Questions = measuring("--questions", "FILE", "Ask these instead, as one conversation: JSON objects, one a line.")
MaxTokens = measuring("--max-tokens", "N", "Longest answer to one of --questions (64).", min=1)
Seed = measuring("--seed", "N", "Other numbers in the lines.")

CACHE_SIZES = (512,)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured. A mapping holds only what was chosen."""

    model: str | None = None
    load: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    cache_sizes: tuple[int, ...] = CACHE_SIZES
    evict: str = "turn"
    questions: str | None = None
    max_tokens: int = 64
    as_json: bool = False
    plot: Path | None = None

    @property
    def memory(self) -> MemoryOptions:
        """Of a conversation."""
        return MemoryOptions(cache_size=self.cache_sizes[0], sinks=self.plan.sinks, evict=self.evict)


class Lab(Protocol):
    """Where models are: what `lab/recall/start.py` gives."""

    def start(self, asked: Asked, progress: Progress) -> "Started": ...

    def ask(self, asked: Asked, questions: list[Question], progress: Progress) -> tuple[str, Iterator[Reply]]: ...


class RealLab:
    """Loads torch, at the first use."""

    def start(self, asked: Asked, progress: Progress) -> "Started":
        progress("starting")
        from sinkchat.lab.recall.start import start_recall

        return start_recall(
            _model(asked), asked.load, asked.plan, cache_sizes=asked.cache_sizes, evict=asked.evict, progress=progress
        )

    def ask(self, asked: Asked, questions: list[Question], progress: Progress) -> tuple[str, Iterator[Reply]]:
        progress("starting")
        from sinkchat.lab.recall.start import start_questions

        return start_questions(
            _model(asked), asked.load, questions, memory=asked.memory, max_tokens=asked.max_tokens, progress=progress
        )


REAL = RealLab()


def recall(
    context: typer.Context,
    model: Annotated[str | None, Subject] = None,
    cache_size: Annotated[list[str] | None, CacheSizes] = None,
    sinks: Annotated[int | None, Sinks] = None,
    evict: Annotated[str | None, options.Evict] = None,
    distances: Annotated[list[str] | None, Distances] = None,
    rounds: Annotated[int | None, Rounds] = None,
    seed: Annotated[int | None, Seed] = None,
    questions: Annotated[str | None, Questions] = None,
    max_tokens: Annotated[int | None, MaxTokens] = None,
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
    environment = cast(Environment, context.obj.environment)
    sizes = _numbers(cache_size, "--cache-size", "512,1024") or CACHE_SIZES
    plan: dict[str, Any] = {
        "sinks": sinks,
        "rounds": rounds,
        "seed": seed,
        "distances": _numbers(distances, "--distances", "1,10,40"),
    }
    chosen: dict[str, Any] = {"evict": evict, "max_tokens": max_tokens}
    asked = Asked(
        model=model,
        load=load_options_for(options.typed(context, environment.variables)),
        plan=Plan(**{name: value for name, value in plan.items() if value is not None}),
        cache_sizes=sizes,
        questions=questions,
        **{name: value for name, value in chosen.items() if value is not None},
        as_json=as_json,
        plot=plot,
    )
    if questions is None:
        if max_tokens is not None:
            raise UsageError("--max-tokens is for --questions", hint="--questions FILE, or no --max-tokens")
        return lambda: measure(environment, asked)
    if plot is not None or distances or len(sizes) > 1:
        raise UsageError("--questions is one conversation with one cache, and no plot", hint="--cache-size 512")
    return lambda: answer(environment, asked)


def measure(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Measures recall by distance, and writes what was measured, however it ends."""
    if asked.plot is not None:
        from sinkchat.lab.plotting import check_plot

        check_plot(asked.plot)
    beside = Beside.on(environment.stderr, environment)
    answers: dict[int, list[Answer]] = {}
    try:
        started = lab.start(asked, beside.status)
        for size, coming in started.caches:
            for one in coming:
                answers.setdefault(size, []).append(one)
                beside.status(f"cache of {size:,}: {len(answers[size]):,} answers")
    finally:
        beside.erase_status()
        if answers:
            recalls = [recall_of(found, capacity=size, sinks=asked.plan.sinks) for size, found in answers.items()]
            _tell(environment, asked, Report(started.model, asked.evict, tuple(recalls)))
    return ExitStatus.OK


def _tell(environment: Environment, asked: Asked, report: Report) -> None:
    if asked.as_json:
        write_json(asdict(report), environment.stdout)
    else:
        write_report(report, environment)
    if asked.plot is not None:
        from sinkchat.lab.recall.plot import draw

        draw(report, asked.plot)


def answer(environment: Environment, asked: Asked, lab: Lab = REAL) -> ExitStatus:
    """Asks the questions of a file, writing each verdict when it is there, and the score however it ends."""
    questions = list(_read(asked.questions or "-", environment))
    beside = Beside.on(environment.stderr, environment)
    replies: list[Reply] = []
    try:
        name, coming = lab.ask(asked, questions, beside.status)
        for reply in coming:
            replies.append(reply)
            if not asked.as_json:
                beside.erase_status()
                write_reply(reply, environment)
            beside.status(f"{len(replies):,} of {len(questions):,} questions")
    finally:
        beside.erase_status()
        if replies:
            total = score(replies)
            if asked.as_json:
                marked = [
                    asdict(reply) | {"is_exact": reply.is_exact, "has_answer": reply.has_answer} for reply in replies
                ]
                write_json({"model": name, **asdict(total), "replies": marked}, environment.stdout)
            else:
                write_score(total, name, environment)
    return ExitStatus.OK


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


def _model(asked: Asked) -> str:
    from sinkchat.models.sources import DEFAULT_MODEL

    return DEFAULT_MODEL if asked.model is None else asked.model


def _numbers(texts: list[str] | None, option: str, example: str) -> tuple[int, ...]:
    """`--distances 1,10 --distances 40` as numbers, each once, ascending."""
    words = [word.strip() for text in texts or () for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdecimal()) or int(word) < 1:
            raise UsageError(f"{option} {word} is no whole number from 1 up", hint=f"{option} {example}")
    return tuple(sorted({int(word) for word in words}))
