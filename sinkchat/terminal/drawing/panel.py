"""The panel: what is forgotten, what is still there, how near the next loss is, and whether it is still fast.

A function of `PanelFacts`. It gives rows for a frame writer, a line for the prompt, and sentences where nothing may
be drawn twice; it knows neither a terminal nor a conversation. No row reaches the last column, so none ever wraps.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from sinkchat.terminal import wording
from sinkchat.terminal.drawing.cells import UNICODE, Charset, Piece, fitting, joined, paint, steady, width
from sinkchat.terminal.drawing.gauge import PanelFacts, Reading
from sinkchat.terminal.drawing.turnmap import UNOWNED, cells_of, sign, turn_map

Form: TypeAlias = Literal["auto", "full", "line", "off"]

BOX_COLUMNS, BOX_LINES, WIDE_COLUMNS = 66, 16, 132
NEARLY_FULL = 0.9
_BAR_CELLS = (6, 40)
"""the shortest progress bar that says something, and the longest that is calm"""

_PREVIEW_CELLS, _GAP_CELLS = 56, 4
_FRAME = "dim"
_WORD = "dim"
_PINNED = "magenta"
_TURNS = ("cyan", "bright_blue")
_BETWEEN = Piece(" · ", _WORD)


def rows(
    facts: PanelFacts,
    *,
    columns: int,
    lines: int,
    form: Form = "auto",
    color: bool = True,
    charset: Charset = UNICODE,
) -> list[str]:
    """The footer of a terminal of `columns` by `lines`, top row first: a box of four rows, one row, or none.

    A terminal too small for the box gets the row, whatever the form.
    """
    if form == "off":
        return []
    if form == "line" or columns < BOX_COLUMNS or lines < BOX_LINES:
        return [paint(_line(facts, columns - 1, charset), color=color)]
    return [paint(row, color=color) for row in _box(facts, columns - 1, charset, is_wide=columns >= WIDE_COLUMNS)]


def toolbar(facts: PanelFacts, *, columns: int, charset: Charset = UNICODE) -> str:
    """The row for a prompt, without styles. Shortly before something is forgotten for the first time it says so."""
    if facts.first_fill < NEARLY_FULL or not facts.state.window:
        return paint(_line(facts, columns - 1, charset), color=False)
    hint, turn = Piece(_until_leaving(facts)), facts.next_to_go
    keeps = Piece(f"/pin {turn.number} keeps it" if turn else "")
    choices = [(_kv(facts), hint, keeps), (hint, keeps), (hint,), (_kv(facts),)]
    return paint(fitting([joined(choice, _BETWEEN) for choice in choices], columns - 1, charset), color=False)


def sentences(before: PanelFacts, facts: PanelFacts) -> list[str]:
    """What a person should hear of the change from one moment to a later one of the same conversation."""
    kept = {turn.number for turn in facts.held}.union(facts.pinned_turns)
    known = {turn.number for turn in before.held}.union(range(before.latest + 1, facts.latest + 1))
    said = []
    if gone := sorted(number for number in known - kept if number <= facts.latest):
        said.append(wording.now_forgotten(gone))
    if (partly := facts.partly) and (before.partly is None or before.partly.number != partly.number):
        said.append(wording.begins_to_leave(partly.number))
    if before.first_fill < NEARLY_FULL <= facts.first_fill and before.state.evicted == 0 and facts.state.window:
        turn = facts.next_to_go
        said.append(
            wording.leaves_next(100 * facts.state.occupied // facts.state.capacity, turn.number if turn else None)
        )
    return said


def _box(facts: PanelFacts, cells: int, charset: Charset, *, is_wide: bool) -> list[list[Piece]]:
    """Title, map or progress, sum, speed."""
    frame, inner = charset.box, cells - 4
    title = fitting(_titles(facts), cells - 6, charset)
    speed = fitting(_speeds(facts, is_wide=is_wide), cells - 6, charset)
    reading = facts.activity if isinstance(facts.activity, Reading) else None
    middle = _progress(reading, inner, charset) if reading else _map(facts, inner, charset)
    return [
        _edge(frame.top_left, frame.top, frame.top_right, title, cells, at_start=True),
        _between_sides(charset, middle, inner),
        _between_sides(charset, _sum(facts, inner, charset, is_wide=is_wide), inner),
        _edge(frame.bottom_left, frame.bottom, frame.bottom_right, speed, cells, at_start=False),
    ]


def _edge(left: str, line: str, right: str, words: Sequence[Piece], cells: int, *, at_start: bool) -> list[Piece]:
    """The top or bottom of the box, with words set into it."""
    if not words:
        return [Piece(left + line * (cells - 2) + right, _FRAME)]
    rest = line * (cells - 5 - width(words))
    before, after = (line, rest) if at_start else (rest, line)
    return [Piece(f"{left}{before} ", _FRAME), *words, Piece(f" {after}{right}", _FRAME)]


def _between_sides(charset: Charset, pieces: Sequence[Piece], inner: int) -> list[Piece]:
    blank = Piece(" " * (inner - width(pieces)))
    return [Piece(f"{charset.box.mid_left} ", _FRAME), *pieces, blank, Piece(f" {charset.box.mid_right}", _FRAME)]


def _titles(facts: PanelFacts) -> list[list[Piece]]:
    """`turn 9 · forgotten: turns 1–3, 4 (79% left)`, then what is said where that has no room."""
    turn = Piece(f"turn {facts.latest}" if facts.latest else "no turn yet", "bold")
    style = "reverse" if facts.loss and facts.loss.turns else ""
    return [joined((turn, Piece(words, style)), _BETWEEN) for words in (*_forgotten(facts), "")]


def _forgotten(facts: PanelFacts) -> list[str]:
    """What is forgotten, at length and in short; or how near that is."""
    runs, partly, state = facts.forgotten, facts.partly, facts.state
    if runs or partly:
        short = [wording.forgotten_count(sum(map(len, runs)), partly)] if len(runs) > 1 else []
        return [wording.forgotten(runs, partly), *short]
    if state.evicted:
        return [f"forgotten: {state.evicted:,} tokens"]
    if facts.first_fill >= NEARLY_FULL and state.window:
        return [_until_leaving(facts)]
    return ["nothing forgotten yet"] if facts.latest else []


def _until_leaving(facts: PanelFacts) -> str:
    turn = facts.next_to_go
    return wording.until_leaving(facts.state.capacity - facts.state.occupied, turn.number if turn else None)


def _map(facts: PanelFacts, cells: int, charset: Charset) -> list[Piece]:
    """The turn map, its left edge in reverse video just after something has left there."""
    held = turn_map(facts, cells)
    news = cells_of(len(facts.loss.span), facts, len(held.window)) if facts.loss else 0
    pieces = [Piece("S" * held.pinned, _PINNED), Piece(charset.divider, _FRAME)] if held.pinned else []
    for (owner, is_new), run in groupby((owner, place < news) for place, owner in enumerate(held.window)):
        text = sign(owner, free=charset.free) * sum(1 for _ in run)
        pieces.append(Piece(text, f"{_style(owner)} reverse" if is_new else _style(owner)))
    return pieces


def _style(owner: int | None) -> str:
    return "dim" if owner is None or owner == UNOWNED else _TURNS[owner % 2]


def _sum(facts: PanelFacts, cells: int, charset: Charset, *, is_wide: bool) -> list[Piece]:
    """The sum that anyone can check; a wide box has room for what leaves next."""
    state = facts.state
    pinned, window, gone, seen = (f"{n:,}" for n in (state.pinned, state.window, state.evicted, state.seen))
    full = f"{window}/{state.window_capacity:,}"
    long, short = (
        [
            *(Piece("pinned ", _PINNED), Piece(pinned), Piece(" + window ", _WORD), Piece(held)),
            *(Piece(" + forgotten ", _WORD), Piece(gone), Piece(" = seen ", _WORD), Piece(seen)),
        ]
        for held in (full, window)
    )
    bare = [Piece(f"{pinned} + {window} + {gone} = {seen}")]
    total = fitting([long, short, bare], cells, charset)
    return [*total, *_next_to_go(facts, cells - width(total), charset)] if is_wide else total


def _next_to_go(facts: PanelFacts, room: int, charset: Charset) -> list[Piece]:
    turn = facts.next_to_go
    if turn is None:
        return []
    text = charset.spell(steady(turn.user))
    around = len(wording.next_to_go(turn.number, "-")) - 1 + _GAP_CELLS
    words = Piece(wording.next_to_go(turn.number, charset.cut(text, min(_PREVIEW_CELLS, room - around))), _WORD)
    blank = room - width([words])
    return [Piece(" " * blank), words] if blank >= _GAP_CELLS else []


def _speeds(facts: PanelFacts, *, is_wide: bool) -> list[list[Piece]]:
    """`31.4 tok/s · first 0.42 s · KV 1.00 GiB`, less at a time where there is no room."""
    rate, first = _pace(facts)
    tokens = "" if isinstance(facts.activity, Reading) or not facts.activity.tokens else f"{facts.activity.tokens:,}"
    pace = Piece(wording.rate(rate) if rate else "")
    first_token = Piece(f"first {first:.2f} s" if first is not None else "", _WORD)
    kv = Piece(f"KV {wording.memory_size(facts.state.nbytes)}", _WORD)
    prefill = Piece(f"prefill {wording.rate(facts.prefill_rate)}" if facts.prefill_rate else "", _WORD)
    device = Piece(f"device {wording.memory_size(facts.device_bytes)}" if facts.device_bytes else "", _WORD)
    written = Piece(f"{tokens} tokens" if tokens else "", _WORD)
    wide = [(written, pace, first_token, prefill, kv, device)] if is_wide else []
    return [joined(parts, _BETWEEN) for parts in (*wide, (pace, first_token, kv), (pace, kv), (pace,))]


def _pace(facts: PanelFacts) -> tuple[float | None, float | None]:
    """Decode rate and seconds to the first token; while an input is read, it has neither yet."""
    if isinstance(facts.activity, Reading):
        return None, None
    return facts.activity.rate, facts.activity.first_s


def _progress(reading: Reading, cells: int, charset: Charset) -> list[Piece]:
    """`reading 12,400 of 48,210 tokens ▓▓▓░░░ 812 tok/s · 44 s left · Ctrl-C stops`, the bar where there is room."""
    read = Piece(f"{reading.read:,}")
    of = Piece(f" of {reading.total:,}" if reading.total is not None else "")
    rate = Piece(wording.round_rate(reading.rate) if reading.rate else "")
    left = Piece(f"{wording.duration(reading.seconds_left)} left" if reading.seconds_left is not None else "")
    stops = Piece("Ctrl-C stops", _WORD)
    begin = [Piece("reading ", _WORD), read, of]
    tokens = Piece(" tokens", _WORD)
    ends = [joined(parts, _BETWEEN) for parts in ((rate, left, stops), (left, stops), (left,))]
    if reading.total:
        for words, end in (([*begin, tokens], ends[0]), (begin, ends[1])):  # how to stop is worth more than a bar
            room = cells - width([*words, *end]) - 2
            if room >= _BAR_CELLS[0]:
                bar = _bar(reading.read / reading.total, min(room, _BAR_CELLS[1]), charset)
                return fitting([[*words, Piece(" "), *bar, Piece(" "), *end]], cells, charset)
    with_words = [[*begin, tokens, _BETWEEN, *end] for end in ends if end]
    return fitting([*with_words, [*begin, tokens], begin, [read, of], [read]], cells, charset)


def _bar(share: float, cells: int, charset: Charset) -> list[Piece]:
    done = min(cells, int(share * cells))
    return [Piece(charset.done * done, _TURNS[0]), Piece(charset.to_do * (cells - done), _FRAME)]


def _line(facts: PanelFacts, cells: int, charset: Charset) -> list[Piece]:
    """`kv 2,048/2,048 · forgot 1,204 (turns 1–3) · 31 tok/s`, or the progress of what is read."""
    if isinstance(facts.activity, Reading):
        return _progress(facts.activity, cells, charset)
    runs, evicted = facts.forgotten, facts.state.evicted
    news = "reverse" if facts.loss and facts.loss.turns else ""
    count = sum(map(len, runs))
    if runs:
        which = [f" ({wording.turn_runs(runs)})", f" ({count:,} turn{'' if count == 1 else 's'})", ""]
    else:
        which = [f" (part of turn {facts.partly.number})" if facts.partly else "", ""]
    rate = Piece(wording.round_rate(facts.activity.rate) if facts.activity.rate else "")
    forgot = [Piece(f"forgot {evicted:,}{turns}" if evicted else "", news) for turns in which]
    kv = _kv(facts)
    choices = [*((kv, words, rate) for words in forgot), (kv, forgot[-1]), (kv,)]
    return fitting([joined(choice, _BETWEEN) for choice in choices], cells, charset)


def _kv(facts: PanelFacts) -> Piece:
    return Piece(f"kv {facts.state.occupied:,}/{facts.state.capacity:,}")
