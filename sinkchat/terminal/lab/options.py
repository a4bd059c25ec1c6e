"""How the options of measurements are typed. Where they are read: beside each command.

None has a variable: a figure belongs to one command, and what it was measured with stands there.
"""

from typing import Any

import typer

MEASURING = "Measuring"


def measuring(names: str, metavar: str | None, meaning: str, **settings: Any) -> Any:
    """An option that only measurements take. `settings` are typer's own, such as `min`."""
    return typer.Option(
        *names.split("/"),
        metavar=metavar,
        rich_help_panel=MEASURING,
        help=meaning,
        show_default=False,
        show_envvar=False,
        **settings,
    )


Plot = measuring("--plot", "FILE", "Draw the figures into a .png, .pdf or .svg file.")
Text = measuring("--text", "FILE", "Read this text; - is stdin.")
