"""`sinkchat doctor`: one line a fact, what to do where it is not well, and an exit status that says so."""

import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import Terminal, sinkchat

from sinkchat.models.cachedir import bytes_in
from sinkchat.models.diagnosis import Finding, Probe, examined, is_writable

SUBJECTS = ["terminal", "config", "state", "python", "sinkchat", "hub token", "hub", "hub cache", "cache", "torch"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads variables from the process."""
    import os

    for name in [name for name in os.environ if name.startswith("SINKCHAT_")]:
        monkeypatch.delenv(name)


def test_every_line_has_a_status_a_subject_and_a_fact(tmp_path: Path) -> None:
    outcome = sinkchat("doctor --offline", config_folder=tmp_path, state_folder=tmp_path / "state")
    lines = outcome.stdout.splitlines()
    assert outcome.status == 0
    assert outcome.stderr == ""
    found = [line for line in lines if not line.startswith("      fix:")]
    assert all(re.fullmatch(r"(ok  |warn)  [a-z0-9: ]{12}  \S.*", line) for line in found), lines
    assert [line[6:18].strip() for line in found][: len(SUBJECTS)] == SUBJECTS
    assert lines[:3] == [
        "ok    terminal      stdout is no terminal, UTF-8, TERM=(not set)",
        f"ok    config        {tmp_path}/config.toml, not there: all options as built in",
        f"ok    state         {tmp_path}/state, can be written",
    ]


def test_a_warning_is_followed_by_its_fix() -> None:
    lines = sinkchat("doctor --offline").stdout.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert following.startswith("      fix:") == line.startswith(("warn", "FAIL"))


def test_json_is_one_document_of_the_same_findings(tmp_path: Path) -> None:
    told = sinkchat("doctor --offline", config_folder=tmp_path, state_folder=tmp_path).stdout
    findings = json.loads(sinkchat("doctor --offline --json", config_folder=tmp_path, state_folder=tmp_path).stdout)
    assert [set(finding) for finding in findings] == [{"subject", "fact", "status", "fix"}] * len(findings)
    lines = [line for line in told.splitlines() if not line.startswith("      fix:")]
    assert [line[:18] for line in lines] == [f"{one['status']:<4}  {one['subject']:<12}" for one in findings]


def test_a_broken_config_fails_with_the_error_of_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("top-p = 7\n")
    outcome = sinkchat("doctor --offline", config_folder=tmp_path)
    assert outcome.status == 1
    assert outcome.stdout.splitlines()[1:3] == [
        "FAIL  config        config.toml: top-p is 7; use a number above 0, up to 1",
        f"      fix:          correct {tmp_path}/config.toml",
    ]


def test_a_config_that_is_read_is_named_with_its_keys(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("top-p = 0.5\nvi = true\n")
    lines = sinkchat("doctor --offline", config_folder=tmp_path).stdout.splitlines()
    assert lines[1] == f"ok    config        {tmp_path}/config.toml, top-p, vi"


def test_the_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_" + "s" * 34
    monkeypatch.setenv("HF_TOKEN", token)
    outcome = sinkchat("doctor --offline")
    assert "ok    hub token     set by HF_TOKEN" in outcome.stdout.splitlines()
    assert token not in outcome.stdout + outcome.stderr


def test_the_terminal_is_described_as_it_is() -> None:
    class Latin(io.StringIO):
        encoding = "latin-1"

    variables = {"TERM": "xterm-256color", "TMUX": "/tmp/tmux-0/default,1,0", "ACCESSIBLE": "1"}
    told = sinkchat("doctor --offline", stdout=Terminal(), variables=variables).stdout.splitlines()[0]
    assert told == (
        "\x1b[32mok  \x1b[0m  terminal      "
        "of unknown size, colour, UTF-8, TERM=xterm-256color, in tmux, accessible mode"
    )
    assert sinkchat("doctor --offline", stdout=Latin()).stdout.splitlines()[:2] == [
        "warn  terminal      stdout is no terminal, LATIN-1, TERM=(not set)",
        "      fix:          a UTF-8 locale, such as LC_ALL=C.UTF-8, or --ascii",
    ]


def test_the_ways_to_hold_weights_are_told_with_what_to_install_for_others() -> None:
    lines = [line[6:] for line in sinkchat("doctor --offline").stdout.splitlines() if line[6:].startswith("weights")]
    ways, checkpoints = (line.removeprefix("weights").strip() for line in lines)
    assert re.fullmatch(r"on \S+: --quant none(, [a-z0-9-]+)*", ways)
    assert checkpoints.startswith("checkpoints by ")
    assert "fp8" in checkpoints
    if importlib.util.find_spec("gptqmodel") is None:
        assert checkpoints.count("by awq after pip install gptqmodel") == 1


def test_a_probe_that_raises_is_a_failure_and_the_others_go_on() -> None:
    def broken() -> Finding:
        raise ImportError("libcudart.so: cannot open\nmore")

    def several() -> Iterator[Finding]:
        yield Finding("a", "one")
        yield Finding("b", "two", "warn", "do this")

    probes = (Probe("torch", broken, "pip install torch"), Probe("several", several))
    assert list(examined(probes)) == [
        Finding("torch", "ImportError: libcudart.so: cannot open", "FAIL", "pip install torch"),
        Finding("a", "one"),
        Finding("b", "two", "warn", "do this"),
    ]


def test_a_finding_is_given_before_the_next_is_looked_for() -> None:
    looked: list[str] = []

    def look(name: str) -> Probe:
        return Probe(name, lambda: looked.append(name) or Finding(name, "here"))  # type: ignore[func-returns-value]

    findings = examined([look("first"), look("second")])
    assert next(findings) == Finding("first", "here")
    assert looked == ["first"]


def test_bytes_are_those_of_files_and_not_of_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to(tmp_path / "blobs" / "a")
    assert bytes_in(tmp_path) == 1000
    assert bytes_in(tmp_path / "nowhere") == 0


def test_a_folder_that_is_not_there_can_be_written_where_it_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_writable(tmp_path / "a" / "b")
    assert not is_writable(tmp_path / "file" / "b")
