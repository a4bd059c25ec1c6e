"""`sinkchat attention` at the terminal: what is written, what is refused, what an early Ctrl-C keeps."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_tokenizer
from worlds import Terminal, environment

from sinkchat.errors import CannotStream, ExitStatus, InputError, UsageError
from sinkchat.lab.attention.passages import encoded, passages_of, text_of
from sinkchat.lab.attention.shares import Distribution, Report, Shares, SinksEvicted
from sinkchat.terminal.lab.attention import Asked, look
from sinkchat.terminal.lab.attention_map import write_report
from sinkchat.terminal.lab.running import Output

SHARES = Shares(
    sinks=4,
    length=16,
    passages=2,
    first=((0.25, 0.35), (0.05, 0.149), (0.9, 1.0), (0.5, 0.7)),
    token_0=((0.1, 0.1), (0.0, 0.0), (0.8, 1.0), (0.4, 0.6)),
    learned=((0.0, 0.001),) * 4,
    even=0.331,
    even_0=0.083,
    maps=(((1.0, 0.0), (0.5, 0.5)),) * 4,
)
FOUND = SinksEvicted(
    token=19,
    capacity=12,
    kept=Distribution(((0.4, 0.1),) * 3, ((0.1, 0.1, 0.1, 0.2),) * 3, (0.0,) * 3, 7, 0.5),
    evicted=Distribution(((),) * 3, ((0.2, 0.2, 0.2, 0.4),) * 3, (0.0,) * 3, 8, 0.25),
    words=(" sea", "\x1b[31m"),
    divergence=1.234,
)
REPORT = Report("Tiny-1", "a book", SHARES, FOUND)

WHOLE = """\
Tiny-1: how much of the attention goes to the first 4 tokens, in %
2 passages of 16 tokens of a book; tokens 8 to 15 look back

layer heads 0 to 1     mean  token 0
    0  25   35       30.0 %   10.0 %
    1   5   15       10.0 %    0.0 %
    2  90   100      95.0 %   90.0 %
    3  50   70       60.0 %   50.0 %
        0  10  20  30  40  50  60  70  80  90  and more, of 100

layers 2 to 3, mean over heads:
  first 4       77.5 %   even attention: 33.1 %
  token 0       70.0 %   even attention: 8.3 %

One query over one cache: token 19 looks at 2 sinks and 4 tokens of the window;
then the sinks are evicted, and it looks again. Mean of layer 2.

                  with sinks                   without
sink 0             40.0 % ████████             evicted
sink 1             10.0 % ██                   evicted
oldest 1           10.0 % ██                    20.0 % ████
       1           10.0 % ██                    20.0 % ████
newest 1           10.0 % ██                    20.0 % ████
the query itself   20.0 % ████                  40.0 % ████████

likeliest next    ' sea' 50.0 %                '\\x1b[31m' 25.0 %
What comes next differs by 1.23 nats (Kullback-Leibler).
"""


def written(report, **streams):
    world = environment(io.BytesIO(), **streams)
    write_report(report, world)
    return world.stdout.getvalue()


def test_the_whole_page():
    assert written(REPORT) == WHOLE


def test_colour_adds_nothing_but_colour():
    coloured = written(REPORT, stdout=Terminal(), variables={"COLORTERM": "truecolor", "TERM": "xterm-256color"})
    assert "48;2;253;231;37m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == WHOLE
    assert written(REPORT, stdout=Terminal(), variables={"NO_COLOR": "1"}) == WHOLE


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_has_gone_is_left_to_the_program():
    with pytest.raises(BrokenPipeError):
        written(REPORT, stdout=Gone())


class Latin(io.StringIO):
    encoding = "latin-1"


def test_a_stream_without_blocks_gets_plain_signs():
    assert written(REPORT, stdout=Latin()) == WHOLE.replace("█", "#")


@pytest.mark.parametrize(
    ("heads", "row"),
    [
        (12, "    0  90  90  90  90  90  90  90  90  90  90  90  90 "),
        (32, "    0 99999999999999999999999999999999 "),
        (64, "    0 999"),
    ],
)
def test_any_number_of_heads_fits_eighty_columns(heads, row):
    shares = replace(SHARES, first=((0.9,) * heads,) * 4, token_0=((0.9,) * heads,) * 4)
    page = written(replace(REPORT, shares=shares, eviction=None))
    assert max(map(len, page.splitlines())) <= 80
    assert row in page


def test_of_more_heads_than_columns_neighbours_share_a_cell():
    shares = replace(SHARES, first=((0.0, 1.0) * 64,) * 4, token_0=((0.9,) * 128,) * 4)
    page = written(replace(REPORT, shares=shares, eviction=None)).splitlines()
    assert page[3].startswith("layer heads 0 to 127, 3 a cell")
    assert page[4].startswith("    0 363636")
    assert page[4].endswith("50.0 %   90.0 %")


def test_a_learned_sink_is_shown_as_its_own():
    page = written(replace(REPORT, shares=replace(SHARES, learned=((0.5, 0.3),) * 4)))
    assert "mean  token 0  learned" in page
    assert "how much goes to the sink that each head has learned, in %" in page
    assert "  learned sink  40.0 %" in page


class FakeLab:
    """Starts an experiment whose model was loaded elsewhere."""

    def __init__(self, shares, evict=lambda: FOUND):
        self.shares, self.evict, self.texts = shares, evict, []

    def start(self, asked, text, progress):
        from sinkchat.lab.attention.start import Started

        self.texts.append(text)
        return Started("Tiny-1", 2, self.shares(), self.evict)


def test_an_early_ctrl_c_keeps_what_was_measured():
    def shares():
        yield replace(SHARES, passages=1)
        raise KeyboardInterrupt

    world = environment(io.BytesIO(b"Call me Ishmael."))
    assert look(world, Asked(texts=("-",)), FakeLab(shares).start) == ExitStatus.INTERRUPTED
    page = world.stdout.getvalue().splitlines()
    assert page[1] == "1 passage of 16 tokens of stdin; tokens 8 to 15 look back"
    assert page[-1] == "  token 0       70.0 %   even attention: 8.3 %"


def test_a_model_that_cannot_stream_still_shows_its_sinks():
    def evict():
        raise CannotStream("Tiny-1 cannot stream: it learns absolute positions")

    world = environment(io.BytesIO())
    look(world, Asked(), FakeLab(lambda: iter([SHARES]), evict).start)
    page = world.stdout.getvalue()
    assert page.endswith("\nnote: no sinks were evicted: Tiny-1 cannot stream: it learns absolute positions\n")
    assert "One query" not in page


def test_json_is_one_document_with_all_numbers():
    world = environment(io.BytesIO())
    lab = FakeLab(lambda: iter([SHARES]))
    look(world, Asked(output=Output(as_json=True)), lab.start)
    document = json.loads(world.stdout.getvalue())
    assert document["shares"]["first"] == [list(layer) for layer in SHARES.first]
    assert document["eviction"]["kept"]["sinks"] == [[0.4, 0.1]] * 3
    assert (document["model"], document["text"]) == ("Tiny-1", "Python's help topics")
    assert len(lab.texts[0]) > 100_000


@pytest.mark.parametrize("report", [REPORT, replace(REPORT, eviction=None)], ids=["whole", "no eviction"])
def test_the_plot_is_a_picture(tmp_path, report):
    pytest.importorskip("matplotlib")
    from sinkchat.lab.attention.plot import draw

    draw(report, tmp_path / "sinks.png")
    assert (tmp_path / "sinks.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_refused_before_any_work():
    pytest.importorskip("matplotlib")
    lab = FakeLab(lambda: iter([SHARES]))
    with pytest.raises(UsageError, match="there is no folder"):
        look(environment(io.BytesIO()), Asked(output=Output(plot=Path("/nonexistent/a.png"))), lab.start)
    assert lab.texts == []


def test_passages_begin_where_sentences_begin():
    text = "One two. Three four! 5 six. Seven eight nine.\n\nTen eleven twelve."
    starts = ["".join(map(chr, ids)) for ids in passages_of(Letters(), text, length=5, count=9)]
    assert starts == ["One t", "Three", "Seven", "Ten e"]
    assert len(passages_of(Letters(), text, length=5, count=2)) == 2


class Letters:
    """A token a letter."""

    def encode(self, text, *, add_special_tokens=True, split_special_tokens=False):
        return list(map(ord, text))


def test_special_tokens_in_a_text_are_plain_letters():
    assert 3 not in encoded(tiny_tokenizer(), "<|im_start|>user", 99)
    assert 3 in tiny_tokenizer().encode("<|im_start|>user")


def test_a_text_without_a_sentence_long_enough_is_refused():
    with pytest.raises(InputError, match="no sentence of it has 900 tokens after its beginning"):
        passages_of(Letters(), "Short. Very short.", length=900, count=4)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b" \n", "stdin is empty"), (b"caf\xe9", "stdin is not UTF-8 text: byte 3 is 0xe9")],
)
def test_what_is_no_text_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        text_of(["-"], io.BytesIO(data))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"/nonexistent/book.txt cannot be read: no such file"):
        text_of(["/nonexistent/book.txt"], io.BytesIO())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"sinks": 9}, "the first 9 of 16 tokens leave too few"),
        ({"sinks": 8, "cache_size": 16}, "8 sinks leave little window in a cache of 16"),
    ],
)
def test_a_plan_that_shows_nothing_is_refused(plan, message):
    from sinkchat.lab.attention.start import Plan

    with pytest.raises(UsageError, match=message):
        Plan(**plan)


def test_a_tiny_model_goes_all_the_way():
    from sinkchat.lab.attention.start import Plan, start_with
    from sinkchat.models.loading import LoadedModel

    loaded = LoadedModel(tiny_model(), tiny_tokenizer(), "Tiny-1", "none", "float32", "cpu", 4096, ())
    with pytest.raises(UsageError, match="--length 5,000 is more than the 4,096 positions Tiny-1 was trained on"):
        start_with(loaded, Plan(length=5000), "")
    started = start_with(loaded, Plan(passages=40, cache_size=32), text_of([], io.BytesIO()))
    assert [shares.passages for shares in started.shares] == [32, 40]
    assert started.evict().capacity == 32
    refused = start_with(
        replace(loaded, model=tiny_model("gpt2")), Plan(passages=9, cache_size=32), text_of([], None)
    )
    assert [shares.passages for shares in refused.shares] == [9]
    with pytest.raises(CannotStream, match="learns absolute positions"):
        refused.evict()
    short = start_with(loaded, Plan(cache_size=64), "It is a truth universally known.")
    with pytest.raises(InputError, match="the text has 32 tokens, which do not roll the window of a cache of 64"):
        short.evict()
