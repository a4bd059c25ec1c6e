"""`sinkchat bench` as a person types and reads it."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from scripted_bench import scripted_bench
from tiny import tiny_model, tiny_tokenizer
from worlds import Terminal, environment

from sinkchat.cli import run
from sinkchat.errors import ExitStatus, OutOfMemory, UsageError
from sinkchat.lab.bench.bench import Plan, Sample
from sinkchat.lab.bench.report import Subject
from sinkchat.lab.bench.start import Expected, Started
from sinkchat.terminal.asked.config import Key, keys_of
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.bench import Asked, bench, expect, measure
from sinkchat.terminal.lab.running import Output, Tell

SUBJECT = Subject("Tiny-1", "none", "bfloat16", "cpu", 2, weight_bytes=200 << 20, kv_bytes_per_token=20 << 10)
PLAN = Plan(cache_sizes=(256, 1024, 4096), rounds=3, tokens=4, windows=4, turns=9)


def samples(plan: Plan = PLAN) -> Iterator[Sample]:
    taken = iter([float(900 << 20)] * 5 + [float(901 << 20)])
    return scripted_bench(
        plan,
        resident=lambda: round(next(taken)),
        copies=[12e9, 11e9, 13e9],
        sinkchat={"empty": [[0.040]], "full": [[0.050], [0.052]], "late": [[0.051], [0.05, 0.06]]},
        dense={"full": [[0.055], [0.060]]},
        **{"llama.cpp": {"full": [[0.0120], [0.0150]]}, "recomputed": {"full": [[2.5]], "empty": [[2.5], [2.4]]}},
    )


@dataclass
class ScriptedLab:
    """Gives samples that a test made, or fails in their midst."""

    found: list[Sample] = field(default_factory=lambda: list(samples()))
    failing: BaseException | None = None
    subject: Subject = SUBJECT
    notes: tuple[str, ...] = ()
    asked: list[Asked] = field(default_factory=list)

    def start(self, asked: Asked, progress: Tell) -> Started:
        self.asked.append(asked)
        progress("loading Tiny-1")
        return Started(self.subject, PLAN, self._samples(), self.notes)

    def _samples(self) -> Iterator[Sample]:
        yield from self.found
        if self.failing is not None:
            raise self.failing

    def expect(self, asked: Asked, progress: Tell) -> Expected:
        return Expected(self.subject, (256, 1024, 4096))

    def bandwidth(self, device: str, rounds: int) -> Iterator[float]:
        return iter([20e9, 22e9, 21e9])


def written(lab: ScriptedLab, asked: Asked | None = None, encoding: str = "utf-8") -> str:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    measure(environment(io.BytesIO(), stdout=stdout), asked or Asked(), lab)
    stdout.seek(0)
    return stdout.read()


ASKED = Asked()

TABLE = """\
Tiny-1, bfloat16 on cpu, 2 threads
copies move 13.0 (11.0–13.0) GB/s; in brackets least and most of all rounds
note: weights from \\x1b[31ma package

cache size                               256             1,024             4,096

tokens drawn a second
nearly empty                25.0 (25.0–25.0)  25.0 (25.0–25.0)  25.0 (25.0–25.0)
full                        19.2 (19.2–20.0)  19.2 (19.2–19.2)  19.2 (19.2–19.2)
4 windows later             16.7 (16.7–19.6)  16.7 (16.7–16.7)  16.7 (16.7–16.7)
dense                       16.7 (16.7–18.2)  16.7 (16.7–16.7)  16.7 (16.7–16.7)
llama.cpp                   66.7 (66.7–83.3)  66.7 (66.7–66.7)  66.7 (66.7–66.7)
recomputed                  0.42 (0.40–0.42)  0.42 (0.42–0.42)  0.42 (0.42–0.42)

tokens read a second
sinkchat                    64.0 (64.0–64.0)  64.0 (64.0–64.0)  64.0 (64.0–64.0)
dense                       64.0 (64.0–64.0)  64.0 (64.0–64.0)  64.0 (64.0–64.0)
llama.cpp                   64.0 (64.0–64.0)  64.0 (64.0–64.0)  64.0 (64.0–64.0)

seconds to first token
turn 1                      0.50 (0.50–0.50)  0.50 (0.50–0.50)  1.59 (1.59–1.59)
turn 9                      0.50 (0.50–0.50)  0.50 (0.50–0.50)  1.59 (1.59–1.59)

ms of a token that evicts
median                                  60.0              60.0              60.0
99th of 100                             60.0              60.0              60.0
slowest                                 60.0              60.0              60.0

ratios (target)
later / full ≥ 0.98         0.87 (0.87–0.98)  0.87 (0.87–0.87)  0.87 (0.87–0.87)
99th / median token ≤ 1.3               1.00              1.00              1.00
99th / median, dense                    1.00              1.00              1.00
99th / median, llama.cpp                1.00              1.00              1.00
/ dense                     1.15 (1.10–1.15)  1.15 (1.15–1.15)  1.15 (1.15–1.15)
/ llama.cpp ≥ 1.25          0.29 (0.24–0.29)  0.29 (0.29–0.29)  0.29 (0.29–0.29)
/ recomputed, 4096: ≥ 22.2  46.2 (46.2–50.0)  46.2 (46.2–46.2)  46.2 (46.2–46.2)
prefill / dense             1.00 (1.00–1.00)  1.00 (1.00–1.00)  1.00 (1.00–1.00)
prefill / llama.cpp ≥ 3     1.00 (1.00–1.00)  1.00 (1.00–1.00)  1.00 (1.00–1.00)

by bytes over bandwidth
a token moves                        205 MiB           220 MiB           280 MiB
tok/s at most                           55.8              56.4              44.3
reached                        36% (32%–38%)     34% (34%–34%)     43% (43%–43%)

memory
keys and values                     4.00 KiB          4.00 KiB          4.00 KiB
process, full                        900 MiB           900 MiB           900 MiB
process, later                       900 MiB           900 MiB           901 MiB
"""


def test_the_table_of_three_sizes_stands_within_eighty_cells() -> None:
    table = written(ScriptedLab(notes=("weights from \x1b[31ma package",)))
    assert max(map(len, table.splitlines())) <= 80
    assert table == TABLE


def test_what_was_measured_is_written_whatever_ends_it() -> None:
    whole = ScriptedLab()
    table = written(whole)
    for failing in (KeyboardInterrupt(), OutOfMemory("out of memory", hint="a smaller --cache-size")):
        lab = ScriptedLab(whole.found[:40], failing)
        stdout, stderr = io.StringIO(), Terminal()
        world = environment(io.BytesIO(), stdout=stdout, stderr=stderr)
        if isinstance(failing, KeyboardInterrupt):
            assert measure(world, ASKED, lab) == ExitStatus.INTERRUPTED
        else:
            with pytest.raises(OutOfMemory):
                measure(world, ASKED, lab)
        assert stdout.getvalue() == written(ScriptedLab(whole.found[:40]))
        assert table.startswith("".join(stdout.getvalue().splitlines(keepends=True)[:1]))
        assert "\r\x1b[2K" in stderr.getvalue()
    stdout = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        measure(environment(io.BytesIO(), stdout=stdout), ASKED, ScriptedLab([], KeyboardInterrupt()))
    assert stdout.getvalue() == ""


def test_json_carries_every_figure_with_its_spread() -> None:
    found = json.loads(written(ScriptedLab(), Asked(output=Output(as_json=True))))
    assert found["subject"]["model"] == "Tiny-1"
    assert found["plan"]["cache_sizes"] == [256, 1024, 4096]
    assert found["copy_bandwidth"] == {"median": 13e9, "least": 11e9, "most": 13e9, "count": 9}
    first = found["sizes"][0]
    figures = {(one["of"], one["measure"]): one["value"] for one in first["figures"]}
    full = {"median": 1 / 0.052, "least": 1 / 0.052, "most": 20.0, "count": 3}
    assert figures["sinkchat", "full"] == pytest.approx(full)
    ratios = {ratio["what"]: ratio for ratio in first["ratios"]}
    assert ratios["/ llama.cpp"]["at_least"] == 1.25
    assert first["token_times"]["count"] == 12
    assert first["roofline"]["nbytes"] == SUBJECT.weight_bytes + 256 * SUBJECT.kv_bytes_per_token


def test_a_stream_without_the_signs_gets_plain_ones() -> None:
    table = written(ScriptedLab(), encoding="ascii")
    assert table == written(ScriptedLab()).replace("≥", ">=").replace("≤", "<=").replace("–", "-")


def test_on_a_gpu_the_share_of_the_roofline_has_a_target() -> None:
    on_gpu = Subject("Tiny-1", "none", "bfloat16", "cuda:0", 2, SUBJECT.weight_bytes, SUBJECT.kv_bytes_per_token)
    assert "reached ≥ 80%" in written(ScriptedLab(subject=on_gpu))
    assert "reached ≥" not in written(ScriptedLab())


EXPECTED = """\
Tiny-1, bfloat16 on cpu, 2 threads
at 21.0 (20.0–22.0) GB/s, for each token, with a full cache

cache  weights  keys, values  together     at most
  256  200 MiB      5.00 MiB   205 MiB  97.7 tok/s
1,024  200 MiB      20.0 MiB   220 MiB  91.0 tok/s
4,096  200 MiB      80.0 MiB   280 MiB  71.5 tok/s
"""


def looked_up(asked: Asked) -> str:
    stdout = io.StringIO()
    expect(environment(io.BytesIO(), stdout=stdout), asked, ScriptedLab())
    return stdout.getvalue()


def test_a_dry_run_tells_what_the_bandwidth_allows() -> None:
    assert looked_up(ASKED) == EXPECTED
    assert f"{21e9 / ((200 + 5) << 20):.1f} tok/s" in EXPECTED
    found = json.loads(looked_up(Asked(bandwidth=42e9, plan={"cache_sizes": (512,)}, output=Output(as_json=True))))
    assert [size["cache_size"] for size in found["sizes"]] == [512]
    assert found["sizes"][0]["tokens_per_s"] == pytest.approx(42e9 / (210 << 20))
    assert found["copy_bandwidth"]["median"] == 42e9


def test_a_dry_run_that_is_stopped_tells_of_the_copies_so_far() -> None:
    class Stopped(ScriptedLab):
        def bandwidth(self, device: str, rounds: int) -> Iterator[float]:
            yield 21e9
            raise KeyboardInterrupt

    stdout, world = io.StringIO(), io.BytesIO()
    assert expect(environment(world, stdout=stdout), ASKED, Stopped()) is ExitStatus.INTERRUPTED
    assert stdout.getvalue() == EXPECTED.replace("21.0 (20.0–22.0)", "21.0")


@dataclass(frozen=True)
class World:
    environment: Environment
    keys: tuple[Key, ...] = keys_of(run)


def bench_with(*arguments: str) -> str:
    """`bench` as the command line would run it; what it wrote."""
    app = typer.Typer()
    app.command(cls=GroupedHelp)(bench)
    app.command("other")(lambda: None)
    stdout = io.StringIO()
    world = World(environment(io.BytesIO(), stdout=stdout))
    action = app(["bench", *arguments], standalone_mode=False, obj=world)
    action()
    return stdout.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_dry_run_of_a_model_for_a_device_that_is_not_here(folder: Path) -> None:
    words = ("--dry-run", "--bandwidth", "4000", "--device", "cuda", "--quant", "none", "--json")
    found = json.loads(bench_with(str(folder), *words, "--cache-size", "512,256", "--cache-size", "1024"))
    by_hand = sum(weight.numel() for name, weight in tiny_model().named_parameters() if "embed_tokens" not in name)
    assert found["subject"]["weight_bytes"] == pytest.approx(2 * by_hand, abs=2 * 64 + 200)
    assert found["subject"]["device"] == "cuda"
    assert [size["cache_size"] for size in found["sizes"]] == [256, 512, 1024]
    assert found["sizes"][0]["nbytes"] == found["subject"]["weight_bytes"] + 256 * 256


def test_a_small_model_is_measured_and_drawn(folder: Path, tmp_path: Path) -> None:
    words = [
        "--device",
        "cpu",
        "--rounds",
        "1",
        "--tokens",
        "2",
        "--windows",
        "1",
        "--turns",
        "3",
        "--cache-size",
        "64",
    ]
    table = bench_with(str(folder), *words, "--plot", str(tmp_path / "bench.svg"))
    assert table.startswith("tiny, ")
    assert {"1 window later", "dense", "recomputed"} <= {line.split("  ")[0] for line in table.splitlines()}
    drawing = (tmp_path / "bench.svg").read_text()
    assert {name for name in ("sinkchat, full", "dense", "recomputed", "llama.cpp") if name in drawing} == {
        "sinkchat, full",
        "dense",
        "recomputed",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cache-size", "256,x"], "--cache-size x is not a whole number from 1 up"),
        (["--cache-size", "0"], "--cache-size 0 is not a whole number from 1 up"),
        (["--bandwidth", "100"], "--bandwidth states what --dry-run would measure"),
        (["--dry-run", "--peers"], "--dry-run measures nothing for --peers"),
        (["--dry-run", "--plot", "a.png"], "--dry-run measures nothing for --plot"),
        (["--plot", "a.doc"], "--plot a.doc: a plot is not written as .doc"),
        (["--cache-size", "20"], "--cache-size 20 is too small to draw 32 tokens in"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_loaded(arguments: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        bench_with("nowhere/at-all", *arguments)
    assert caught.value.message == told
