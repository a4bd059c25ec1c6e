"""`list`, `show` and `pull`, run whole: against folders, GGUF files and a Hub on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from safetensors.torch import save_file
from stub_hub import Repository, StubHub, files_of, stub_hub
from tiny import tiny_model, tiny_tokenizer
from transformers import LlamaConfig
from worlds import sinkchat

from sinkchat.errors import ModelError
from sinkchat.models.gguf_header import read_gguf_header

PARAMETERS = sum(weight.numel() for weight in tiny_model().parameters())

_PROGRAM = """
import io, json, sys
from worlds import environment
from sinkchat.cli import main

for line in sys.stdin:
    world = environment(io.BytesIO())
    status = main(json.loads(line), environment=world)
    torch = "torch" in sys.modules
    print(json.dumps([status, world.stdout.getvalue(), world.stderr.getvalue(), torch]), flush=True)
"""


@dataclass(frozen=True)
class Said:
    status: int
    stdout: str
    stderr: str
    torch_loaded: bool


class Machine:
    """A process with caches of its own that runs one command after the other."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.hub_cache = folder / "hf" / "hub"
        self.cache = folder / "sinkchat"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SINKCHAT_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=kept
            | {"HF_HOME": str(folder / "hf"), "SINKCHAT_CACHE_DIR": str(self.cache), "HF_ENDPOINT": endpoint}
            | {"PYTHONPATH": str(Path(__file__).parent), "TZ": "UTC", "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> Said:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return Said(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as a folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[StubHub]:
    files = files_of(folder)
    gated = Repository(files, gated=True)
    with stub_hub({"tiny/llama": Repository(files), "tiny/other": Repository(files), "tiny/gated": gated}) as hub:
        yield hub


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, hub: StubHub) -> Iterator[Machine]:
    """One machine for the tests that load torch, which takes seconds."""
    machine = Machine(tmp_path_factory.mktemp("shared"), hub.endpoint)
    yield machine
    machine.close()


@pytest.fixture
def machine(tmp_path: Path, hub: StubHub) -> Iterator[Machine]:
    machine = Machine(tmp_path, hub.endpoint)
    yield machine
    machine.close()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads variables from the process."""
    for name in [name for name in os.environ if name.startswith("SINKCHAT_")]:
        monkeypatch.delenv(name)


def test_pull_fetches_once_and_list_then_names_it(machine: Machine, hub: StubHub) -> None:
    assert machine.run("list") == Said(0, "", "note: no chat model is here yet: sinkchat run fetches one\n", False)
    assert machine.run("list", "--json").stdout == "[]\n"
    pulled = machine.run("pull", "tiny/llama")
    snapshot = Path(pulled.stdout.removesuffix("\n"))
    assert (pulled.status, pulled.stderr) == (0, "")
    assert snapshot.is_relative_to(machine.hub_cache)
    assert (snapshot / "model.safetensors").is_file()
    hub.requests.clear()
    assert machine.run("pull", "tiny/llama", "--offline").stdout == pulled.stdout
    assert hub.requests == []

    used = 1_577_923_200  # 2020-01-02
    os.utime(snapshot / "model.safetensors", (used, used))
    listed = (
        "model       family  parameters  on disk  quant  template  last used\n"
        "tiny/llama  llama   {parameters:>10}  {size:>7}  none   yes       2020-01-02\n"
    )
    nbytes = sum(path.stat().st_size for path in snapshot.iterdir())
    expected = listed.format(parameters=f"{PARAMETERS / 1000:.3g} K", size=f"{nbytes / 1024:.0f} KiB")
    assert machine.run("list") == Said(0, expected, "", False)
    assert machine.run("list").stdout == expected, "looking is not using"
    assert json.loads(machine.run("list", "--json").stdout) == [
        {
            "name": "tiny/llama",
            "kept_in": "hub",
            "path": str(snapshot),
            "family": "llama",
            "parameters": PARAMETERS,
            "nbytes": nbytes,
            "quantization": "none",
            "has_template": True,
            "last_used": used,
        }
    ]


def test_list_leaves_out_what_is_not_all_there_or_writes_no_text(machine: Machine) -> None:
    snapshot = Path(machine.run("pull", "tiny/llama").stdout.strip())
    config = snapshot / "config.json"
    written = json.loads(config.read_text())
    assert machine.run("list").stdout != ""
    config.unlink()
    config.write_text(json.dumps(written | {"architectures": ["BertModel"]}))
    assert machine.run("list").stdout == ""
    config.write_text(json.dumps(written))
    (snapshot / "model.safetensors").unlink()
    assert machine.run("list").stdout == ""


def test_show_fetches_no_weights(shared: Machine, hub: StubHub) -> None:
    hub.requests.clear()
    said = shared.run("show", "tiny/llama", "--device", "cpu", "--json")
    assert said.status == 0, said.stderr
    assert json.loads(said.stdout)["parameters"] == PARAMETERS
    assert any("tokenizer.json" in line for line in hub.requests)
    assert not any("safetensors" in line for line in hub.requests)
    hub.requests.clear()
    assert shared.run("show", "tiny/llama", "--device", "cpu").status == 0
    assert hub.requests == []
    assert "tiny/llama" not in shared.run("list").stdout


def test_what_cannot_be_had_is_told_as_run_tells_it(shared: Machine) -> None:
    for command in ("show", "pull"):
        said = shared.run(command, "tiny/gated")
        assert (said.status, said.stdout) == (3, "")
        assert said.stderr.startswith("error: tiny/gated is gated and no token is set\n")
    shared.run("pull", "tiny/other")
    assert shared.run("show", "tiny/othr").stderr == (
        "error: the Hub has no model tiny/othr, or it is private; did you mean tiny/other?\n"
        "  try: sinkchat show tiny/other\n"
    )
    assert shared.run("show", "smollm2").stderr == (
        "error: the Hub has no model HuggingFaceTB/SmolLM2-135M-Instruct, or it is private\n"
        "  try: sinkchat pull smollm2, which knows another way\n"
    )
    missing = shared.run("pull", "tiny/other", "--revision", "v9")
    assert missing.stderr.startswith("error: tiny/other has no revision v9\n")


def shown(word: str, *options: str) -> dict[str, object]:
    outcome = sinkchat(f"show {word} --device cpu --dtype float32 --json {' '.join(options)}")
    assert outcome.status == 0, outcome.stderr
    found: dict[str, object] = json.loads(outcome.stdout)
    return found


def test_show_says_what_the_model_itself_caches_and_holds(folder: Path) -> None:
    found = shown(str(folder))
    config = tiny_model().config
    by_formula = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
    assert found["kv_bytes_per_token"] == by_formula
    assert found["kv_bytes_per_token"] != 2 * by_formula  # that of all heads, without grouping
    assert (found["layers"], found["heads"], found["kv_heads"], found["head_dim"]) == (2, 4, [2], [16])
    assert (found["trained"], found["window"], found["largest_cache"], found["stored"]) == (4096, None, 4096, "none")
    assert found["processes"] == [1, 2]
    caches, free = found["caches"], found["free"]
    assert [cache["choice"] for cache in caches] == ["256", "512", "1024", "2048", "4096"]
    assert [cache["nbytes"] for cache in caches] == [by_formula * size for size in (256, 512, 1024, 2048, 4096)]
    assert all(cache["fits"] == (cache["nbytes"] + 4 * PARAMETERS <= free) for cache in caches)
    weights = {cost["choice"]: cost["nbytes"] for cost in found["weights"]}
    assert weights["none"] == 4 * PARAMETERS
    embeddings = 2 * config.vocab_size * config.hidden_size
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    matrices = PARAMETERS - embeddings - norms
    of_4_bits = matrices * (0.5 + 4 / 64) + 7 * config.num_hidden_layers * 16 * 4  # each its sixteen levels
    assert weights["nf4"] == weights["fp4"] == of_4_bits + 4 * (embeddings + norms)
    rows = config.num_hidden_layers * (64 + 32 + 32 + 64 + 96 + 96 + 64)
    assert weights["int8"] == matrices + 4 * rows + 2 * (embeddings + norms)


def test_show_in_words(folder: Path) -> None:
    outcome = sinkchat(f"show {folder} --device cpu --dtype bfloat16")
    assert (outcome.status, outcome.stderr) == (0, "")
    about, weights, caches = outcome.stdout.split("\n\n")
    assert about.splitlines() == [
        "model         tiny",
        f"path          {folder}",
        f"family        llama, {PARAMETERS / 1000:.3g} K parameters",
        "attention     2 layers, 4 heads, 2 KV heads of 16",
        "trained on    4,096 positions",
        "window        none: every layer sees all",
        "processes     2 can share it (--processes)",
        "stored        whole weights",
        "template      found, and it streams",
        "KV per token  256 bytes in bfloat16",
    ]
    title, *table, speeds = weights.splitlines()
    assert title.startswith("weights on cpu, ")
    assert title.endswith(" free, with keys and values of 2,048 tokens")
    assert table[0].split() == ["weights", "cache", "here", "writes", "reads"]
    assert [line.split()[:7] for line in table[1:3]] == [
        ["--quant", "none", f"{2 * PARAMETERS / 1024:.0f}", "KiB", "512", "KiB", "fits"],
        ["--quant", "nf4", "100", "KiB", "512", "KiB", "fits"],
    ]
    assert [line.split()[1] for line in table[1:]] == ["none", "nf4", "nf4-dq", "fp4", "int8", "int4"]
    assert [line.split()[-1] for line in table[1:]].count("auto") == 1
    assert speeds.startswith("speeds as multiples of bfloat16's, measured with SmolLM2-135M on ")
    assert caches.splitlines() == [
        "cache in bfloat16, beside whole weights",
        "--cache-size 256   64.0 KiB  fits",
        "--cache-size 512    128 KiB  fits",
        "--cache-size 1024   256 KiB  fits",
        "--cache-size 2048   512 KiB  fits",
        "--cache-size 4096  1.00 MiB  fits",
    ]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="auto is not the CPU here")
def test_a_model_that_does_not_fit_is_shown_with_where_it_would_lie(tmp_path: Path) -> None:
    """Terabytes of weights, of which none are there."""
    wide = {"hidden_size": 65_536, "intermediate_size": 40_000_000, "num_attention_heads": 64, "head_dim": 1024}
    config = LlamaConfig(**wide, num_key_value_heads=8, num_hidden_layers=2, vocab_size=260)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert [way["places"] for way in shown(str(tmp_path))["weights"]] == [[]] * 6
    outcome = sinkchat(f"show {tmp_path} --device auto --dtype bfloat16")
    assert "processes     2, 4 or 8 can share it (--processes)\n" in outcome.stdout
    assert "\nspread: --device auto fills memory, then disk\n" in outcome.stdout
    rows = [line.split() for line in outcome.stdout.splitlines() if line.startswith("--quant")]
    assert [row[1] for row in rows if "spread" in row] == ["none"]


def test_a_base_model_and_a_template_of_a_person_are_told(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny_model().save_pretrained(base)
    tiny_tokenizer(chat_template=None).save_pretrained(base)
    assert shown(str(base))["template"] == "none: a base model, which continues text and does not answer"
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]")
    assert shown(str(base), "--chat-template", str(template))["template"] == "found, and it streams"


def test_a_gguf_file_is_shown_without_being_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    found = shown(str(write_gguf(tmp_path / "tiny.F32.gguf")))
    assert (found["family"], found["layers"], found["kv_heads"], found["trained"]) == ("llama", 2, [2], 4096)
    assert found["template"] == "found, and it streams"
    assert not (tmp_path / "cache").exists()


def test_the_header_of_a_gguf_file_counts_its_numbers(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    header = read_gguf_header(path)
    assert (header.family, header.parameters, header.has_template) == ("llama", PARAMETERS, True)
    for cut in (0, 3, 20, 500, 5000):
        (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf_header(tmp_path / "cut.gguf")


@pytest.mark.parametrize("command", ["show", "pull"])
def test_a_slip_in_a_name_is_told_with_the_nearest(command: str, folder: Path) -> None:
    outcome = sinkchat(f"{command} smolm2")
    assert (outcome.status, outcome.stdout) == (3, "")
    assert outcome.stderr.startswith(
        "error: smolm2 is no alias, folder, .gguf file or Hub id; did you mean smollm2?\n"
    )
    assert sinkchat(f"{command} {folder} --revision x").stderr.startswith(
        "error: --revision x names a revision on the"
    )


def test_pull_takes_offline_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("cache-size = 512\noffline = true\n")
    outcome = sinkchat("pull tiny/nowhere", config_folder=tmp_path)
    assert outcome.stderr.splitlines()[0] == (
        "error: tiny/nowhere is not on this machine, and nothing is fetched while offline"
    )


@pytest.mark.parametrize("command", ["show", "pull"])
def test_a_command_without_a_model_points_to_its_own_help(command: str) -> None:
    assert sinkchat(command).stderr == f"error: missing argument 'MODEL'\n  try: sinkchat {command} --help\n"
