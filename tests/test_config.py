"""`config.toml`: what it chooses, what beats it, and how a slip in it is told."""

import io
import os
from pathlib import Path

import pytest
from worlds import Outcome, Terminal, environment, sinkchat

from sinkchat.chat.options import MemoryOptions
from sinkchat.cli import run
from sinkchat.errors import UsageError
from sinkchat.terminal.app import RunOptions
from sinkchat.terminal.asked.config import keys_of, read_config
from sinkchat.terminal.asked.request import Chosen, run_options_for, settled


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads variables from the process."""
    for name in [name for name in os.environ if name.startswith("SINKCHAT_")]:
        monkeypatch.delenv(name)


def run_with(folder: Path, config: str | bytes, command: str = "run", **world: object) -> Outcome:
    content = config if isinstance(config, bytes) else config.encode()
    (folder / "config.toml").write_bytes(content)
    return sinkchat(command, b"hi", config_folder=folder, **world)


def test_a_key_stands_in_for_an_option_with_hyphens_or_underscores(tmp_path: Path) -> None:
    outcome = run_with(
        tmp_path,
        'model = "mine"\ncache-size = 512\nsinks = "auto"\nevict = 64\ntop_p = 0.5\nseed = "none"\n'
        'stop = ["END", "STOP IT"]\noffline = true\ndtype = "float32"\n',
    )
    (request,) = outcome.requests
    assert request.model == "mine"
    assert request.load == {"dtype": "float32", "offline": True}
    assert request.memory == MemoryOptions(cache_size=512, sinks=None, evict="64")
    assert request.chat == {"top_p": 0.5, "seed": None, "stop": ("END", "STOP IT")}
    assert request.sources == dict.fromkeys(("top_p", "seed", "stop"), "config.toml")


def test_a_variable_beats_the_file_and_a_flag_beats_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_TOP_K", "2")
    monkeypatch.setenv("SINKCHAT_TEMPERATURE", "0.2")
    outcome = run_with(tmp_path, "temperature = 0.1\ntop-k = 1\nmin-p = 0.3\nstop = 'file'\n", "run -t 0.4")
    (request,) = outcome.requests
    assert request.chat == {"temperature": 0.4, "top_k": 2, "min_p": 0.3, "stop": ("file",)}
    assert request.sources == {
        "temperature": "flag",
        "top_k": "SINKCHAT_TOP_K",
        "min_p": "config.toml",
        "stop": "config.toml",
    }


def test_of_two_that_exclude_each_other_the_one_nearer_to_the_person_holds(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("from the file")
    config = 'system-file = "system.txt"\nquiet = true\n'
    assert run_with(tmp_path, config).requests[0].system == "from the file"
    assert run_with(tmp_path, config, "run -s typed").requests[0].system == "typed"
    both = run_with(tmp_path, 'system = "a"\nsystem-file = "system.txt"\n')
    assert both.stderr == "error: --system and --system-file are both given\n  try: one of them\n"
    quiet, verbose = Chosen(True, "config.toml: quiet", "config.toml"), Chosen(True, "--verbose", "flag")
    assert settled({"verbose": verbose}, {"quiet": quiet}) == {"verbose": verbose}


def test_a_path_in_the_file_is_looked_for_beside_it(tmp_path: Path) -> None:
    (request,) = run_with(tmp_path, 'chat-template = "mine.jinja"\n').requests
    assert request.load == {"chat_template": tmp_path / "mine.jinja"}


def test_no_file_and_an_empty_file_choose_nothing(tmp_path: Path) -> None:
    assert read_config(tmp_path, keys_of(run)) == {}
    assert run_with(tmp_path, b"\xef\xbb\xbf").requests == sinkchat("run", b"hi").requests


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("cache-size = 0", "config.toml: cache-size is 0; use a whole number from 1 up"),
        ("cache_size = 1.5", "config.toml: cache-size is 1.5; use a whole number from 1 up"),
        ("cache-size = true", "config.toml: cache-size is true; use one number or one text"),
        ("cache-size = [1]", "config.toml: cache-size is [1]; use one number or one text"),
        ("sinks = 'few'", "config.toml: sinks is few; use auto or a whole number from 0 up"),
        ("temperature = inf", "config.toml: temperature is inf; use a number from 0 up"),
        ("top-p = 7", "config.toml: top-p is 7; use a number above 0, up to 1"),
        ("stop = [1]", "config.toml: stop is [1]; use a text or a list of texts"),
        ("stop = ''", "config.toml: stop is empty; use a text that is not empty, or none"),
        ("ascii = 'yes'", "config.toml: ascii is 'yes'; use true or false"),
        ("vi = {}", "config.toml: vi is a table; use true or false"),
        ("system = 1979-05-27", "config.toml: system is 1979-05-27; use one number or one text"),
        ("policy = 'x'", "invalid value for 'config.toml: policy': 'x' is not one of 'sink', 'window', 'dense'"),
        ("cahce-size = 1", "{file}: there is no option cahce-size, did you mean cache-size?"),
        ("xyzzy = 1", "{file}: there is no option xyzzy"),
        ("[run]\nvi = true", "{file}: [run] is a table, and options stand at the top"),
        ("top-k = 1\ntop_k = 2", "{file}: top-k is given twice"),
        ("prompt = 'hi'", "{file}: prompt belongs to one call, not into config.toml"),
        ("input = 'text'", "{file}: input belongs to one call, not into config.toml"),
        ("input_form = 'text'", "{file}: input_form belongs to one call, not into config.toml"),
        ("format = 'jsonl'", "{file}: format belongs to one call, not into config.toml"),
        ("interactive = true", "{file}: interactive belongs to one call, not into config.toml"),
        ("vi = true\nx = = 1", "{file} is not TOML, line 2, column 5: invalid value"),
        ("x = [1", "{file} is not TOML, line 1, column 7: unclosed array"),
        (b"vi = true\n# caf\xe9", "{file} is not UTF-8 text, line 2, column 6"),
    ],
)
def test_a_slip_in_the_file_is_a_usage_error_that_names_file_and_key(
    tmp_path: Path, config: str | bytes, error: str
) -> None:
    outcome = run_with(tmp_path, config)
    assert (outcome.status, outcome.stdout, outcome.requests) == (2, "", [])
    assert outcome.stderr.splitlines()[0] == "error: " + error.format(file=tmp_path / "config.toml")


def test_the_same_slip_on_the_command_line_has_the_same_words(tmp_path: Path) -> None:
    for key, value in (("top-p", "7"), ("cache-size", "0"), ("panel", '"x"')):
        written = run_with(tmp_path, f"{key} = {value}").stderr
        typed = sinkchat(f"run --{key} {value}", b"hi").stderr
        assert written.replace(f"config.toml: {key}", f"--{key}") == typed


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(UsageError, match=r"config\.toml cannot be read: is a directory"):
        read_config(tmp_path, keys_of(run))


def test_looks_come_from_flags_variables_and_the_file() -> None:
    def chosen(**values: object) -> dict[str, Chosen]:
        return {name: Chosen(value, f"--{name}", "flag") for name, value in values.items()}

    assert run_options_for({}, accessible=False) == RunOptions()
    assert run_options_for(
        chosen(panel="line", markdown="off", ascii=True, vi=True, stats=True, raw=True, input_form="lines"),
        accessible=False,
    ) == RunOptions(panel="line", markdown="off", ascii=True, vi=True, stats=True, raw=True, input="lines")
    assert run_options_for({}, accessible=True).accessible
    assert not run_options_for(chosen(accessible=False), accessible=True).accessible


@pytest.mark.parametrize(("value", "is_on"), [("0", False), ("false", False), ("1", True), ("true", True)])
def test_a_variable_can_turn_a_flag_of_the_file_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool
) -> None:
    monkeypatch.setenv("SINKCHAT_QUIET", value)
    outcome = run_with(tmp_path, "quiet = true\n", "run m hi", stderr=Terminal())
    assert (outcome.stderr == "") == is_on


@pytest.mark.parametrize(
    ("variables", "is_accessible"),
    [
        ({}, False),
        ({"ACCESSIBLE": "1"}, True),
        ({"ACCESSIBLE": "0"}, False),
        ({"ACCESSIBLE": ""}, False),
        ({"TERM": "dumb"}, True),
        ({"TERM": "xterm"}, False),
    ],
)
def test_the_system_says_whether_it_is_to_be_accessible(variables: dict[str, str], is_accessible: bool) -> None:
    assert environment(io.BytesIO(), variables=variables).is_accessible == is_accessible
