"""Text above a footer, in a terminal of characters: what is left is what would be there without the footer."""

import io
import os
import random
from collections.abc import Callable, Iterator

import pyte
import pytest
from frames_program import FAULTS, FOOTER_GLYPHS, Footer, Without, paragraphs, pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkchat.terminal.drawing.frames import FRAME_SECONDS, Frames, Plain, Stage


class Terminal(io.StringIO):
    """A terminal that keeps all its rows. Columns may change; what is there stays where it is."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        super().__init__()
        self.screen = pyte.HistoryScreen(columns, lines, history=100_000)
        self.screen.set_mode(pyte.modes.LNM)  # as a terminal's driver makes of a line feed
        self._parser = pyte.Stream(self.screen)
        self.writes: list[str] = []
        self.is_there = True

    def write(self, text: str) -> int:
        if not self.is_there:
            raise BrokenPipeError
        self.writes.append(text)
        self._parser.feed(text)
        return len(text)

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.screen.columns, self.screen.lines))

    def cells(self) -> list[list[pyte.screens.Char]]:
        """All rows down to the last one with something on it, each cell with its style."""
        screen = self.screen
        rows = [*screen.history.top, *(screen.buffer[number] for number in range(screen.lines))]
        cells = [[row[column] for column in range(screen.columns)] for row in rows]
        while cells and all(cell == screen.default_char for cell in cells[-1]):
            cells.pop()
        return cells

    def text(self) -> list[str]:
        return ["".join(cell.data for cell in row).rstrip() for row in self.cells()]


class Steps:
    """A clock that is looked at once a frame, and each frame is due."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def frames_on(
    terminal: Terminal,
    footer: Callable[[int, int], list[str]] | None = None,
    clock: Callable[[], float] | None = None,
) -> Frames:
    return Frames(terminal, footer or Footer(), size=terminal.size, clock=clock or Steps())


def plainly(text: str, columns: int, lines: int = 24) -> Terminal:
    terminal = Terminal(columns, lines)
    terminal.write(text)
    return terminal


def cut(text: str, most: int) -> Iterator[str]:
    rng = random.Random(5)
    while text:
        size = rng.randrange(1, most)
        yield text[:size]
        text = text[size:]


ANSWER = "\n".join(paragraphs(200)) + "\n"


@pytest.mark.parametrize("columns", [58, 80, 100, 140])
def test_a_long_answer_is_there_once_and_the_footer_is_gone(columns: int) -> None:
    terminal = Terminal(columns)
    with frames_on(terminal) as frames:
        for piece in cut(ANSWER, 300):
            frames.write(piece)
        assert set(FOOTER_GLYPHS) <= set("".join(terminal.text()))
    assert terminal.text() == plainly(ANSWER, columns).text()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_writer_with_a_fault_is_caught(fault: str) -> None:
    terminal = Terminal()
    with Frames(Without(terminal, FAULTS[fault]), Footer(), size=terminal.size, clock=Steps()) as frames:  # type: ignore[arg-type]
        for piece in cut(ANSWER[:4000], 80):
            frames.write(piece)
    assert terminal.text() != plainly(ANSWER[:4000], 80).text()


def test_growing_wider_in_between_changes_no_letter() -> None:
    terminal = Terminal(40)
    with frames_on(terminal) as frames:
        for number, piece in enumerate(cut(ANSWER[:9_000], 40), start=1):
            frames.write(piece)
            if number % 50 == 0:
                terminal.screen.resize(columns=terminal.screen.columns + 7)
    assert "".join("".join(terminal.text()).split()) == "".join(ANSWER[:9_000].split())


def test_growing_narrower_in_between_leaves_no_footer_behind() -> None:
    terminal = Terminal(140)
    with frames_on(terminal) as frames:
        for number, piece in enumerate(cut(ANSWER[:9_000], 40), start=1):
            frames.write(piece)
            if number % 50 == 0:
                terminal.screen.resize(columns=terminal.screen.columns - 6)
    assert not set(FOOTER_GLYPHS) & set("".join(terminal.text()))


LETTERS = st.sampled_from(
    [*"abc  \n\t", "日", "🙂", "é", "e\u0301", "กำ", "\x1b[1mbold\x1b[0m", "\x1b[41mred \x1b[m"]
)


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.lists(LETTERS | st.sampled_from(["x" * 11, "x" * 12]), max_size=9).map("".join), max_size=20),
    columns=st.sampled_from([12, 13]),
    lines=st.sampled_from([4, 5, 9, 17]),
)
def test_any_text_in_any_pieces_looks_as_if_written_plainly(pieces: list[str], columns: int, lines: int) -> None:
    terminal, plain = Terminal(columns, lines), plainly("".join(pieces), columns, lines)
    with frames_on(terminal) as frames:
        for piece in pieces:
            frames.write(piece)
    assert terminal.cells() == plain.cells()
    assert terminal.screen.cursor.x == plain.screen.cursor.x


@pytest.mark.parametrize("seen", range(1, 9))
def test_a_row_that_is_just_full_is_not_overwritten(seen: int) -> None:
    terminal = Terminal(12)
    with frames_on(terminal) as frames:
        for piece in ["x" * (12 - seen), "y" * seen, "z"]:
            frames.write(piece)
    assert terminal.text() == ["x" * (12 - seen) + "y" * seen, "z"]


def test_a_mark_that_comes_late_still_finds_its_letter() -> None:
    terminal = Terminal()
    with frames_on(terminal) as frames:
        for piece in ["ก", "\u0e34", "ข"]:
            frames.write(piece)
        shown = "".join(terminal.writes)
    assert "ก\u0e34" in shown


@pytest.mark.parametrize("cluster", ["👩\u200d💻", "❤\ufe0f", "🇩🇪", "ก\u0e34", "क\u093f"])
@pytest.mark.parametrize("column", range(12))
def test_what_belongs_together_is_written_together(cluster: str, column: int) -> None:
    terminal = Terminal(12)
    with frames_on(terminal) as frames:
        for character in f"{'x' * column}{cluster} and more\n":
            frames.write(character)
        assert any(cluster in write for write in terminal.writes)


def test_an_endless_row_of_unsure_letters_is_not_held_back_for_ever() -> None:
    terminal = Terminal(12)
    with frames_on(terminal) as frames:
        for _ in range(300):
            frames.write("❤\ufe0f")
        assert "".join(terminal.writes).count("❤") > 90


def test_ten_frames_a_second_and_one_write_each() -> None:
    terminal, steps = Terminal(), iter(range(1000))
    with frames_on(terminal, clock=lambda: next(steps) / 64) as frames:
        for _ in range(64):
            frames.write("word ")
        assert len(terminal.writes) == 10
        assert terminal.writes[0].startswith("\x1b[?2026h")
        assert all(write.endswith("\x1b[?2026l") for write in terminal.writes)


def test_the_first_text_is_shown_at_once_and_the_rest_by_a_tick() -> None:
    terminal, now = Terminal(), [100.0]
    with frames_on(terminal, clock=lambda: now[0]) as frames:
        frames.write("one ")
        frames.write("two")
        assert terminal.text()[0] == "one"
        now[0] += 1.01 * FRAME_SECONDS
        frames.tick()
        assert terminal.text()[0] == "one two"


def test_the_footer_changes_without_text_and_only_where_it_must() -> None:
    terminal, rows = Terminal(), ["──────── a", "──────── b"]
    with frames_on(terminal, lambda columns, lines: list(rows)) as frames:
        frames.tick()
        rows[1] = "c"
        frames.tick()
        assert terminal.text() == ["", "──────── a", "c"]
        assert "a" not in terminal.writes[-1]
        frames.tick()
        assert len(terminal.writes) == 2


ROW = st.lists(
    st.sampled_from([*"aab│─", "日", "❤", "e\u0301", "\x1b[1mx\x1b[0m", "\x1b[1mxy\x1b[0m", "\x1b[2;31mz\x1b[m"]),
    max_size=12,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(footers=st.lists(st.tuples(ROW, ROW), min_size=2, max_size=5))
def test_a_changed_footer_looks_as_if_drawn_whole(footers: list[tuple[str, str]]) -> None:
    drawn = []
    for shown in (footers, footers[-1:]):
        terminal, rows = Terminal(30), iter(shown)
        with frames_on(terminal, lambda columns, lines, rows=rows: list(next(rows))) as frames:  # type: ignore[misc]
            for _ in shown:
                frames.tick()
            drawn.append(terminal.cells())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("lines", "rows"), [(4, 0), (5, 1), (8, 2), (15, 3), (16, 4), (24, 4)])
def test_a_low_screen_has_a_low_footer(lines: int, rows: int) -> None:
    terminal = Terminal(80, lines)
    with frames_on(terminal) as frames:
        frames.write("text")
        assert len(terminal.text()) == 1 + rows


def test_a_footer_stays_away_until_the_size_has_settled() -> None:
    terminal, now = Terminal(), [100.0]
    with frames_on(terminal, clock=lambda: now[0]) as frames:
        frames.write("text")
        shown = [len(terminal.text())]
        terminal.screen.resize(columns=70)
        for _ in range(7):
            now[0] += 1.01 * FRAME_SECONDS
            frames.tick()
            shown.append(len(terminal.text()))
    assert shown == [5, 1, 1, 1, 1, 1, 5, 5]


def test_a_terminal_that_does_not_tell_its_size_has_80_columns() -> None:
    def size() -> os.terminal_size:
        raise OSError

    asked: list[tuple[int, int]] = []

    def footer(columns: int, lines: int) -> list[str]:
        asked.append((columns, lines))
        return []

    with Frames(Terminal(), footer, size=size, clock=Steps()) as frames:
        frames.write("text")
    with Frames(Terminal(), footer, size=lambda: os.terminal_size((0, 0)), clock=Steps()) as frames:
        frames.write("text")
    assert asked == [(80, 24), (80, 24)]


def break_off(frames: Frames, terminal: Terminal, *, goes_away: bool) -> None:
    with frames:
        frames.write("\x1b[1mone ")
        frames.write("two")
        terminal.is_there = not goes_away
        raise ZeroDivisionError


def test_after_an_exception_text_cursor_and_attributes_are_whole() -> None:
    terminal = Terminal()
    with pytest.raises(ZeroDivisionError):
        break_off(frames_on(terminal, clock=lambda: 1.0), terminal, goes_away=False)
    screen = terminal.screen
    assert terminal.text() == ["one two"]
    assert (screen.cursor.x, screen.cursor.y, screen.cursor.hidden) == (7, 0, False)
    assert screen.cursor.attrs == screen.default_char
    assert pyte.modes.DECAWM in screen.mode


def test_a_footer_that_fails_takes_no_text_with_it() -> None:
    terminal = Terminal()
    frames = frames_on(terminal, lambda columns, lines: [str(1 // 0)])
    with pytest.raises(ZeroDivisionError), frames:
        frames.write("text")
    assert terminal.text() == ["text"]


def test_a_terminal_that_has_gone_does_not_hide_what_happened() -> None:
    terminal = Terminal()
    with pytest.raises(ZeroDivisionError):
        break_off(frames_on(terminal), terminal, goes_away=True)


def test_a_terminal_that_has_gone_is_noticed_while_writing() -> None:
    terminal = Terminal()
    terminal.is_there = False
    with pytest.raises(BrokenPipeError):
        frames_on(terminal).write("text")


def test_pausing_twice_changes_nothing_and_writing_goes_on_where_text_ended() -> None:
    terminal = Terminal()
    with frames_on(terminal) as frames:
        frames.write("one")
        frames.pause()
        written = len(terminal.writes)
        frames.pause()
        assert len(terminal.writes) == written
        frames.write(" two")
        assert terminal.text()[0] == "one two"


def test_after_others_have_written_text_begins_on_their_new_line() -> None:
    terminal = Terminal(12)
    with frames_on(terminal) as frames:
        frames.write("x" * 7)
        frames.pause()
        terminal.write("\n[1]+ Stopped\n")
        frames.begin_line()
        frames.write("y" * 7)
        frames.write("z" * 7)
    assert terminal.text() == ["x" * 7, "[1]+ Stopped", "yyyyyyyzzzzz", "zz"]


def test_a_token_costs_under_150_bytes() -> None:
    """Thirty tokens of 4.5 characters a second above a drawn panel whose numbers all change with each token."""
    rng, terminal, seen, now = random.Random(1), io.BytesIO(), [3_000], [0.0]
    dim, reset = "\x1b[2m", "\x1b[0m"

    def footer(columns: int, lines: int) -> list[str]:
        title = f" turn 9 · forgotten: turns 1–3, 4 ({100 - seen[0] // 30 % 100}% left) "
        cells = "".join(str((seen[0] // 27 * 27 + cell * 27) // 600 % 10) for cell in range(columns - 7))
        total = f" pinned 46 + window 2,002/2,002 + forgotten {seen[0] - 2048:,} = seen {seen[0]:,}"
        speed = f" {30 + rng.random():.1f} tok/s · first 0.42 s · KV 1.00 GiB "
        return [
            f"{dim}╭─{reset}{title}{dim}{'─' * (columns - 4 - len(title))}╮{reset}",
            f"{dim}│{reset} \x1b[1mSS{reset}{dim}│{reset}{cells}{dim} │{reset}",
            f"{dim}│{reset}{total:<{columns - 3}}{dim}│{reset}",
            f"{dim}╰{'─' * (columns - 4 - len(speed))}{reset}{speed}{dim}─╯{reset}",
        ]

    stream = io.TextIOWrapper(terminal, encoding="utf-8")
    tokens = 3_000
    with Frames(stream, footer, size=lambda: os.terminal_size((80, 24)), clock=lambda: now[0]) as frames:
        for number in range(tokens):
            frames.write("\n\n" if number % 90 == 89 else " " + "abcde"[: rng.choice([2, 3, 4, 5])])
            seen[0] += 1
            now[0] += rng.uniform(0.8, 1.2) / 30
    frames_drawn = len(terminal.getvalue().split(b"\x1b[?2026h")) - 1
    redrawn_whole = frames_drawn * len("".join(footer(80, 24)).encode()) / tokens
    assert len(terminal.getvalue()) / tokens < 150 < redrawn_whole


@pytest.mark.parametrize("stage", ["frames", "plain"])
def test_either_stage_shows_the_same_text(stage: str) -> None:
    terminal = Terminal()
    chosen: Stage = frames_on(terminal) if stage == "frames" else Plain(terminal)
    with chosen:
        for piece in pieces("one\ntwo three\n"):
            chosen.write(piece)
            chosen.tick()
        chosen.pause()
        chosen.begin_line()
        chosen.write("four")
    assert terminal.text() == ["one", "two three", "four"]


@pytest.mark.parametrize("stage", ["frames", "plain"])
def test_stepping_aside_ends_a_line_that_has_begun(stage: str) -> None:
    terminal = Terminal(12)
    chosen: Stage = frames_on(terminal) if stage == "frames" else Plain(terminal)
    with chosen:
        for text in ["one", "\x1b[1mtwo\n\x1b[0m", "", "x" * 12]:
            chosen.write(text)
            chosen.step_aside()
            chosen.step_aside()
            terminal.write("note\n")
    assert terminal.text() == ["one", "note", "two", "note", "note", "x" * 12, "note"]


def test_the_plain_stage_writes_text_and_nothing_else() -> None:
    terminal = Terminal()
    with Plain(terminal) as stage:
        for piece in ["one ", "two"]:
            stage.write(piece)
    assert terminal.writes == ["one ", "two"]
