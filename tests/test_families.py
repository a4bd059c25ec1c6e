"""Every family that must stream does, each figure within its bound; the README's table tells them.

A row is measured once and looked at by all tests. The figures are those of `sinkchat families`.
"""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from reference import reference_logits as reference_by_configuration
from tiny import tiny_model

from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.reference import reference_logits
from sinkchat.lab.families import checks, families
from sinkchat.lab.families.configs import REFUSED, STREAMING
from sinkchat.lab.families.table import Refused, Streams
from sinkchat.terminal.lab.families import TITLES, cells

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
TABLE = {
    row[0]: row
    for row in (
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in README.splitlines() if line[:1] == "|"
    )
}

# One of each kind of layout, of mask, of length and of sharing; the others are `slow`.
EVERYDAY = {
    "llama, yarn",
    "llama, longrope",
    "mpt",
    "falcon, alibi",
    "gpt_neox",
    "mistral, window",
    "mixtral",
    "qwen2_vl",
    "gemma3",
    "gemma3n",
    "gemma4, shared",
    "phi3, longrope",
    "olmo3",
    "cohere2",
    "smollm3",
    "gptj",
    "bloom",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
}
FAMILY = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.slow) for name in STREAMING]
)


@cache
def measured(family: str) -> Streams:
    row = families.row(family)
    if isinstance(row, Refused) and not row.is_known:
        pytest.skip(row.reason)
    assert isinstance(row, Streams), row
    return row


@FAMILY
def test_one_layer_equals_a_fresh_forward_over_what_is_kept(family):
    assert measured(family).one_layer < 1e-5


@FAMILY
def test_without_moving_the_sinks_one_layer_is_wrong(family):
    assert measured(family).control > 0.1


@FAMILY
def test_three_layers_equal_the_reference(family):
    assert measured(family).reference < 1e-4


@FAMILY
def test_how_text_was_handed_over_does_not_matter(family):
    assert measured(family).chunks < 3e-5


@FAMILY
def test_rebasing_changes_nothing(family):
    assert measured(family).rebase < 3e-5


@FAMILY
def test_twenty_thousand_tokens_in_bfloat16_do_not_drift(family):
    row = measured(family)
    assert row.late < 1.25 * row.early, row
    assert row.early < 0.1


@FAMILY
def test_the_readme_has_the_row(family):
    row = measured(family)
    written, found = TABLE[family], cells(row)
    assert written[1] == found[1]
    for title, stated, figure in zip(TITLES[2:], written[2:], found[2:], strict=True):
        assert max(float(stated), 1e-6) <= 10 * max(float(figure), 1e-6), title
        assert max(float(figure), 1e-6) <= 10 * max(float(stated), 1e-6), title


def test_the_readme_names_every_family():
    """Also the slow ones: `sinkchat families` writes the table."""
    assert set(STREAMING) <= set(TABLE)
    refused = README[README.index("| cannot stream | because |") :].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", refused)) == set(REFUSED)


def test_the_reference_agrees_with_one_that_reads_the_configuration():
    model, ids = tiny_model("llama", 3, dtype=torch.float64), checks.random_ids(60)
    expected = reference_by_configuration(model, ids, EvictTokens(3), capacity=16, pinned=4)
    assert checks.distance(reference_logits(model, ids, EvictTokens(3), capacity=16, pinned=4), expected) < 1e-5


def test_the_reference_sees_who_left():
    model, ids = tiny_model("llama", 3, dtype=torch.float64), checks.random_ids(60)
    one, three = (reference_logits(model, ids, EvictTokens(count), capacity=16, pinned=4) for count in (1, 3))
    assert checks.distance(one, three) > 0.01


def test_a_long_run_of_another_model_is_far_off():
    one, other = tiny_model("llama", 1), tiny_model("llama", 1, seed=5, dtype=torch.bfloat16)
    assert min(checks.errors_of_long_run(one, other, tokens=2_000)) > 0.5
