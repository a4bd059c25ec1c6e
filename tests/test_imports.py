"""The import walls: what may be loaded by what, seen in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

import sinkchat

TORCH_FREE = [
    "sinkchat",
    "sinkchat.errors",
    "sinkchat.cli",
    "sinkchat.cache.policy",
    "sinkchat.chat.events",
    "sinkchat.chat.options",
    "sinkchat.chat.turns",
    "sinkchat.engine.segment",
    *(
        f"sinkchat.terminal.{path.stem}"
        for path in sorted((Path(sinkchat.__file__).parent / "terminal").glob("*.py"))
        if path.stem != "__init__"
    ),
]


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("module", TORCH_FREE)
def test_neither_torch_nor_transformers_is_loaded_by(module):
    assert not loaded_by(module) & {"torch", "transformers", "numpy"}


def test_the_wall_is_seen_where_it_is_climbed():
    assert {"torch", "transformers"} <= loaded_by("sinkchat.cache.cache")


@pytest.mark.parametrize("module", ["sinkchat.chat.session", "sinkchat.chat.start", "sinkchat.engine.engine"])
def test_no_terminal_is_loaded_by_the_library(module):
    assert not loaded_by(module) & {"typer", "prompt_toolkit"}


def test_every_public_name_is_where_it_says():
    for name in sinkchat.__all__:
        assert getattr(sinkchat, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sinkchat.nothing
