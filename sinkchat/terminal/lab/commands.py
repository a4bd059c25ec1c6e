"""The commands that measure, each in a file of its own."""

import typer

from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.lab.attention import attention
from sinkchat.terminal.lab.bench import bench
from sinkchat.terminal.lab.families import families
from sinkchat.terminal.lab.perplexity import perplexity
from sinkchat.terminal.lab.pretrain import pretrain
from sinkchat.terminal.lab.recall import recall


def register(app: typer.Typer) -> None:
    """Adds them to the program."""
    for command in (bench, perplexity, attention, recall, pretrain, families):
        app.command(cls=GroupedHelp)(command)
