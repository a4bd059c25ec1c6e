"""The command line: options become objects, objects run, and what happened becomes an exit status.

Nothing is decided here but how an option is typed. Importing this module imports no torch: models are
looked for inside functions, after the options have been understood.
"""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

import typer

from sinkchat.errors import ExitStatus, SinkchatError, UsageError
from sinkchat.terminal import inventory
from sinkchat.terminal.app import Run
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.config import keys_of, read_config
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.asked.request import Chosen, Request, load_options_for, request_for, run_options_for, settled
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.environment import ColorChoice, Environment, silence
from sinkchat.terminal.loading import leave_at_once, load_is_running
from sinkchat.terminal.screen import Beside

ParserError = cast(type[Exception], typer.BadParameter.__base__)
"""What the parser raises when it cannot understand the arguments. typer does not export it."""


Action: TypeAlias = Callable[[], ExitStatus]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
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
            stderr.text(traceback.format_exc())
        told = _as_told(error)
        stderr.error(told)
        return told.exit_status
    return status


def console() -> int:
    """The entry of the program. A model that is still being loaded is left where it is."""
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the status is settled, and torch takes a while to shut down
    if load_is_running():
        leave_at_once(status)
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
        context = getattr(error, "ctx", None)
        command = getattr(context, "info_name", None) if getattr(context, "parent", None) is not None else None
        return UsageError(message[:1].lower() + message[1:], hint=f"sinkchat {command or 'run'} --help")
    return SinkchatError(
        f"unexpected {type(error).__name__}: {error}", hint="SINKCHAT_DEBUG=1 shows where it happened"
    )


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


@app.command(cls=GroupedHelp)
def run(
    context: typer.Context,
    model: Annotated[str | None, options.Model] = None,
    prompt: Annotated[str | None, options.Prompt] = None,
    cache_size: Annotated[str | None, options.CacheSize] = None,
    sinks: Annotated[str | None, options.Sinks] = None,
    evict: Annotated[str | None, options.Evict] = None,
    policy: Annotated[Literal["sink", "window", "dense"] | None, options.Policy] = None,
    system: Annotated[str | None, options.System] = None,
    system_file: Annotated[str | None, options.SystemFile] = None,
    quant: Annotated[Literal["auto", "none", "nf4", "fp4", "int8"] | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    chat_template: Annotated[str | None, options.Template] = None,
    temperature: Annotated[str | None, options.Temperature] = None,
    top_p: Annotated[str | None, options.TopP] = None,
    top_k: Annotated[str | None, options.TopK] = None,
    min_p: Annotated[str | None, options.MinP] = None,
    repetition_penalty: Annotated[str | None, options.Penalty] = None,
    seed: Annotated[str | None, options.Seed] = None,
    max_tokens: Annotated[str | None, options.MaxTokens] = None,
    stop: Annotated[list[str] | None, options.Stop] = None,
    input_form: Annotated[Literal["auto", "text", "lines", "jsonl"] | None, options.Input] = None,
    output_form: Annotated[Literal["text", "jsonl"] | None, options.Format] = None,
    fit: Annotated[Literal["warn", "error"] | None, options.Fit] = None,
    interactive: Annotated[bool, options.Interactive] = False,
    panel: Annotated[Literal["auto", "full", "line", "off"] | None, options.Panel] = None,
    markdown: Annotated[Literal["light", "off"] | None, options.Markdown] = None,
    ascii: Annotated[bool, options.Ascii] = False,  # noqa: A002
    accessible: Annotated[bool, options.Accessible] = False,
    vi: Annotated[bool, options.Vi] = False,
    stats: Annotated[bool, options.Stats] = False,
    raw: Annotated[bool, options.Raw] = False,
    no_history: Annotated[bool, options.NoHistory] = False,
    quiet: Annotated[bool, options.Quiet] = False,
    verbose: Annotated[bool, options.Verbose] = False,
    color: Annotated[ColorChoice | None, options.Color] = None,
) -> Action:
    """Chat with a model: at a prompt on a terminal, as a filter in a pipe.

    Each option can also be given as SINKCHAT_<NAME>, such as SINKCHAT_CACHE_SIZE=512, and in config.toml.
    """
    world = cast(_World, context.obj)
    chosen = _chosen(context, world.environment)
    looks = run_options_for(chosen, accessible=world.environment.is_accessible)
    request = request_for(chosen)
    return lambda: Run(looks, world.environment).main(lambda progress: world.start(request, progress))


def _chosen(context: typer.Context, environment: Environment) -> dict[str, Chosen]:
    """What was given on the command line, in a variable or in config.toml, by the name of the parameter.

    A command takes from the file what it knows; all keys are those of `run`.
    """
    typed = options.typed(context, environment.variables)
    written = read_config(environment.config_folder, keys_of(run))
    return settled(typed, {name: given for name, given in written.items() if name in context.params})


@app.command(cls=GroupedHelp)
def doctor(
    context: typer.Context,
    offline: Annotated[bool, options.Offline] = False,
    as_json: Annotated[bool, options.Json] = False,
    color: Annotated[ColorChoice | None, options.Color] = None,
) -> Action:
    """Look at this machine and this terminal: what works, and what to do about the rest."""
    environment = cast(_World, context.obj).environment

    def look() -> ExitStatus:
        from sinkchat.terminal.doctor import diagnose

        return diagnose(environment, keys_of(run), offline=offline, as_json=as_json, color=color or "auto")

    return look


@app.command("list", cls=GroupedHelp)
def list_(context: typer.Context, as_json: Annotated[bool, options.Json] = False) -> Action:
    """List the chat models on this machine."""
    return lambda: inventory.list_models(cast(_World, context.obj).environment, as_json=as_json)


@app.command(cls=GroupedHelp)
def show(
    context: typer.Context,
    model: Annotated[str, options.NamedModel],
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    chat_template: Annotated[str | None, options.Template] = None,
    as_json: Annotated[bool, options.Json] = False,
) -> Action:
    """Show what a model is and what it costs here: limits, template, memory. No weights are read."""
    environment = cast(_World, context.obj).environment
    load = load_options_for(_chosen(context, environment))
    return lambda: inventory.show_model(environment, model, load, as_json=as_json)


@app.command(cls=GroupedHelp)
def pull(
    context: typer.Context,
    model: Annotated[str, options.NamedModel],
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
) -> Action:
    """Download a model, if it is not here yet, and print where it lies."""
    environment = cast(_World, context.obj).environment
    load = load_options_for(_chosen(context, environment))
    return lambda: inventory.pull_model(environment, model, load)
