"""Numbers become sentences here, and nowhere else.

Each function takes plain values and gives one line without colour, so the same words stand in the
scrollback, in a note on stderr and in a test. The sum of the memory line is exact: anyone can check it.
"""

from collections.abc import Iterable, Sequence

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import Evicted, PromptProgress, TurnEnded, TurnRest
from sinkchat.terminal.conversation import Conversation, TurnLike


def memory(state: CacheState) -> str:
    """`pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252`."""
    window = f"{state.window:,}/{state.window_capacity:,}"
    return f"pinned {state.pinned:,} + window {window} + forgotten {state.evicted:,} = seen {state.seen:,}"


def memory_after(turn: TurnEnded) -> str:
    """The memory line after an answer: the sum, then how fast it came."""
    return f"{memory(turn.state)} · {turn.tokens_per_s:.1f} tok/s · first {turn.ttft_s:.2f} s"


def turn_numbers(numbers: Iterable[int]) -> str:
    """`turn 3`, or `turns 1–3, 5`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    ranges = ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in runs)
    alone = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"turn {ranges}" if alone else f"turns {ranges}"


def percent_left(left: int, tokens: int) -> str:
    """`79 % left`: never 0 % while something is there, never 100 % once something is not."""
    return f"{max(1, min(99, round(100 * left / tokens)))} % left"


def left_memory(evictions: Sequence[Evicted]) -> str:
    """`turns 1–2 have left memory (633 tokens)`, for everything that left in one exchange, or nothing."""
    tokens = sum(len(eviction.span) for eviction in evictions)
    gone = {number for eviction in evictions for number in eviction.gone}
    partly = evictions[-1].partly if evictions else None
    if gone:
        verb = "has" if len(gone) == 1 else "have"
        rest = f" · {_rest(partly)}" if partly else ""
        return f"{turn_numbers(gone)} {verb} left memory ({_tokens(tokens)}){rest}"
    if partly:
        return f"{_rest(partly)} is leaving memory ({_tokens(tokens)})"
    return f"{_tokens(tokens)} left memory" if tokens else ""


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _rest(partly: TurnRest) -> str:
    return f"turn {partly.turn} ({percent_left(partly.left, partly.tokens)})"


def too_long(tokens: int, state: CacheState) -> str:
    """`input is 48,210 tokens, memory holds 2,048: the answer sees only the last 2,002 (4 %)`."""
    share = 100 * state.window / tokens
    shown = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
    return (
        f"input is {tokens:,} tokens, memory holds {state.capacity:,}: "
        f"the answer sees only the last {state.window:,} ({shown} %)"
    )


def cut(turn: TurnEnded) -> str:
    """What to say of an answer that was not finished, or nothing."""
    if turn.finish == "length":
        return f"the answer was cut at {turn.completion_tokens:,} tokens; max-tokens sets the limit"
    return "stopped: what was said so far is kept" if turn.finish == "interrupt" else ""


def reading(progress: PromptProgress) -> str:
    """`reading 12,400 of 48,210 tokens · 812 tok/s · Ctrl-C stops`."""
    total = f" of {progress.total:,}" if progress.total is not None else ""
    rate = f" · {progress.read / progress.seconds:,.0f} tok/s" if progress.seconds > 0 else ""
    return f"reading {progress.read:,}{total} tokens{rate} · Ctrl-C stops"


def start(conversation: Conversation) -> str:
    """What is loaded and how much it will remember: `SmolLM2 · float32 · cpu · cache 2,048 tokens, 46 pinned`."""
    card = conversation.card
    weights = card.dtype if card.quant in ("none", card.dtype) else f"{card.quant}, {card.dtype}"
    cache = f"cache {conversation.state.capacity:,} tokens, {conversation.pinned:,} pinned"
    return f"{card.name} · {weights} · {card.device} · {cache}"


def what_is_held(turns: Sequence[TurnLike]) -> list[str]:
    """Which turns are forgotten, half forgotten and held, a line each."""
    forgotten = [turn.number for turn in turns if turn.left == 0]
    held = [turn.number for turn in turns if turn.left == turn.tokens > 0]
    lines = [f"forgotten: {turn_numbers(forgotten)}"] if forgotten else []
    lines += [
        f"in part: turn {turn.number} ({percent_left(turn.left, turn.tokens)})"
        for turn in turns
        if 0 < turn.left < turn.tokens
    ]
    return lines + ([f"held: {turn_numbers(held)}"] if held else [])


def file_size(nbytes: int) -> str:
    """`1.00 GiB`, `22.5 MiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
