"""The sentences about memory: their exact words, and sums that add up."""

import pytest

from sinkchat.cache.policy import CacheState, Span
from sinkchat.chat.events import Evicted, PromptProgress, TurnEnded, TurnRest
from sinkchat.terminal import wording
from sinkchat.terminal.left import Left

FULL = CacheState(seen=3_252, evicted=1_204, pinned=46, capacity=2_048, nbytes=2**30)


def evicted(start: int, stop: int, *gone: int, partly: TurnRest | None = None) -> Evicted:
    return Evicted(Span(start, stop), gone, partly, FULL)


def test_the_memory_line() -> None:
    turn = TurnEnded(9, "text", "stop", 10, 20, ttft_s=0.42, tokens_per_s=31.4, state=FULL)
    assert wording.memory_after(turn) == (
        "pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252 · 31.4 tok/s · first 0.42 s"
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "turn 3"),
        ([1, 2], "turns 1–2"),
        ([1, 2, 3, 5], "turns 1–3, 5"),
        ([5, 1], "turns 1, 5"),
        ([2, 1, 9, 8], "turns 1–2, 8–9"),
    ],
)
def test_turns_are_named_in_ranges(numbers: list[int], text: str) -> None:
    assert wording.turn_numbers(numbers) == text


@pytest.mark.parametrize(
    ("evictions", "text"),
    [
        ([], ""),
        ([evicted(46, 346, 1), evicted(346, 679, 2)], "turns 1–2 have left memory (633 tokens)"),
        ([evicted(46, 166, 1)], "turn 1 has left memory (120 tokens)"),
        (
            [evicted(46, 66, 3), evicted(66, 87, partly=TurnRest(4, 100, 79))],
            "turn 3 has left memory (41 tokens) · turn 4 (79 % left)",
        ),
        ([evicted(46, 56, partly=TurnRest(4, 100, 90))], "turn 4 (90 % left) is leaving memory (10 tokens)"),
        ([evicted(46, 56)], "10 tokens left memory"),
    ],
)
def test_what_has_left_memory(evictions: list[Evicted], text: str) -> None:
    left = Left()
    for eviction in evictions:
        left.add(eviction)
    assert wording.left_memory(left) == text


def test_what_has_left_is_a_few_numbers_however_much_it_is() -> None:
    left = Left()
    for turn in [*range(10, 100_000), 3, 4, 10]:
        left.add(evicted(46, 56, turn))
    assert left.turns == [range(10, 100_000), range(3, 5)]
    assert wording.left_memory(left) == "turns 3–4, 10–99999 have left memory (999,930 tokens)"


@pytest.mark.parametrize(
    ("left", "tokens", "text"),
    [(79, 100, "79 % left"), (1, 10_000, "1 % left"), (9_999, 10_000, "99 % left")],
)
def test_a_part_is_never_all_nor_nothing(left: int, tokens: int, text: str) -> None:
    assert wording.percent_left(left, tokens) == text


@pytest.mark.parametrize(("tokens", "share"), [(48_210, "4"), (2_002_000, "0.1"), (2_500, "80")])
def test_what_an_answer_sees_of_a_long_input(tokens: int, share: str) -> None:
    assert wording.too_long(tokens, FULL) == (
        f"input is {tokens:,} tokens, memory holds 2,048: the answer sees only the last 2,002 ({share} %)"
    )


def test_reading() -> None:
    progress = PromptProgress(12_400, 48_210, 12_400 / 812, FULL)
    assert wording.reading(progress) == "reading 12,400 of 48,210 tokens · 812 tok/s · Ctrl-C stops"
    assert wording.reading(PromptProgress(5, None, 0.0, FULL)) == "reading 5 tokens · Ctrl-C stops"
