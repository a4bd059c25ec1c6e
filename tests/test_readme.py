"""The README tells the truth: its examples run, and its tree is the tree."""

import re
from pathlib import Path

import pytest

from sinkchat.terminal.slash import commands
from sinkchat.terminal.slash.commands import CommandLine
from sinkchat.terminal.slash.desk import Desk

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_engine_example_holds_what_the_text_says(capsys):
    exec(EXAMPLES[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [4, 8, 12, 16, 16]
    assert lines[-1] == f"16 {[*range(4), *range(8, 20)]}"


def no_conversation():
    raise AssertionError("/help needs none")


@pytest.mark.model
def test_the_session_example_names_tokyo(smollm2, capsys):
    exec(EXAMPLES[0], {})
    assert "Tokyo" in capsys.readouterr().out


def test_the_tree_names_every_file():
    tree = README[README.index("## The house") :]
    named = set(re.findall(r"(\w+\.py)", tree))
    there = {path.name for path in (ROOT / "sinkchat").rglob("*.py") if path.name != "__init__.py"}
    assert named == there


def test_the_commands_are_those_of_help():
    lines = "\n".join(map(str, commands.run(CommandLine("help", ""), Desk(no_conversation))))
    assert f"```\n{lines}\n```" in README


def test_the_pictures_are_there():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).is_file(), path
