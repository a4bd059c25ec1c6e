"""`sinkchat sessions`: its commands and their options. What they do is in `sessions`."""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias, cast

import typer

from sinkchat.errors import ExitStatus
from sinkchat.terminal import sessions
from sinkchat.terminal.asked import options
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.environment import Environment

Action: TypeAlias = Callable[[], ExitStatus]

app = typer.Typer(rich_markup_mode=None, help="Look at saved conversations, export or remove them.")


@app.callback(invoke_without_command=True)
def _sessions_listed(context: typer.Context) -> Action | None:
    if context.invoked_subcommand is not None:
        return None
    return lambda: sessions.list_sessions(_environment(context), as_json=False)


@app.command("list", cls=GroupedHelp)
def _list_sessions(context: typer.Context, as_json: Annotated[bool, options.Json] = False) -> Action:
    """List the saved conversations, the latest first."""
    return lambda: sessions.list_sessions(_environment(context), as_json=as_json)


@app.command("show", cls=GroupedHelp)
def _show_session(context: typer.Context, name: Annotated[str, options.NamedConversation]) -> Action:
    """Show what a conversation is, what it remembers, and its latest turns."""
    return lambda: sessions.show_session(_environment(context), name)


@app.command("export", cls=GroupedHelp)
def _export_session(
    context: typer.Context,
    name: Annotated[str, options.NamedConversation],
    form: Annotated[Literal["md", "json", "jsonl"], options.ExportFormat] = "md",
) -> Action:
    """Write a conversation to stdout: a page, JSON, or the lines that --input jsonl reads."""
    return lambda: sessions.export_session(_environment(context), name, form)


@app.command("rm", cls=GroupedHelp)
def _remove_sessions(context: typer.Context, names: Annotated[list[str], options.NamedConversations]) -> Action:
    """Remove conversations for good."""
    return lambda: sessions.remove_sessions(_environment(context), names)


def _environment(context: typer.Context) -> Environment:
    return cast(Environment, context.obj.environment)
