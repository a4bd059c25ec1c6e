"""`sinkchat perplexity` as it is typed and as it answers, with a scripted lab in place of a model."""

import dataclasses
import io
import json
import math
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from worlds import Terminal, environment

from sinkchat.cli import run as sinkchat_run
from sinkchat.errors import ExitStatus, InputError, UsageError
from sinkchat.lab.perplexity.plan import Plan
from sinkchat.lab.perplexity.scores import Block, Losses, Method, Progress, Result, Scores, Subject, perplexity
from sinkchat.terminal.asked.config import keys_of
from sinkchat.terminal.asked.options import GroupedHelp
from sinkchat.terminal.lab.perplexity import Asked, measure
from sinkchat.terminal.lab.perplexity import perplexity as command
from sinkchat.terminal.lab.perplexity_table import in_progress, in_words
from sinkchat.terminal.lab.running import Output

SUBJECT = Subject("Tiny", "nf4", "bfloat16", "cpu", 2048, "book.txt", 640, 64, 16, notes=("weights are tiny",))
LEVELS = {"dense": 2.0, "window": 6.0, "recompute": 2.1, "streaming": 2.2}


def scores(method: Method, read: int = 640) -> Scores:
    """Losses that climb from 2 to the method's own, over the text."""
    sums = Scores(640, 64, 16)
    step = 16 if method.kind == "recompute" else 1
    first = 64 if method.kind == "recompute" else 1
    top = LEVELS[method.kind]
    sums.add(Losses(first, [2 + (top - 2) * token / 640 for token in range(first, read, step)], step))
    sums.seconds = 2.0
    return sums


@dataclass
class ScriptedLab:
    """Measures in no time; `breaks` is called in the middle of the last method."""

    breaks: Callable[[], object] | None = None
    asked: list[Asked] = field(default_factory=list)
    was_closed: bool = False

    def start(self, asked, environment, tell):
        self.asked.append(asked)
        tell("loading Tiny")
        return SimpleNamespace(subject=SUBJECT, events=self._events(asked.plan))

    def _events(self, plan: Plan) -> Iterator[Progress | Result]:
        methods = plan.methods(plan.sizes(64))
        try:
            for number, method in enumerate(methods, 1):
                if number == len(methods) and self.breaks is not None:
                    self.breaks()
                yield Progress(Result.of(method, scores(method, 320)), number, len(methods), 640, 95.0)
                yield Result.of(method, scores(method), ended="out of memory" if method.kind == "dense" else "")
        finally:
            self.was_closed = True


def asked_for(arguments: str, **streams) -> Callable[[], ExitStatus]:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=GroupedHelp)(command)
    world = SimpleNamespace(environment=environment(io.BytesIO(), **streams), keys=keys_of(sinkchat_run))
    return app(shlex.split(arguments), standalone_mode=False, obj=world)


def run(lab: ScriptedLab, asked: Asked, **streams) -> tuple[ExitStatus, str, str]:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()} | streams
    status = measure(environment(io.BytesIO(), **streams), asked, lab.start)
    return status, streams["stdout"].getvalue(), streams["stderr"].getvalue()


ASKED = Asked("book.txt", Plan(cache_sizes=(64,), sinks=(4,)))

TABLE = """\
Tiny · nf4, bfloat16 · cpu · book.txt, 640 tokens
perplexity of 36 tokens, every 16th from 64 on; beside it, of all that were scored

method        perplexity  of all  tok/s  along the text
dense               7.39    7.39    320  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
window 64          63.43   54.60    320  ▁▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇████
recompute 64        7.80    7.80     18  ···▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
4 sinks + 60        8.23    8.17    320  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁

along the text: ▁ is 7.39, █ is 377.80, on a logarithmic scale
dense ended at token 640: out of memory
"""


def test_the_table_holds_what_the_losses_come_to():
    """The losses of a method climb in a straight line, so their mean is that of the line."""

    def mean_of(top: float, tokens: range) -> float:
        return math.exp(sum(2 + (top - 2) * token / 640 for token in tokens) / len(tokens))

    for row, kind in zip(TABLE.splitlines()[4:8], LEVELS, strict=True):
        common, of_all = row.split()[-4:-2]
        scored = range(64, 640, 16) if kind == "recompute" else range(1, 640)
        assert common == f"{mean_of(LEVELS[kind], range(64, 640, 16)):.2f}"
        assert of_all == f"{mean_of(LEVELS[kind], scored):.2f}"


def test_results_stand_in_a_table_with_a_picture_along_the_text():
    stdout = Terminal()
    status, written, told = run(ScriptedLab(), ASKED, stdout=stdout)
    assert (status, told) == (ExitStatus.OK, "note: weights are tiny\n")
    assert written == TABLE


def test_plain_signs_stand_in_for_bars_where_the_encoding_lacks_them():
    class Ascii(io.StringIO):
        encoding = "ascii"

    _, written, _ = run(ScriptedLab(), ASKED, stdout=Ascii())
    assert written.isascii()
    assert written == TABLE.replace(" · ", " | ").translate(str.maketrans("·▁▂▃▄▅▆▇█", "-_.:=+*#@"))


@pytest.mark.parametrize(("columns", "cells"), [(200, 32), (74, 32), (60, 19), (20, 14)])
def test_the_pictures_have_as_many_cells_as_the_terminal_has_room_for(columns, cells):
    stdout = Terminal()
    world = environment(io.BytesIO(), stdout=stdout)
    world = dataclasses.replace(world, terminal_size=lambda: os.terminal_size((columns, 24)))
    measure(world, ASKED, ScriptedLab().start)
    row = stdout.getvalue().splitlines()[5]
    assert row.startswith("window 64          63.43   54.60    320  ▁")
    assert len(row) == 41 + cells


def test_noise_is_not_drawn_large():
    class Level(ScriptedLab):
        def _events(self, plan):
            blocks = tuple(Block(at, at + 10, 2.0 + at % 20 / 1000, 1) for at in range(0, 640, 10))
            yield Result(Method("dense"), 7.4, 1, 7.4, 64, 640, 1.0, blocks)

    _, written, _ = run(Level(), ASKED)
    assert "▁" * 32 + "\n\nalong the text: ▁ is 7.43, █ is 29.70, on a logarithmic scale\n" in written


def test_sentences_stand_in_place_of_pictures():
    _, written, _ = run(ScriptedLab(), ASKED, variables={"ACCESSIBLE": "1"})
    assert not set(written) & set("▁▂▃▄▅▆▇█")
    assert "\nwindow 64          63.43   54.60    320\n" in written


def test_json_holds_every_figure_and_no_number_that_json_lacks():
    class Broken(ScriptedLab):
        def _events(self, plan):
            yield Result(
                Method("dense"), math.nan, 1, math.inf, 2, 640, 1.0, (Block(0, 10, math.inf, 2),), "out of memory"
            )

    _, written, _ = run(Broken(), Asked("book.txt", Plan(), output=Output(as_json=True)))
    document = json.loads(written, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert document["subject"]["tokens"] == 640
    assert document["results"] == [
        {
            "method": {"kind": "dense", "cache_size": None, "sinks": 0, "line_breaks": False},
            "label": "dense",
            "perplexity": None,
            "scored": 1,
            "perplexity_of_all": None,
            "scored_of_all": 2,
            "read": 640,
            "seconds": 1.0,
            "tokens_per_s": 2.0,
            "blocks": [{"start": 0, "stop": 10, "total": None, "count": 2, "perplexity": None}],
            "ended": "out of memory",
        }
    ]


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on():
    lab = ScriptedLab(breaks=lambda: signal.raise_signal(signal.SIGINT))
    status, written, told = run(lab, ASKED)
    assert status == ExitStatus.INTERRUPTED
    assert lab.was_closed
    assert written.splitlines()[4:8] == [
        *TABLE.splitlines()[4:7],
        "4 sinks + 60        7.83    7.77    160  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
    ]
    assert written.endswith("4 sinks + 60 ended at token 320: stopped\n")
    assert told.endswith(
        "note: stopped: the figures are of what was measured until then; --resume FILE keeps what was measured\n"
    )


def test_ctrl_c_names_the_file_to_go_on_with():
    lab = ScriptedLab(breaks=lambda: signal.raise_signal(signal.SIGINT))
    _, _, told = run(lab, Asked("book.txt", ASKED.plan, resume=Path("kept")))
    assert told.endswith("note: stopped: the figures are of what was measured until then; --resume kept goes on\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_leave_keeps_what_was_measured(number):
    lab = ScriptedLab(breaks=lambda: signal.raise_signal(number))
    stdout = io.StringIO()
    with pytest.raises(SystemExit):
        run(lab, ASKED, stdout=stdout)
    assert lab.was_closed
    assert stdout.getvalue().splitlines()[4:7] == TABLE.splitlines()[4:7]


def test_an_error_on_the_way_does_not_lose_what_was_measured():
    def fail():
        raise InputError("the disk is gone")

    stdout = io.StringIO()
    with pytest.raises(InputError):
        run(ScriptedLab(breaks=fail), ASKED, stdout=stdout)
    assert stdout.getvalue().splitlines()[4:7] == TABLE.splitlines()[4:7]


def test_a_status_line_tells_how_far_it_is():
    stderr = Terminal()
    run(ScriptedLab(), ASKED, stderr=stderr)
    assert "loading Tiny" in stderr.getvalue()
    method = Method("streaming", 256, 4)
    so_far = Result(method, None, 0, 15.7, 1023, 1024, 4.0, ())
    assert " · ".join(in_progress(Progress(so_far, 3, 4, 3000, 7.4))) == (
        "4 sinks + 252 (3 of 4) · 1,024 of 3,000 tokens · 7 s left · perplexity 15.70 · 256 tok/s · Ctrl-C stops"
    )
    assert "3 min left" in in_progress(Progress(so_far, 3, 4, 3000, 185.0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (15.7, "15.70"),
        (5158.2, "5,158"),
        (1.23e13, "1.2e+13"),
        (math.inf, "infinite"),
        (math.nan, "no number"),
    ],
)
def test_a_perplexity_in_words(value, words):
    assert in_words(value) == words


def test_a_text_that_is_not_there_is_told_before_a_model_is_looked_for():
    with pytest.raises(InputError, match="nowhere cannot be read: no such file or directory"):
        asked_for("no/such-model --text nowhere --offline")()


def test_every_option_reaches_its_place(tmp_path: Path):
    from tiny import tiny_model, tiny_tokenizer

    tiny_model("llama").save_pretrained(tmp_path / "tiny")
    tiny_tokenizer(None).save_pretrained(tmp_path / "tiny")
    (tmp_path / "book").write_text("A whale. " * 20)
    options = "--cache-size 16 --cache-size 8,16 --sinks 1,2 --line-breaks --tokens 90 --every 3 --dtype float32"
    options += f" --methods streaming,dense --device cpu --quant none --json --resume {tmp_path}/kept"
    stdout = io.StringIO()
    action = asked_for(f"{tmp_path}/tiny --text {tmp_path}/book {options}", stdout=stdout)
    assert action() == ExitStatus.OK
    document = json.loads(stdout.getvalue())
    assert document["subject"] == {
        "model": "tiny",
        "quant": "none",
        "dtype": "float32",
        "device": "cpu",
        "trained": 4096,
        "text": f"{tmp_path}/book",
        "tokens": 90,
        "first": 16,
        "every": 3,
        "notes": [],
    }
    assert [(result["label"], result["scored"]) for result in document["results"]] == [
        ("dense", 25),
        ("1 sink + 7", 25),
        ("2 sinks + 6", 25),
        ("4 line breaks + 4", 25),
        ("1 sink + 15", 25),
        ("2 sinks + 14", 25),
        ("4 line breaks + 12", 25),
    ]
    assert (tmp_path / "kept").exists()


def test_a_loss_beyond_floats_is_infinite():
    assert perplexity(1e6, 1) == math.inf
    assert perplexity(0.0, 0) is None
    assert perplexity(3.0, 3) == pytest.approx(math.e)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("", "there is no text to measure on", "--text FILE, such as a book"),
        ("--text b --methods dense,all", "--methods all is not known", "--methods dense,window,recompute,streaming"),
        ("--text b --sinks 1,x", "--sinks x is not a whole number from 0 up", "--sinks 0,1,2,4,8"),
        ("--text b --sinks 1,,2", "--sinks (nothing) is not a whole number from 0 up", "--sinks 0,1,2,4,8"),
        ("--text b --sinks ''", "--sinks (nothing) is not a whole number from 0 up", "--sinks 0,1,2,4,8"),
        ("--text b --sinks -1", "--sinks -1 is not a whole number from 0 up", "--sinks 0,1,2,4,8"),
        ("--text b --cache-size 1", "--cache-size 1 is not a whole number from 2 up", "--cache-size 256,1024"),
        ("--text b --cache-size 1.5", "--cache-size 1.5 is not a whole number from 2 up", "--cache-size 256,1024"),
        ("--text b --every 0", "--every 0 is not a whole number from 1 up", "a whole number from 1 up"),
        ("--text b --tokens ²", "--tokens ² is not a whole number from 0 up", "a whole number from 0 up"),
        (
            "--text b --cache-size 8,16 --sinks 4,8",
            "8 sinks leave no window in a cache of 8",
            "fewer sinks, or --cache-size 24",
        ),
        (
            "--text b --methods dense --line-breaks",
            "--line-breaks is for streaming, which --methods leaves out",
            "no --line-breaks",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_model_is_loaded(arguments, message, hint):
    with pytest.raises(UsageError) as refused:
        asked_for(arguments)
    assert (refused.value.message, refused.value.hint) == (message, hint)


def test_lists_may_be_given_in_parts_and_are_read_once():
    plan = Plan(kinds=("streaming",), cache_sizes=(64, 16), sinks=(0, 4), line_breaks=True)
    assert [method.label for method in plan.methods(plan.sizes(None))] == [
        "window 16",
        "4 sinks + 12",
        "4 line breaks + 12",
        "window 64",
        "4 sinks + 60",
        "4 line breaks + 60",
    ]


def test_a_plot_that_cannot_be_written_is_refused_before_a_model_is_loaded(tmp_path: Path):
    pytest.importorskip("matplotlib")
    lab = ScriptedLab()
    with pytest.raises(UsageError, match=r"a plot is not written as \.jpg"):
        run(lab, Asked("book.txt", ASKED.plan, output=Output(plot=tmp_path / "plot.jpg")))
    assert lab.asked == []


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG\r"), ("pdf", b"%PDF-")])
def test_a_plot_is_written_beside_the_table(tmp_path: Path, ending: str, start: bytes):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{ending}"
    status, written, _ = run(ScriptedLab(), Asked("book.txt", ASKED.plan, output=Output(plot=path)))
    assert (status, written) == (ExitStatus.OK, TABLE)
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("sizes", "sinks", "more"), [((32, 64), (0, 4), False), ((16, 32, 64), (0, 1, 4), True)], ids=["few", "several"]
)
def test_sinks_and_sizes_have_figures_of_their_own_where_there_are_several(tmp_path: Path, sizes, sinks, more):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    plan = Plan(kinds=("dense", "streaming"), cache_sizes=sizes, sinks=sinks, line_breaks=more)
    run(ScriptedLab(), Asked("book.txt", plan, output=Output(plot=path)))
    drawn = path.read_text()
    for words in ("tokens of the text", "Perplexity of each part of the text", "Perplexity so far", "4 sinks + 60"):
        assert words in drawn
    assert ("cache size in tokens" in drawn, ">sinks<" in drawn) == (more, more)
    assert "mathdefault" not in drawn


def test_a_png_is_as_wide_as_a_screen_whatever_it_holds(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for sizes in ((64,), (16, 32, 64)):
        path = tmp_path / f"{len(sizes)}.png"
        run(ScriptedLab(), Asked("book.txt", Plan(cache_sizes=sizes), output=Output(plot=path)))
        assert int.from_bytes(path.read_bytes()[16:20], "big") == 1400
