"""The command line: options become objects, objects run, and what happened becomes an exit status.

Nothing is decided here but how an option is typed. Importing this module imports no torch: models are
looked for inside functions, after the options have been understood.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

import typer

from sinkchat.errors import ExitStatus
from sinkchat.parallel.ranks import mute_followers
from sinkchat.terminal import inventory, session_commands, sessions
from sinkchat.terminal.app import Run
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.config import Key, keys_of, read_config
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.asked.request import (
    Chosen,
    Request,
    keeping_for,
    load_options_for,
    processes_for,
    request_for,
    resumed,
    run_options_for,
    settled,
)
from sinkchat.terminal.conversation import Conversation
from sinkchat.terminal.environment import ColorChoice, Environment, silence
from sinkchat.terminal.lab.commands import register
from sinkchat.terminal.lab.running import Action, Dtype
from sinkchat.terminal.loading import leave_at_once, load_is_running
from sinkchat.terminal.processes import as_one_of
from sinkchat.terminal.screen import Beside
from sinkchat.terminal.starting import start_with_model
from sinkchat.terminal.told import as_told

if TYPE_CHECKING:
    from sinkchat.parallel.link import Followers

Start: TypeAlias = Callable[[Request, Callable[[str], None]], Conversation]


@dataclass(frozen=True, slots=True)
class _World:
    environment: Environment
    start: Start

    @property
    def keys(self) -> tuple[Key, ...]:
        """What config.toml may have: the options of `run`."""
        return keys_of(run)


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
        told = as_told(error)
        stderr.error(told)
        return told.exit_status
    return status


def console() -> int:
    """The entry of the program. A model that is still being loaded is left where it is."""
    mute_followers(os.environ)
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
    quant: Annotated[options.QuantName | None, options.Quant] = None,
    dtype: Annotated[Dtype | None, options.Dtype] = None,
    device: Annotated[str | None, options.Device] = None,
    processes: Annotated[str | None, options.Processes] = None,
    threads: Annotated[str | None, options.Threads] = None,
    revision: Annotated[str | None, options.Revision] = None,
    offline: Annotated[bool, options.Offline] = False,
    trust_remote_code: Annotated[bool, options.TrustRemoteCode] = False,
    chat_template: Annotated[str | None, options.Template] = None,
    no_compile: Annotated[bool, options.NoCompile] = False,
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
    continue_: Annotated[bool, options.Continue] = False,
    session: Annotated[str | None, options.Session] = None,
    no_save: Annotated[bool, options.NoSave] = False,
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
    typed = options.typed(context, world.environment.variables)
    written = _written(context, world.environment)
    return lambda: _run(world, typed, written)


def _run(world: _World, typed: Mapping[str, Chosen], written: Mapping[str, Chosen]) -> ExitStatus:
    """One run of what was typed, over what the conversation that goes on was, over what config.toml says."""
    count = processes_for(settled(typed, written))
    return as_one_of(count, world.environment.variables, lambda others: _converse(world, typed, written, others))


def _converse(
    world: _World, typed: Mapping[str, Chosen], written: Mapping[str, Chosen], followers: "Followers | None"
) -> ExitStatus:
    chosen = settled(typed, written)
    run = Run(run_options_for(chosen, accessible=world.environment.is_accessible), world.environment)
    keeping = keeping_for(chosen)
    request_for(chosen)  # a slip is told before a conversation is opened
    kept = keeping.place(sessions.store_of(world.environment), is_talk=run.is_talk)
    try:
        past = resumed(kept.past if kept is not None else None)
        request = replace(request_for(settled(typed, past, written), kept=kept), followers=followers)
        return run.main(lambda progress: world.start(request, progress))
    finally:
        if kept is not None:
            kept.close()


def _written(context: typer.Context, environment: Environment) -> dict[str, Chosen]:
    """What config.toml says, as far as the command knows it; all keys are those of `run`."""
    written = read_config(environment.config_folder, keys_of(run))
    return {name: given for name, given in written.items() if name in context.params}


def _chosen(context: typer.Context, environment: Environment) -> dict[str, Chosen]:
    """What was given on the command line, in a variable or in config.toml, by the name of the parameter."""
    return settled(options.typed(context, environment.variables), _written(context, environment))


@app.command(cls=GroupedHelp)
def resume(
    context: typer.Context,
    name: Annotated[str | None, options.Conversation] = None,
    processes: Annotated[str | None, options.Processes] = None,
) -> Action:
    """Go on with the latest conversation, or the named one, as if it had never stopped."""
    world = cast(_World, context.obj)
    written = read_config(world.environment.config_folder, keys_of(run))
    typed = options.typed(context, world.environment.variables)
    if name is None:
        return lambda: _run(world, typed | {"continue_": Chosen(True, "resume", "flag")}, written)
    if name not in sessions.store_of(world.environment):
        sessions.store_of(world.environment).summary(name)  # says what there is
    return lambda: _run(world, typed | {"session": Chosen(name, "resume", "flag")}, written)


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


app.add_typer(session_commands.app, name="sessions")
register(app)
