"""The panel as a person sees it: whole outputs, widths that never wrap, sums that anyone can check."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remembered import Held, facts_of, memories
from rich.cells import cell_len
from rich.text import Text

from sinkchat.cache.policy import CacheState, Span
from sinkchat.terminal import wording
from sinkchat.terminal.drawing.cells import ASCII, UNICODE, steady
from sinkchat.terminal.drawing.gauge import Answering, Idle, Loss, PanelFacts, Reading
from sinkchat.terminal.drawing.panel import rows, sentences, toolbar

NINE_TURNS = PanelFacts(
    CacheState(seen=3_252, evicted=1_204, pinned=46, capacity=2_048, nbytes=2**30),
    (
        Held(4, 253, 320, "how do I keep a sourdough starter alive?"),
        *(Held(number, left, left) for number, left in ((5, 391), (6, 353), (7, 404), (8, 390), (9, 211))),
    ),
    latest=9,
    activity=Answering(tokens=128, rate=31.4, first_s=0.42),
    prefill_rate=812.0,
    device_bytes=int(3.2 * 2**30),
)
READING = replace(NINE_TURNS, activity=Reading(12_400, 48_210, rate=812.0, seconds_left=44.1))
NEARLY_FULL = replace(facts_of(900, 902, capacity=2_048, pinned=46), activity=Idle(100, 28.0, 0.5))


def plain(facts: PanelFacts, columns: int = 80, lines: int = 24, **options) -> str:
    return "\n".join(rows(facts, columns=columns, lines=lines, color=False, **options))


def test_the_box_at_80_columns():
    assert plain(NINE_TURNS) == (
        "╭─ turn 9 · forgotten: turns 1–3, 4 (79% left) ───────────────────────────────╮\n"
        "│ SS│444444444555555555555556666666666666777777777777778888888888888899999999 │\n"
        "│ pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252               │\n"
        "╰─────────────────────────────────── 31.4 tok/s · first 0.42 s · KV 1.00 GiB ─╯"
    )


def test_the_wide_box_says_more():
    top, turns, total, bottom = plain(NINE_TURNS, columns=132).split("\n")
    assert top == f"╭─ turn 9 · forgotten: turns 1–3, 4 (79% left) {'─' * 83}╮"
    assert turns == f"│ SSS│{'4' * 16}{'5' * 24}{'6' * 21}{'7' * 25}{'8' * 24}{'9' * 13} │"
    assert total == (
        "│ pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252    "
        'next to go: turn 4, "how do I keep a sourdough starter alive?" │'
    )
    assert bottom == (
        f"╰{'─' * 36} 128 tokens · 31.4 tok/s · first 0.42 s · prefill 812 tok/s · KV 1.00 GiB · device 3.20 GiB ─╯"
    )


def test_the_box_in_ascii():
    assert plain(NINE_TURNS, charset=ASCII) == (
        "+- turn 9 | forgotten: turns 1-3, 4 (79% left) -------------------------------+\n"
        "| SS|444444444555555555555556666666666666777777777777778888888888888899999999 |\n"
        "| pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252               |\n"
        "+----------------------------------- 31.4 tok/s | first 0.42 s | KV 1.00 GiB -+"
    )


def test_the_row():
    assert plain(NINE_TURNS, form="line") == "kv 2,048/2,048 · forgot 1,204 (turns 1–3) · 31 tok/s"


@pytest.mark.parametrize(("columns", "lines", "height"), [(66, 16, 4), (65, 16, 1), (66, 15, 1), (20, 5, 1)])
def test_a_small_terminal_gets_the_row(columns, lines, height):
    assert len(rows(NINE_TURNS, columns=columns, lines=lines, form="full")) == height


def test_off_is_off():
    assert rows(NINE_TURNS, columns=80, lines=24, form="off") == []


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (60, "kv 2,048/2,048 · forgot 1,204 (turns 1–3) · 31 tok/s"),
        (52, "kv 2,048/2,048 · forgot 1,204 (3 turns) · 31 tok/s"),
        (45, "kv 2,048/2,048 · forgot 1,204 · 31 tok/s"),
        (35, "kv 2,048/2,048 · forgot 1,204"),
        (20, "kv 2,048/2,048"),
        (10, "kv 2,048…"),
    ],
)
def test_the_row_gets_shorter_sensibly(columns, row):
    assert plain(NINE_TURNS, columns=columns) == row


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (100, "reading 12,400 of 48,210 tokens ▓▓▓▓▓▓░░░░░░░░░░░░░░░░░░░░ 812 tok/s · 44 s left · Ctrl-C stops"),
        (80, "reading 12,400 of 48,210 tokens ▓░░░░░ 812 tok/s · 44 s left · Ctrl-C stops"),
    ],
)
def test_the_map_s_row_is_the_progress_while_an_input_is_read(columns, row):
    box = plain(READING, columns=columns).split("\n")
    assert box[1] == f"│ {row} │"
    assert len(box) == 4


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (62, "reading 12,400 of 48,210 ▓▓░░░░░░░░░ 44 s left · Ctrl-C stops"),
        (56, "reading 12,400 of 48,210 tokens · 44 s left"),
        (50, "reading 12,400 of 48,210 tokens · 44 s left"),
        (35, "reading 12,400 of 48,210 tokens"),
        (30, "reading 12,400 of 48,210"),
        (20, "12,400 of 48,210"),
        (9, "12,400"),
    ],
)
def test_how_to_stop_is_worth_more_than_a_bar(columns, row):
    assert plain(READING, columns=columns) == row


def test_an_input_that_still_arrives_has_neither_bar_nor_end():
    facts = replace(NINE_TURNS, activity=Reading(12_400, None, rate=812.0, seconds_left=None))
    assert plain(facts, form="line") == "reading 12,400 tokens · 812 tok/s · Ctrl-C stops"


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        (PanelFacts(CacheState(0, 0, 0, 2_048, 0)), "no turn yet"),
        (facts_of(300, capacity=2_048, pinned=46), "turn 1 · nothing forgotten yet"),
        (NEARLY_FULL, "turn 2 · about 200 tokens until turn 1 starts to leave"),
        (
            facts_of(50, capacity=100, pinned=4, unowned=40),
            "turn 1 · about 6 tokens until the opening starts to leave",
        ),
        (facts_of(96, capacity=100, pinned=4), "turn 1 · turn 1 leaves next"),
        (facts_of(50, capacity=100, pinned=4, unowned=40, evicted=12), "turn 1 · forgotten: 12 tokens"),
        (facts_of(90, capacity=100, pinned=4, evicted=80, first=2), "turn 2 · forgotten: turn 1"),
        (replace(NINE_TURNS, pinned_turns=(2,)), "turn 9 · forgotten: turns 1, 3, 4 (79% left)"),
        (
            replace(NINE_TURNS, held=(), latest=2_001, pinned_turns=tuple(range(2, 2_001, 2))),
            "turn 2001 · forgotten: 1,001 turns",
        ),
    ],
)
def test_the_title_says_what_is_forgotten_or_how_near_that_is(facts, title):
    assert re.fullmatch(r"╭─ (.*?) ─+╮", plain(facts).split("\n")[0])[1] == title


def test_a_million_forgotten_turns_are_one_run():
    facts = replace(NINE_TURNS, held=(Held(1_000_000, 2_002, 2_002),), latest=1_000_000)
    assert plain(facts).startswith("╭─ turn 1000000 · forgotten: turns 1–999999 ─")


def test_an_eviction_is_in_reverse_video_where_it_happened():
    facts = replace(NINE_TURNS, loss=Loss(Span(1_120, 1_250), (3, 4)))
    title, turns, total, _ = rows(facts, columns=80, lines=24)
    assert reversed_text(title) == "forgotten: turns 1–3, 4 (79% left)"
    assert reversed_text(turns) == "44444"  # 130 of 2,002 tokens, in 72 cells
    assert reversed_text(total) == ""
    assert reversed_text(rows(facts, columns=60, lines=24)[0]) == "forgot 1,204 (turns 1–3)"
    assert reversed_text("".join(rows(NINE_TURNS, columns=80, lines=24))) == ""


def reversed_text(row: str) -> str:
    return "".join(re.findall(r"\x1b\[(?:\d+;)*7(?:;\d+)*m([^\x1b]*)", row))


def test_a_turn_that_goes_on_leaving_does_not_flash_the_words():
    facts = replace(NINE_TURNS, loss=Loss(Span(1_249, 1_250), ()))
    title, turns, _, _ = rows(facts, columns=80, lines=24)
    assert (reversed_text(title), reversed_text(turns)) == ("", "4")


def test_two_neighbours_have_different_colours_and_the_pinned_a_third():
    row = rows(NINE_TURNS, columns=80, lines=24)[1]
    colours = {text[0]: codes for codes, text in re.findall(r"\x1b\[([\d;]+)m([S\d]+)", row)}
    assert colours == {"S": "35", "4": "36", "5": "94", "6": "36", "7": "94", "8": "36", "9": "94"}


@st.composite
def facts(draw):
    drawn = draw(memories())
    rate = st.none() | st.floats(0.01, 1e6)
    texts = st.text("ab 中é…👩🏽🇩\u200d\ufe0f\u0301\u200b\u202e\ue000\x1b\n", max_size=90)
    held = tuple(replace(turn, user=draw(texts), tokens=turn.left + draw(st.integers(0, 9))) for turn in drawn.held)
    read = draw(st.integers(1, 10**7))
    activity = draw(
        st.sampled_from(
            [
                Reading(read, draw(st.none() | st.integers(read, 10**8)), draw(rate), draw(rate)),
                Answering(draw(st.integers(0, 10**5)), draw(rate), draw(rate)),
                Idle(draw(st.integers(0, 10**5)), draw(rate), draw(rate)),
            ]
        )
    )
    evicted = draw(st.integers(0, 10**9))
    state = replace(drawn.state, evicted=evicted, seen=drawn.state.seen + evicted, nbytes=draw(st.integers(0, 2**45)))
    loss = draw(st.none() | st.just(Loss(Span(0, draw(st.integers(1, 500))), (1,))))
    return PanelFacts(
        state, held, max(drawn.latest, 0), (), activity, draw(rate), draw(st.none() | st.just(2**33)), loss
    )


@given(facts(), st.integers(1, 220), st.integers(1, 60), st.sampled_from(["auto", "full", "line"]))
def test_nothing_ever_reaches_the_last_column(facts, columns, lines, form):
    for charset in (UNICODE, ASCII):
        drawn = rows(facts, columns=columns, lines=lines, form=form, charset=charset)
        widths = [cell_len(Text.from_ansi(row).plain) for row in drawn]
        assert max(widths) <= max(0, columns - 1)
        assert len(widths) == 1 or set(widths) == {columns - 1}  # the right side of the box is straight
        assert cell_len(toolbar(facts, columns=columns, charset=charset)) <= max(0, columns - 1)


@given(facts(), st.integers(20, 220))
def test_without_colour_a_row_is_its_plain_text(facts, columns):
    coloured = rows(facts, columns=columns, lines=24)
    uncoloured = rows(facts, columns=columns, lines=24, color=False)
    assert not any("\x1b" in row for row in uncoloured)
    assert [re.sub(r"\x1b\[[\d;]*m", "", row) for row in coloured] == uncoloured


@given(facts(), st.integers(20, 220))
def test_ascii_is_ascii(facts, columns):
    drawn = [*rows(facts, columns=columns, lines=24, color=False, charset=ASCII)]
    assert all(" " <= sign <= "~" for row in [*drawn, toolbar(facts, columns=columns, charset=ASCII)] for sign in row)


@given(facts(), st.integers(66, 220))
def test_the_sum_is_exact_at_all_times(facts, columns):
    total = re.match(
        r"[^\d]*(?P<pinned>[\d,]+)[^\d]*(?P<window>[\d,]+)(?:/[\d,]+)?[^\d]*"
        r"(?P<forgotten>[\d,]+)[^\d]*(?P<seen>[\d,]+)",
        rows(facts, columns=columns, lines=24, color=False)[2],
    )
    pinned, window, forgotten, seen = (int(number.replace(",", "")) for number in total.groups())
    state = facts.state
    assert (pinned, window, forgotten, seen) == (state.pinned, state.window, state.evicted, state.seen)
    assert pinned + window + forgotten == seen


def test_a_preview_can_neither_steer_the_terminal_nor_bend_the_box():
    hostile = "\x1b[2J[/red]\u202ea\u0301 👩‍👩‍👧 🇩🇪 👍🏽\nb\u200b"
    facts = replace(NINE_TURNS, held=(Held(4, 253, 320, hostile), *NINE_TURNS.held[1:]))
    row = plain(facts, columns=140).split("\n")[2]
    assert row.endswith(' next to go: turn 4, "\\x1b[2J[/red]\\u202eá 👩👩👧 👍 b" │')
    assert steady("日本語") == "日本語"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (120, "kv 1,848/2,048 · about 200 tokens until turn 1 starts to leave · /pin 1 keeps it"),
        (80, "about 200 tokens until turn 1 starts to leave · /pin 1 keeps it"),
        (60, "about 200 tokens until turn 1 starts to leave"),
        (30, "kv 1,848/2,048"),
    ],
)
def test_the_toolbar_warns_before_the_first_loss(columns, line):
    assert toolbar(NEARLY_FULL, columns=columns) == line


def test_the_toolbar_at_other_times_is_the_row():
    assert toolbar(NINE_TURNS, columns=80) == "kv 2,048/2,048 · forgot 1,204 (turns 1–3) · 31 tok/s"
    assert toolbar(NINE_TURNS, columns=80, charset=ASCII) == "kv 2,048/2,048 | forgot 1,204 (turns 1-3) | 31 tok/s"
    assert toolbar(facts_of(300, capacity=2_048, pinned=46), columns=80) == "kv 346/2,048"


def test_a_turn_that_is_forgotten_in_part_is_named_in_the_row():
    facts = PanelFacts(CacheState(120, 20, 4, 100, 0), (Held(1, 96, 116),), 1)
    assert plain(facts, form="line") == "kv 100/100 · forgot 20 (part of turn 1)"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (NINE_TURNS, NINE_TURNS, []),
        (
            facts_of(50, 30, capacity=100, pinned=4),
            facts_of(50, 38, capacity=100, pinned=4),
            ["Memory: 92 percent full, turn 1 leaves next."],
        ),
        (facts_of(50, 36, capacity=100, pinned=4), facts_of(50, 38, capacity=100, pinned=4), []),
        (
            facts_of(50, 46, capacity=100, pinned=4),
            facts_of(46, 30, capacity=100, pinned=4, evicted=50, first=2),
            ["Memory: turn 1 is now forgotten."],
        ),
        (
            facts_of(9, 9, 9, capacity=31, pinned=4),
            replace(NINE_TURNS, pinned_turns=(2,)),
            ["Memory: turns 1, 3 are now forgotten.", "Memory: turn 4 begins to leave."],
        ),
        (
            replace(facts_of(9, capacity=13, pinned=4, first=5)),
            facts_of(9, capacity=13, pinned=4, evicted=90, first=8),
            ["Memory: turns 5 to 7 are now forgotten."],
        ),
        (NINE_TURNS, PanelFacts(CacheState(0, 0, 0, 2_048, 0)), []),  # a new conversation
    ],
)
def test_what_is_said_where_nothing_may_be_drawn(before, after, said):
    assert sentences(before, after) == said


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (2**30, "1.00 GiB"),
        (int(22.5 * 2**20), "22.5 MiB"),
        (512 * 2**20, "512 MiB"),
        (1_010 * 2**20, "1010 MiB"),
        (2048, "2.00 KiB"),
        (12, "12 bytes"),
    ],
)
def test_sizes_in_three_digits(nbytes, text):
    assert wording.memory_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (44.1, "44 s"), (99.6, "2 min"), (3_599, "60 min"), (9_000, "2.5 h")]
)
def test_durations(seconds, text):
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("free", "text"), [(204, "about 200 tokens"), (1, "about 1 token"), (1_234, "about 1,230 tokens")]
)
def test_what_is_free_is_rounded(free, text):
    assert wording.until_leaving(free, 1) == f"{text} until turn 1 starts to leave"


def test_no_turn_is_said_to_leave_where_nothing_does() -> None:
    """Under the dense policy memory fills and stays."""
    assert "starts to leave" in toolbar(NEARLY_FULL, columns=100)
    dense = replace(NEARLY_FULL, forgets=False)
    assert toolbar(dense, columns=100) == "kv 1,848/2,048 · 28 tok/s"
    assert not any("next to go" in row for row in rows(dense, columns=140, lines=40))
