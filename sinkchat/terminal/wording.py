"""Numbers become sentences here, and nowhere else.

Each function takes plain values and gives one line without colour, so the same words stand in the
scrollback, in a note on stderr and in a test. The sum of the memory line is exact: anyone can check it.
"""

from collections.abc import Iterable, Sequence

from sinkchat.cache.policy import CacheState
from sinkchat.chat.events import PromptProgress, TurnEnded, TurnRest
from sinkchat.terminal.conversation import Conversation, TurnLike
from sinkchat.terminal.left import Left


def memory(state: CacheState) -> str:
    """`pinned 46 + window 2,002/2,002 + forgotten 1,204 = seen 3,252`."""
    window = f"{state.window:,}/{state.window_capacity:,}"
    return f"pinned {state.pinned:,} + window {window} + forgotten {state.evicted:,} = seen {state.seen:,}"


def memory_after(turn: TurnEnded) -> str:
    """The memory line after an answer: the sum, then how fast it came."""
    return f"{memory(turn.state)} · {turn.tokens_per_s:.1f} tok/s · first {turn.ttft_s:.2f} s"


def turn_numbers(numbers: Iterable[int]) -> str:
    """`turn 3`, or `turns 1–3, 5`."""
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return turn_runs(runs)


def turn_runs(runs: Sequence[range]) -> str:
    """What `turn_numbers` says, of numbers that are runs already: a million forgotten turns are one."""
    return f"{'turn' if sum(map(len, runs)) == 1 else 'turns'} {_runs(runs)}"


def _runs(runs: Sequence[range]) -> str:
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def percent_left(left: int, tokens: int) -> str:
    """`79 % left`: never 0 % while something is there, never 100 % once something is not."""
    return f"{_percent(left, tokens)} % left"


def _percent(left: int, tokens: int) -> int:
    return max(1, min(99, round(100 * left / tokens)))


def left_memory(left: Left) -> str:
    """`turns 1–2 have left memory (633 tokens)`, for everything that left in one exchange, or nothing."""
    if left.turns:
        verb = "has" if sum(map(len, left.turns)) == 1 else "have"
        rest = f" · {_rest(left.partly)}" if left.partly else ""
        gone = turn_runs(sorted(left.turns, key=lambda run: run.start))
        return f"{gone} {verb} left memory ({_tokens(left.tokens)}){rest}"
    if left.partly:
        return f"{_rest(left.partly)} is leaving memory ({_tokens(left.tokens)})"
    return f"{_tokens(left.tokens)} left memory" if left.tokens else ""


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
    """Which turns are forgotten, half forgotten, held and pinned, a line each."""
    forgotten = [turn.number for turn in turns if turn.left == 0]
    pinned = [turn.number for turn in turns if turn.is_pinned]
    held = [turn.number for turn in turns if turn.left == turn.tokens > 0 and not turn.is_pinned]
    lines = [f"pinned: {turn_numbers(pinned)}"] if pinned else []
    lines += [f"forgotten: {turn_numbers(forgotten)}"] if forgotten else []
    lines += [
        f"in part: turn {turn.number} ({percent_left(turn.left, turn.tokens)})"
        for turn in turns
        if 0 < turn.left < turn.tokens
    ]
    return lines + ([f"held: {turn_numbers(held)}"] if held else [])


def memory_size(nbytes: int) -> str:
    """`1.00 GiB`, `22.5 MiB`, `512 MiB`: three digits, so that what follows a growing number seldom moves."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            amount = nbytes / size
            return f"{amount:.{2 if amount < 9.995 else 1 if amount < 99.95 else 0}f} {unit}"
    return f"{nbytes} bytes"


def forgotten(runs: Sequence[range], partly: TurnLike | None = None) -> str:
    """`forgotten: turns 1–3, 4 (79% left)`, of turns that are gone and the one that is leaving."""
    those = "turn" if sum(map(len, runs)) + (partly is not None) == 1 else "turns"
    return f"forgotten: {those} {', '.join([*([_runs(runs)] if runs else []), *_leaving(partly)])}"


def forgotten_count(count: int, partly: TurnLike | None = None) -> str:
    """`forgotten: 812 turns, 813 (79% left)`, where the numbers have no room."""
    return f"forgotten: {', '.join([f'{count:,} turns', *_leaving(partly)])}"


def _leaving(partly: TurnLike | None) -> list[str]:
    return [f"{partly.number} ({_percent(partly.left, partly.tokens)}% left)"] if partly else []


def next_to_go(number: int, text: str) -> str:
    """`next to go: turn 4, "how do I ..."`."""
    return f'next to go: turn {number}, "{text}"' if text else f"next to go: turn {number}"


def until_leaving(free: int, number: int | None) -> str:
    """`about 200 tokens until turn 1 starts to leave`; without a turn, it is the opening that does."""
    what = "the opening" if number is None else f"turn {number}"
    if not free:
        return f"{what} leaves next"
    near = 10 * round(free / 10) if free >= 20 else free
    return f"about {near:,} token{'' if near == 1 else 's'} until {what} starts to leave"


def duration(seconds: float) -> str:
    """`44 s`, `3 min`, `2.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_970 else f"{seconds / 3600:.1f} h"


def rate(tokens_per_s: float) -> str:
    """`31.4 tok/s`, `812 tok/s`."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 99.95 else 1}f} tok/s"


def round_rate(tokens_per_s: float) -> str:
    """`31 tok/s`, where there is little room; `3.1 tok/s`, since of so few a tenth matters."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 9.95 else 1}f} tok/s"


def now_forgotten(numbers: Iterable[int]) -> str:
    """`Memory: turn 3 is now forgotten.`, to be read aloud."""
    named = turn_numbers(numbers).replace("–", " to ")
    return f"Memory: {named} {'is' if named.startswith('turn ') else 'are'} now forgotten."


def begins_to_leave(number: int) -> str:
    """`Memory: turn 4 begins to leave.`"""
    return f"Memory: turn {number} begins to leave."


def leaves_next(percent: int, number: int | None) -> str:
    """`Memory: 90 percent full, turn 1 leaves next.`"""
    return f"Memory: {percent} percent full, {'the opening' if number is None else f'turn {number}'} leaves next."
