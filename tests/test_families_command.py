"""`sinkchat families` at the terminal: what is written, in which status it ends, and a run of the real thing."""

import io
import json
from dataclasses import asdict, replace

import pytest
from worlds import environment, sinkchat

from sinkchat.errors import ExitStatus, UsageError
from sinkchat.lab.families.table import Refused, Streams
from sinkchat.terminal.lab.families import tell_families

LLAMA = Streams("llama", "half-split, 16 of 16", 3e-6, 4e-6, 2.6e-6, 0.0, 3.74, 0.0101, 0.0098)
GPT2 = Refused("gpt2", "it learns absolute positions")

WHOLE = """\
Errors of logits in their standard deviations, on tiny random models; the last two in bfloat16,
after 300 and 20,000 tokens. The control does not move the sinks, and must be wrong.

family  what turns            1 layer  3 layers  chunks  rebase  control  bf16 early   late
llama   half-split, 16 of 16    3e-06     4e-06   3e-06   0e+00     3.74       0.010  0.010
gpt2 cannot stream: it learns absolute positions
"""


def told(*rows, as_json: bool = False):
    world = environment(io.BytesIO())
    status = tell_families(world, (), as_json=as_json, rows=lambda names: iter(rows))
    return status, world.stdout.getvalue()


def test_the_whole_table():
    assert told(LLAMA, GPT2) == (ExitStatus.OK, WHOLE)


def test_json_is_one_document():
    status, text = told(LLAMA, GPT2, as_json=True)
    assert json.loads(text) == {"streaming": [asdict(LLAMA) | {"holds": True}], "refused": [asdict(GPT2)]}
    assert status == ExitStatus.OK


@pytest.mark.parametrize(
    "worse",
    [
        {"one_layer": 2e-5},
        {"reference": 2e-4},
        {"chunks": 5e-5},
        {"rebase": 5e-5},
        {"control": 0.01},
        {"early": 0.2, "late": 0.2},
        {"late": 0.02},
        {"one_layer": float("nan")},
    ],
    ids=str,
)
def test_a_figure_out_of_bounds_is_said_and_is_status_1(worse):
    status, text = told(replace(LLAMA, **worse))
    assert (status, text.splitlines()[-1]) == (ExitStatus.UNEXPECTED, "llama is out of bounds")


@pytest.mark.parametrize(
    "row", [replace(LLAMA, family="gpt2"), Refused("llama", "it learns absolute positions")], ids=["gpt2", "llama"]
)
def test_what_streams_and_what_is_refused_must_not_change_places(row):
    status, _ = told(row)
    assert status == ExitStatus.UNEXPECTED


def test_a_family_that_is_not_installed_is_no_failure():
    status, _ = told(Refused("llama", "the installed transformers does not know it", is_known=False))
    assert status == ExitStatus.OK


def test_an_early_ctrl_c_keeps_the_rows_so_far():
    def interrupted(names):
        yield LLAMA
        raise KeyboardInterrupt

    world = environment(io.BytesIO())
    assert tell_families(world, (), as_json=False, rows=interrupted) == ExitStatus.INTERRUPTED
    assert world.stdout.getvalue() == WHOLE[: WHOLE.index("gpt2")]


def test_the_named_families_are_measured():
    world = environment(io.BytesIO())
    assert tell_families(world, ["bloom", "gpt2"], as_json=True) == ExitStatus.OK
    document = json.loads(world.stdout.getvalue())
    assert [row["layout"] for row in document["streaming"]] == ["not turned"]
    assert [row["family"] for row in document["refused"]] == ["gpt2"]


def test_a_name_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="no family here is called lama") as refusal:
        tell_families(environment(io.BytesIO()), ["lama"], as_json=False)
    assert refusal.value.hint.startswith("llama, ")


def test_the_command_is_listed(capsys):
    sinkchat("--help")
    assert "families" in capsys.readouterr().out
