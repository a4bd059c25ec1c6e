"""Writes a long answer above a footer, for the tests that look at it through a real terminal.

Arguments: how many paragraphs, of which `WORDS`, a name of `FAULTS` or `none`, then columns and lines to resize to,
in turn, every fiftieth frame; `now` among them does not wait for the terminal to have followed, and lets time pass.
Inside tmux only, on a screen that is full: with blank rows below, tmux may lose the cursor when rows wrap. Ends with
the line `END`. With `typing` as its only argument: six slow paragraphs with the keyboard held, then a prompt for one
line.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count, cycle
from typing import TextIO

from sinkchat.terminal.drawing.frames import Frames

FRAMES_BETWEEN_RESIZES = 50


WORDS = {
    "plain": ["sink", "window", "of", "a", "attention", "日本語", "é", "naïve", "🙂", "x" * 29],
    "all": ["sink", "of", "日本語", "слова", "❤️", "🇩🇪", "👍🏽", "1️⃣", "กำลังทดสอบ", "हिन्दी", "की", "שלום", "한국어"],
}
"""`all`: with those about whose width terminals disagree"""


def paragraphs(number: int, words: str = "plain") -> list[str]:
    """Lines of 0 to 40 words, each with its number in front."""
    rng = random.Random(7)
    return [" ".join([f"<{n}>", *rng.choices(WORDS[words], k=rng.randrange(40))]) for n in range(number)]


def pieces(text: str) -> Iterator[str]:
    """The text as tokens come: one to nine characters."""
    rng = random.Random(3)
    start = 0
    while start < len(text):
        size = rng.randrange(1, 10)
        yield text[start : start + size]
        start += size


class Footer:
    """Four rows that are never the same twice, drawn with glyphs that no text has."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, columns: int, lines: int) -> list[str]:
        number = next(self._numbers)
        wide = columns - 3
        inner = [f"│{text:<{wide}}│" for text in (f" {number}", f" {number // 7} ▓▓▓")]
        rows = [f"╭{'─' * wide}╮", *inner, f"╰{'─' * wide}╯"]
        return [f"\x1b[2m{row}\x1b[0m" for row in rows]


FOOTER_GLYPHS = "╭─╮│▓╰╯"


class Without:
    """A stream that leaves one sequence out: a writer that must be caught."""

    def __init__(self, stream: TextIO, sequence: str) -> None:
        self._stream = stream
        self._sequence = sequence

    def write(self, text: str) -> None:
        self._stream.write(text.replace(self._sequence, ""))

    def flush(self) -> None:
        self._stream.flush()


FAULTS = {"unerased": "\x1b[J", "without room": "\x1bD", "unsaved": "\x1b7"}


def resize(columns: int, lines: int, *, waits: bool) -> None:
    command = ["tmux", "resize-window", "-t", os.environ["TMUX_PANE"], "-x", str(columns), "-y", str(lines)]
    if not waits:
        subprocess.Popen(command)
        return
    subprocess.run(command, check=True)
    while os.get_terminal_size() != (columns, lines):
        time.sleep(0.005)


def main(number: str, words: str, fault: str, *sizes: str) -> None:
    waits = "now" not in sizes
    numbers = [int(size) for size in sizes if size != "now"]
    turns = cycle(list(zip(numbers[::2], numbers[1::2], strict=True)))
    stream = Without(sys.stdout, FAULTS[fault]) if fault in FAULTS else sys.stdout
    steps = count()
    clock = (lambda: float(next(steps))) if waits else time.monotonic  # each piece is a frame, or ten a second
    print("\n" * 60, flush=True)
    with Frames(stream, Footer(), size=os.get_terminal_size, clock=clock) as frames:
        for frame, piece in enumerate(pieces("\n".join(paragraphs(int(number), words)) + "\n"), start=1):
            frames.write(piece)
            if numbers and frame % FRAMES_BETWEEN_RESIZES == 0:
                resize(*next(turns), waits=waits)
            if not waits:
                time.sleep(0.01)
    print("END", flush=True)
    time.sleep(600)


def answer_while_someone_types() -> None:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import create_input

    from sinkchat.terminal.drawing.suspension import Suspension
    from sinkchat.terminal.line.typeahead import typeahead_on
    from sinkchat.terminal.signals import leaving_on_signals

    keys_from = create_input()
    with leaving_on_signals():
        with (
            Frames(sys.stdout, Footer(), size=os.get_terminal_size, clock=time.monotonic) as frames,
            typeahead_on(keys_from, sys.stdout, on_f2=lambda: frames.write("<F2>")) as typeahead,
            Suspension(frames, typeahead) as suspension,
        ):
            for piece in pieces("\n".join(paragraphs(6)) + "\n"):
                frames.write(piece)
                typeahead.poll()
                suspension.poll()
                time.sleep(0.01)
        print("heard", repr(PromptSession(input=keys_from).prompt("> ")))


if __name__ == "__main__":
    if sys.argv[1:] == ["typing"]:
        answer_while_someone_types()
    else:
        main(*sys.argv[1:])
