"""The command line: options become objects, objects run, and what happened becomes an exit status.

Nothing is decided here but how an option is typed. Importing this module imports no torch: models are
looked for inside functions, after the options have been understood.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

import typer
from typer.core import TyperCommand

from sinkchat.errors import ExitStatus, SinkchatError, UsageError
from sinkchat.terminal.app import Run, RunOptions
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.environment import ColorChoice, Environment, silence
from sinkchat.terminal.request import Chosen, Request, request_for
from sinkchat.terminal.screen import Beside

ParserError = cast(type[Exception], typer.BadParameter.__base__)
"""What the parser raises when it cannot understand the arguments. typer does not export it."""


Action: TypeAlias = Callable[[], ExitStatus]
Start: TypeAlias = Callable[[Request, Callable[[str], None]], Conversation]


def start_with_model(request: Request, progress: Callable[[str], None]) -> Conversation:
    """A conversation with a real model. The first use of torch is here."""
    progress("starting")
    from sinkchat.chat.start import start_session
    from sinkchat.models.loading import LoadOptions

    named = {} if request.model is None else {"name": request.model}
    return start_session(
        **named,
        load=LoadOptions(**request.load),
        memory=request.memory,
        chat=request.chat,
        sources=request.sources,
        system=request.system,
        progress=progress,
    )


_PLAIN: dict[str, Any] = {"show_default": False, "show_envvar": False}


@dataclass(frozen=True, slots=True)
class _World:
    environment: Environment
    start: Start


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(
    arguments: Sequence[str] | None = None,
    *,
    environment: Environment | None = None,
    start: Start = start_with_model,
) -> int:
    """Runs the command line and gives the exit status."""
    world = _World(environment if environment is not None else Environment.of_process(), start)
    stdout, stderr = world.environment.stdout, Beside.on(world.environment.stderr, world.environment)
    try:
        status = _understood(sys.argv[1:] if arguments is None else arguments, world)()
        stdout.flush()
    except BrokenPipeError:
        silence(stdout)
        return ExitStatus.CLOSED_PIPE
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except Exception as error:
        if world.environment.debugs:
            traceback.print_exc(file=world.environment.stderr)
        told = _as_told(error)
        stderr.error(told)
        return told.exit_status
    return status


def _understood(arguments: Sequence[str], world: _World) -> Action:
    """What the arguments ask for, still to be done: the parser has its own mind about Ctrl-C and closed pipes."""
    try:
        asked_for = app(list(arguments), prog_name="sinkchat", standalone_mode=False, obj=world)
    except SystemExit as error:  # a help page whose reader had gone
        raise BrokenPipeError from error
    return asked_for if callable(asked_for) else lambda: ExitStatus(asked_for or 0)


def _as_told(error: Exception) -> SinkchatError:
    """The error in words for a person: what the parser says, what we say, or that it is our own mistake."""
    if isinstance(error, SinkchatError):
        return error
    if isinstance(error, ParserError):
        message = cast(Any, error).format_message().rstrip(".").replace("Value error, ", "")
        return UsageError(message[:1].lower() + message[1:], hint="sinkchat run --help")
    return SinkchatError(
        f"unexpected {type(error).__name__}: {error}", hint="SINKCHAT_DEBUG=1 shows where it happened"
    )


class GroupedHelp(TyperCommand):
    """Lists options under the heading of their group, in plain text: the first help page needs no Rich."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                group = getattr(parameter, "rich_help_panel", None) or LOOKS
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _option(names: str, metavar: str | None, group: str, meaning: str) -> Any:
    """An option, `-s/--system`, that can be given as `SINKCHAT_<NAME>` too."""
    return typer.Option(
        *names.split("/"),
        metavar=metavar,
        rich_help_panel=group,
        help=meaning,
        envvar=_variable(names.split("/")[-1]),
        **_PLAIN,
    )


def _variable(option: str) -> str:
    return "SINKCHAT_" + option.removeprefix("--").replace("-", "_").upper()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sinkchat {version('sinkchat')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _sinkchat(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A terminal chat that never ends: attention sinks keep local models fluent for ever."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


MEMORY, MODEL, ANSWERS, PIPES, LOOKS = "Memory", "Model", "Answers", "Pipes", "Looks"

Model = typer.Argument(
    metavar="MODEL",
    rich_help_panel="Arguments",
    help="A Hub id, a folder, a .gguf file or an alias.",
    envvar="SINKCHAT_MODEL",
    **_PLAIN,
)
Prompt = typer.Argument(
    metavar="PROMPT",
    rich_help_panel="Arguments",
    help="Answer this and exit; behind piped text, the question about it.",
    **_PLAIN,
)
CacheSize = _option("--cache-size", "N", MEMORY, "Tokens remembered, pinned ones included (2048).")
Sinks = _option("--sinks", "N|auto", MEMORY, "Tokens never forgotten. auto: 4, or the whole system prompt.")
Evict = _option("--evict", "turn|token|BLOCK", MEMORY, "What is forgotten at once when memory is full (turn).")
Policy = _option("--policy", None, MEMORY, "window and dense exist to see the difference (sink).")
System = _option("-s/--system", "TEXT", MODEL, "System prompt.")
SystemFile = _option("--system-file", "FILE", MODEL, "System prompt from a file.")
Quant = _option("--quant", None, MODEL, "Quantisation; what auto chose is printed.")
Dtype = _option("--dtype", None, MODEL, "Precision of the weights that are not quantised.")
Device = _option("--device", "auto|cuda[:N]|mps|cpu", MODEL, "Where the model runs.")
Revision = _option("--revision", "NAME", MODEL, "Branch, tag or commit on the Hub.")
Offline = _option("--offline", None, MODEL, "Use only what is on this machine.")
TrustRemoteCode = _option("--trust-remote-code", None, MODEL, "Run code that comes with the model.")
Template = _option("--chat-template", "FILE", MODEL, "A Jinja template in place of the model's own.")
Temperature = _option("-t/--temperature", "X", ANSWERS, "How freely words are drawn; 0 is greedy.")
TopP = _option("--top-p", "X", ANSWERS, "Draw from the likeliest words with this probability in all.")
TopK = _option("--top-k", "N", ANSWERS, "Draw from this many likeliest words; 0 is off.")
MinP = _option("--min-p", "X", ANSWERS, "Drop words less likely than this share of the likeliest.")
Penalty = _option("--repetition-penalty", "X", ANSWERS, "Above 1 makes repeating less likely.")
Seed = _option("--seed", "N", ANSWERS, "Draw the same words again.")
MaxTokens = _option("-n/--max-tokens", "N", ANSWERS, "Longest answer; 0 sets no limit (1024).")
Stop = typer.Option(
    "--stop", metavar="TEXT", rich_help_panel=ANSWERS, help="End the answer before this text.", **_PLAIN
)
Input = _option("--input", None, PIPES, "stdin is one message, one a line, or a JSON object a line (text).")
Format = _option("--format", None, PIPES, "What stdout carries (text).")
Fit = _option("--fit", None, PIPES, "What to do when a message is more than memory holds (warn).")
Interactive = _option("-i/--interactive", None, PIPES, "Go on at the keyboard afterwards.")
NoHistory = _option("--no-history", None, LOOKS, "Do not keep typed lines.")
Quiet = _option("-q/--quiet", None, LOOKS, "Answers and errors only.")
Verbose = _option("-v/--verbose", None, LOOKS, "In pipes too, tell what is loaded and remembered.")
Color = _option("--color", None, LOOKS, "Colour (auto).")


@app.command(cls=GroupedHelp)
def run(
    context: typer.Context,
    model: Annotated[str | None, Model] = None,
    prompt: Annotated[str | None, Prompt] = None,
    cache_size: Annotated[str | None, CacheSize] = None,
    sinks: Annotated[str | None, Sinks] = None,
    evict: Annotated[str | None, Evict] = None,
    policy: Annotated[Literal["sink", "window", "dense"] | None, Policy] = None,
    system: Annotated[str | None, System] = None,
    system_file: Annotated[str | None, SystemFile] = None,
    quant: Annotated[Literal["auto", "none", "nf4", "fp4", "int8"] | None, Quant] = None,
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"] | None, Dtype] = None,
    device: Annotated[str | None, Device] = None,
    revision: Annotated[str | None, Revision] = None,
    offline: Annotated[bool, Offline] = False,
    trust_remote_code: Annotated[bool, TrustRemoteCode] = False,
    chat_template: Annotated[str | None, Template] = None,
    temperature: Annotated[str | None, Temperature] = None,
    top_p: Annotated[str | None, TopP] = None,
    top_k: Annotated[str | None, TopK] = None,
    min_p: Annotated[str | None, MinP] = None,
    repetition_penalty: Annotated[str | None, Penalty] = None,
    seed: Annotated[str | None, Seed] = None,
    max_tokens: Annotated[str | None, MaxTokens] = None,
    stop: Annotated[list[str] | None, Stop] = None,
    input_form: Annotated[Literal["auto", "text", "lines", "jsonl"], Input] = "auto",
    output_form: Annotated[Literal["text", "jsonl"], Format] = "text",
    fit: Annotated[Literal["warn", "error"], Fit] = "warn",
    interactive: Annotated[bool, Interactive] = False,
    no_history: Annotated[bool, NoHistory] = False,
    quiet: Annotated[bool, Quiet] = False,
    verbose: Annotated[bool, Verbose] = False,
    color: Annotated[ColorChoice, Color] = "auto",
) -> Action:
    """Chat with a model: at a prompt on a terminal, as a filter in a pipe.

    Each option can also be given as SINKCHAT_<NAME>, such as SINKCHAT_CACHE_SIZE=512.
    """
    world = cast(_World, context.obj)
    chosen = _chosen(context, world.environment)
    options = RunOptions(
        prompt=prompt,
        input=input_form,
        format=output_form,
        fit=fit,
        interactive=interactive,
        history=not no_history,
        verbosity="quiet" if quiet else "verbose" if verbose else "normal",
        color=color,
    )
    request = request_for(chosen)
    return lambda: Run(options, world.environment).main(lambda progress: world.start(request, progress))


def _chosen(context: typer.Context, environment: Environment) -> dict[str, Chosen]:
    """What was given on the command line or in a variable, by the name of the parameter."""
    chosen: dict[str, Chosen] = {}
    for name, value in context.params.items():
        option = "--" + name.replace("_", "-")
        where = context.get_parameter_source(name)
        if where is not None and where.name == "COMMANDLINE":
            chosen[name] = Chosen(value, option, "flag")
        elif where is not None and where.name == "ENVIRONMENT":
            chosen[name] = Chosen(value, _variable(option), _variable(option))
    # The parser would cut a variable at its blanks, and a stop text may have some.
    if "stop" not in chosen and (stop := environment.variables.get("SINKCHAT_STOP")):
        chosen["stop"] = Chosen([stop], "SINKCHAT_STOP", "SINKCHAT_STOP")
    return chosen
