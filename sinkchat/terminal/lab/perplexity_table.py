"""How perplexities are drawn: a row a method, with a picture of what they were along the text."""

import math
from collections.abc import Iterator, Sequence

from sinkchat.lab.perplexity.scores import Progress, Result, Subject, perplexity
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.running import width_of
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.table import write_table
from sinkchat.terminal.wording import duration

CELLS, _FEWEST = 32, 14
LEAST_RATIO = 4
"""between the perplexities of the highest and the lowest bar: noise is not drawn large"""

_BARS, _PLAIN_BARS = "·▁▂▃▄▅▆▇█", "-_.:=+*#@"
"""the first one where nothing was scored, the others from low to high"""


def write_results(subject: Subject, results: Sequence[Result], environment: Environment) -> None:
    """Everything that was measured, in columns on stdout."""
    stdout = environment.stdout
    is_unicode = environment.is_unicode(stdout)
    bars = _BARS if is_unicode else _PLAIN_BARS
    for line in _headline(subject, results):
        stdout.write(one_line(line if is_unicode else line.replace("·", "|")) + "\n")
    stdout.write("\n")
    rows = [("method", "perplexity", "of all", "tok/s"), *map(_figures, results)]
    taken = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    pictures = Pictures(subject.tokens, results, bars, cells=max(_FEWEST, min(CELLS, width_of(environment) - taken)))
    drawn = not environment.is_accessible
    if drawn:
        beside = ["along the text", *map(pictures.of, results)]
        rows = [(*row, picture) for row, picture in zip(rows, beside, strict=True)]
    write_table(rows, stdout, right=(1, 2, 3))
    if drawn and pictures.scale:
        stdout.write(f"\nalong the text: {pictures.scale}\n")
    for result in results:
        if result.ended:
            stdout.write(f"{result.method.label} ended at token {result.read:,}: {one_line(result.ended)}\n")


def _headline(subject: Subject, results: Sequence[Result]) -> Iterator[str]:
    weights = subject.dtype if subject.quant in ("none", subject.dtype) else f"{subject.quant}, {subject.dtype}"
    yield f"{subject.model} · {weights} · {subject.device} · {subject.text}, {subject.tokens:,} tokens"
    scored = max((result.scored for result in results), default=0)
    which = "all" if subject.every == 1 else f"every {_ordinal(subject.every)}"
    yield f"perplexity of {scored:,} tokens, {which} from {subject.first:,} on; beside it, of all that were scored"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _figures(result: Result) -> tuple[str, ...]:
    perplexities = in_words(result.perplexity), in_words(result.perplexity_of_all)
    return result.method.label, *perplexities, _speed(result.tokens_per_s)


def _speed(tokens_per_s: float | None) -> str:
    """`3.21`, `270`, `19,297`."""
    if tokens_per_s is None:
        return "-"
    return f"{tokens_per_s:.3g}" if tokens_per_s < 999.5 else f"{tokens_per_s:,.0f}"


def in_words(value: float | None) -> str:
    """`15.70`, `5,158`, `1.2e+13`."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "no number"
    if math.isinf(value):
        return "infinite"
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e7 else f"{value:.1e}"


class Pictures:
    """Rows of bars on one scale, a logarithmic one, for all methods."""

    def __init__(self, tokens: int, results: Sequence[Result], bars: str, *, cells: int = CELLS) -> None:
        self._tokens, self._cells, self._nothing, self._bars = tokens, cells, bars[0], bars[1:]
        heights = [height for result in results for height in self._heights(result) if height is not None]
        self._low = min(heights, default=0.0)
        self._high = max(self._low + math.log(LEAST_RATIO), *heights) if heights else self._low

    @property
    def scale(self) -> str:
        """What the lowest and the highest bar stand for; empty where there is none."""
        if self._high <= self._low:
            return ""
        low, high = (in_words(perplexity(height, 1)) for height in (self._low, self._high))
        return f"{self._bars[0]} is {low}, {self._bars[-1]} is {high}, on a logarithmic scale"

    def of(self, result: Result) -> str:
        """The perplexity of each part of the text, as far as any was scored."""
        return "".join(self._bar(height) for height in self._heights(result)).rstrip(self._nothing)

    def _heights(self, result: Result) -> Iterator[float | None]:
        """The mean loss in each cell."""
        totals, counts = [0.0] * self._cells, [0] * self._cells
        for block in result.blocks:
            cell = min(self._cells - 1, block.start * self._cells // self._tokens)
            totals[cell] += block.total
            counts[cell] += block.count
        for total, count in zip(totals, counts, strict=True):
            yield total / count if count and math.isfinite(total) else None

    def _bar(self, height: float | None) -> str:
        if height is None:
            return self._nothing
        share = (height - self._low) / (self._high - self._low) if self._high > self._low else 0.0
        return self._bars[min(len(self._bars) - 1, int(share * len(self._bars)))]


def in_progress(progress: Progress) -> tuple[str, ...]:
    """How far it is in pieces: `4 sinks + 252 (3 of 4)`, `1,024 of 3,000 tokens`, `7 s left`, what it came to."""
    so_far = progress.so_far
    figures = [
        f"{so_far.method.label} ({progress.number} of {progress.methods})",
        f"{so_far.read:,} of {progress.tokens:,} tokens",
    ]
    if progress.seconds_left is not None:
        figures.append(f"{duration(progress.seconds_left)} left")
    figures.append(f"perplexity {in_words(so_far.perplexity_of_all)}")
    if so_far.tokens_per_s is not None:
        figures.append(f"{_speed(so_far.tokens_per_s)} tok/s")
    return *figures, "Ctrl-C stops"
