"""The import walls: what may be loaded by what, seen in a fresh interpreter; and that no private name crosses one."""

import ast
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
    "sinkchat.chat.export",
    "sinkchat.chat.journal",
    "sinkchat.chat.lock",
    "sinkchat.chat.messages",
    "sinkchat.chat.options",
    "sinkchat.chat.parts",
    "sinkchat.chat.past",
    "sinkchat.chat.saved",
    "sinkchat.chat.store",
    "sinkchat.chat.tally",
    "sinkchat.chat.turns",
    "sinkchat.engine.segment",
    *(
        ".".join(path.relative_to(Path(sinkchat.__file__).parent.parent).with_suffix("").parts)
        for path in sorted((Path(sinkchat.__file__).parent / "terminal").rglob("*.py"))
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


FILES = sorted([*Path(sinkchat.__file__).parent.rglob("*.py"), *Path(__file__).parent.glob("*.py")])
OURS = {"sinkchat", *(path.stem for path in Path(__file__).parent.glob("*.py"))}


def private_names_of_others(source: str) -> set[str]:
    """The names with one underscore before them that `source` takes from modules of ours."""
    nodes = list(ast.walk(ast.parse(source)))
    at_hand, taken = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            at_hand |= {alias.asname or alias.name.split(".")[0] for alias in node.names if _is_ours(alias.name)}
        elif isinstance(node, ast.ImportFrom) and (node.level or _is_ours(node.module)):
            at_hand |= {alias.asname or alias.name for alias in node.names}
            taken |= {alias.name for alias in node.names if _is_private(alias.name)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            names = ast.unparse(node).split(".")
            taken |= {".".join(names)} if names[0] in at_hand else set()
    return taken


def _is_ours(module):
    return module.split(".")[0] in OURS


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_private_name_of_another_module_is_used_in(path):
    assert private_names_of_others(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("from sinkchat.models.loading import load_model, _load", {"_load"}),
        ("def later():\n    from sinkchat.models.loading import _load as load", {"_load"}),
        ("from sinkchat.models import hub\nhub._download('x')", {"hub._download"}),
        ("import sinkchat.models.hub\nsinkchat.models.hub._download", {"sinkchat.models.hub._download"}),
        ("import sinkchat.models.hub as h\nh._download", {"h._download"}),
        ("from test_imports import _is_ours", {"_is_ours"}),
        ("from sinkchat.models import hub\nimport os\nos._exit(hub.__doc__)\nself._own", set()),
    ],
)
def test_a_private_name_is_seen_where_it_is_taken(source, taken):
    assert private_names_of_others(source) == taken
