"""An error in words for a person: what the parser says, what we say, or that it is our own mistake."""

from typing import Any, cast

import typer

from sinkchat.errors import SinkchatError, UsageError

ParserError = cast(type[Exception], typer.BadParameter.__base__)
"""What the parser raises when it cannot understand the arguments. typer does not export it."""


def as_told(error: Exception) -> SinkchatError:
    """The same error, if it is one of ours; else one that says what happened."""
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
