"""The picture of the sink in a terminal: layers down, heads across, the brighter the more the first tokens get.

Every cell carries its number too, so that nothing depends on colour: a percentage where cells are wide enough, else
the tenths. At 80 columns 18 heads have percentages and 56 a cell each; of more, neighbours share one.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.text import Text

from sinkchat.lab.attention.shares import SHALLOW, ByHead, Report, SinksEvicted, mean, mean_beyond
from sinkchat.terminal.environment import ColorChoice, Environment
from sinkchat.terminal.lab.running import width_of
from sinkchat.terminal.sanitize import one_line

_RAMP = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
"""Viridis: as bright as it is much, for all eyes and on grey paper."""

_LABEL, _COLUMN = 6, 9
_WIDEST_CELL = 5
_NAME, _BAR = 18, 20


def write_report(report: Report, environment: Environment, color: ColorChoice = "auto") -> None:
    """The map, what it comes to, and what evicting the sinks does."""
    stdout = environment.stdout
    colored = environment.is_coloured(stdout, color)
    width = min(width_of(environment), 160)
    page = io.StringIO()  # Rich would leave the program by itself where a reader has gone
    console = Console(
        file=page,
        width=width,
        force_terminal=colored,
        color_system=_colors(environment.variables) if colored else None,
        no_color=not colored,
        legacy_windows=False,
    )
    for line in _report_lines(report, width, bar="█" if environment.is_unicode(stdout) else "#"):
        console.print(line, soft_wrap=True)
    stdout.write(page.getvalue())


def _colors(variables: Mapping[str, str]) -> Literal["truecolor", "256", "standard"]:
    """How many the terminal has, by what it says of itself."""
    if variables.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256color" in variables.get("TERM", "") else "standard"


def _report_lines(report: Report, width: int, bar: str) -> Iterator[Text]:
    shares = report.shares
    first = "token 0" if shares.sinks == 1 else f"the first {shares.sinks} tokens"
    yield Text(f"{one_line(report.model)}: how much of the attention goes to {first}, in %")
    yield Text(
        f"{shares.passages:,} passage{'' if shares.passages == 1 else 's'} of {shares.length:,} tokens of "
        f"{one_line(report.text)}; "
        f"tokens {shares.length // 2:,} to {shares.length - 1:,} look back"
    )
    yield Text()
    columns = [("mean", shares.first), ("token 0", shares.token_0)]
    if shares.has_learned_sinks:
        columns.append(("learned", shares.learned))
    yield from heat_map(shares.first, columns, width)
    if shares.has_learned_sinks:
        yield Text()
        yield Text("how much goes to the sink that each head has learned, in %")
        yield Text()
        yield from heat_map(shares.learned, [("mean", shares.learned)], width)
    yield Text()
    yield from _sums(report)
    if report.eviction is not None:
        yield Text()
        yield from _eviction(report.eviction, bar)
    for note in report.notes:
        yield Text(f"note: {one_line(note)}")


def heat_map(shares: ByHead, columns: Sequence[tuple[str, ByHead]], width: int) -> Iterator[Text]:
    """A row a layer: a cell a head, then the mean over heads of each of `columns`."""
    heads = max(map(len, shares))
    room = width - _LABEL - _COLUMN * len(columns)
    together = -(-heads // max(1, room))
    cells = -(-heads // together)
    cell = max(1, min(_WIDEST_CELL, room // cells))
    title = f"heads 0 to {heads - 1}" + (f", {together} a cell" if together > 1 else "")
    across = max(cells * cell, len(title))
    yield Text(f"layer {title:<{across}}" + "".join(f"{name:>{_COLUMN}}" for name, _ in columns))
    for index, layer in enumerate(shares):
        line = Text(f"{index:>5} ")
        for start in range(0, len(layer), together):
            line.append_text(_cell(mean(layer[start : start + together]), cell))
        line.append(" " * (across - len(line) + _LABEL))
        for _, column in columns:
            line.append(f"{_percent(mean(column[index])):>{_COLUMN}}")
        yield line
    yield _legend(cell)


def _cell(share: float, width: int) -> Text:
    tenths = min(9, int(share * 10 + 1e-9))
    number = f"{share * 100:.0f}" if width > 2 else str(tenths)
    return Text(f"{number:^{width}}" if width > 3 else number.rjust(width), style=_style(tenths))


def _style(tenths: int) -> str:
    return f"#{'ffffff' if tenths < 5 else '000000'} on #{_RAMP[tenths]}"


def _legend(cell: int) -> Text:
    legend = Text(" " * _LABEL)
    for tenths in range(10):
        legend.append(f" {tenths * 10:>2} " if cell > 2 else f" {tenths} ", style=_style(tenths))
    return legend.append(" and more, of 100" if cell > 2 else " tenths and more")


def _sums(report: Report) -> Iterator[Text]:
    shares = report.shares
    yield Text(f"{_deep(len(shares.first))}, mean over heads:")
    rows = [(f"first {shares.sinks}", shares.first, shares.even), ("token 0", shares.token_0, shares.even_0)]
    for name, share, even in rows[shares.sinks == 1 :]:
        yield Text(f"  {name:<13}{_percent(mean_beyond(share)):>7}   even attention: {_percent(even)}")
    if shares.has_learned_sinks:
        yield Text(f"  {'learned sink':<13}{_percent(mean_beyond(shares.learned)):>7}")


def _eviction(found: SinksEvicted, bar: str) -> Iterator[Text]:
    kept, evicted = found.kept, found.evicted
    window = len(kept.window[0])
    yield Text(
        f"One query over one cache: token {found.token:,} looks at {len(kept.sinks[0])} sinks and "
        f"{window:,} tokens of the window;"
    )
    yield Text(f"then the sinks are evicted, and it looks again. Mean of {_deep(len(kept.window))}.")
    yield Text()
    yield Text(f"{'':<{_NAME}}{'with sinks':<{_BAR + 9}}without")
    for name, before, after in found.pieces():
        yield Text(f"{name:<{_NAME}}{_bar(before, bar):<{_BAR + 9}}{_bar(after, bar)}".rstrip())
    yield Text()
    words = [
        f"{one_line(repr(word))} {_percent(d.probability)}"
        for word, d in zip(found.words, (kept, evicted), strict=True)
    ]
    yield Text(f"{'likeliest next':<{_NAME}}{words[0]:<{_BAR + 9}}{words[1]}")
    yield Text(f"What comes next differs by {found.divergence:.2f} nats (Kullback-Leibler).")


def _deep(layers: int) -> str:
    if layers <= SHALLOW:
        return "all layers"
    return f"layers {SHALLOW} to {layers - 1}" if layers > SHALLOW + 1 else f"layer {SHALLOW}"


def _bar(share: float | None, bar: str) -> str:
    if share is None:
        return "evicted"
    return f"{_percent(share):>7} {bar * round(share * _BAR)}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
