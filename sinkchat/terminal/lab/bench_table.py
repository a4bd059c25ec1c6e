"""How a bench is drawn: a column a cache size, a row a figure, within 80 cells.

Every figure stands with the least and the most of its rounds, and a ratio with what we want of it.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence

from sinkchat.lab.bench.report import (
    OURS,
    REACHED_ON_GPU,
    Ratio,
    Report,
    Roofline,
    SizeReport,
    Subject,
)
from sinkchat.lab.bench.timing import Spread
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.table import write_table
from sinkchat.terminal.wording import memory_size

WIDTH = 80
COLUMNS = 3
"""cache sizes that stand side by side, where their figures have room"""
_PLAIN = str.maketrans({"≥": ">=", "≤": "<=", "–": "-"})

_Cell = Callable[[SizeReport], str]


def write_report(report: Report, environment: Environment) -> None:
    """Everything that was measured."""
    lines = io.StringIO()
    lines.write(f"{_headline(report.subject)}\n")
    if report.copy_bandwidth is not None:
        lines.write(
            f"copies move {_gigabytes(report.copy_bandwidth)} GB/s; in brackets least and most of all rounds\n"
        )
    for note in report.notes:
        lines.write(f"note: {one_line(note)}\n")
    tables = (_tables(report, columns) for columns in range(COLUMNS, 0, -1))
    fitting = (text for text in tables if max(map(len, text.splitlines())) <= WIDTH)
    lines.write(next(fitting, "") or _tables(report, 1))
    _write(lines.getvalue(), environment)


def _tables(report: Report, columns: int) -> str:
    """All cache sizes, `columns` of them side by side."""
    text = io.StringIO()
    for first in range(0, len(report.sizes), columns):
        sizes = report.sizes[first : first + columns]
        text.write("\n")
        write_table(list(_rows(report, sizes)), text, right=range(1, len(sizes) + 1))
    return text.getvalue()


def write_expected(
    subject: Subject, bandwidth: Spread, rooflines: Mapping[int, Roofline], environment: Environment
) -> None:
    """What a bandwidth allows, for each cache size."""
    lines = io.StringIO()
    lines.write(f"{_headline(subject)}\n")
    lines.write(f"at {_gigabytes(bandwidth)} GB/s, for each token, with a full cache\n\n")
    rows = [("cache", "weights", "keys, values", "together", "at most")]
    for size, one in rooflines.items():
        weights, held = memory_size(subject.weight_bytes), memory_size(one.nbytes - subject.weight_bytes)
        rows.append((f"{size:,}", weights, held, memory_size(one.nbytes), f"{_number(one.tokens_per_s)} tok/s"))
    write_table(rows, lines, right=range(5))
    _write(lines.getvalue(), environment)


def _write(text: str, environment: Environment) -> None:
    if not environment.is_unicode(environment.stdout):
        text = text.translate(_PLAIN)
    environment.stdout.write(text)


def _headline(subject: Subject) -> str:
    held = subject.dtype if subject.quant == "none" else f"{subject.quant} and {subject.dtype}"
    threads = f", {subject.threads} thread{'' if subject.threads == 1 else 's'}" if subject.device == "cpu" else ""
    return f"{one_line(subject.model)}, {held} on {one_line(subject.device)}{threads}"


def _rows(report: Report, sizes: Sequence[SizeReport]) -> Iterator[tuple[str, ...]]:
    """The rows that at least one of `sizes` has something in, under their headings."""
    heading = ("cache size", *(f"{size.cache_size:,}" for size in sizes))
    yield heading
    for title, rows in _sections(report, sizes):
        full = [(label, *(cell(size) for size in sizes)) for label, cell in rows]
        told = [row for row in full if any(row[1:])]
        if told:
            yield ("",) * len(heading)
            yield (title, *("",) * len(sizes))
            yield from told


def _sections(report: Report, sizes: Sequence[SizeReport]) -> Iterator[tuple[str, list[tuple[str, _Cell]]]]:
    names = list(dict.fromkeys(one.of for size in sizes for one in size.figures if one.measure == "full"))
    others = [name for name in names if name != OURS]
    yield (
        "tokens drawn a second",
        [
            ("nearly empty", _figure(OURS, "empty")),
            ("full", _figure(OURS, "full")),
            (f"{report.plan.windows} window{'' if report.plan.windows == 1 else 's'} later", _figure(OURS, "late")),
            *((name, _figure(name, "full")) for name in others),
        ],
    )
    yield (
        "tokens read a second",
        [
            ("sinkchat", _figure(OURS, "prefill")),
            *((name, _figure(name, "prefill")) for name in others),
        ],
    )
    yield (
        "seconds to first token",
        [("turn 1", _figure(OURS, "first turn")), (f"turn {report.plan.turns}", _figure(OURS, "last turn"))],
    )
    yield (
        "ms of a token that evicts",
        [
            ("median", _token_time("median")),
            ("99th of 100", _token_time("ninety_ninth")),
            ("slowest", _token_time("worst")),
        ],
    )
    ratios = dict.fromkeys(ratio.what for size in sizes for ratio in size.ratios)
    yield ("ratios (target)", [(_aimed(what, sizes), _ratio(what)) for what in ratios])
    target = f" ≥ {REACHED_ON_GPU:.0%}" if report.subject.device.startswith("cuda") else ""
    yield (
        "by bytes over bandwidth",
        [
            ("a token moves", lambda size: memory_size(size.roofline.nbytes) if size.roofline else ""),
            ("tok/s at most", lambda size: _number(size.roofline.tokens_per_s) if size.roofline else ""),
            (f"reached{target}", _reached),
        ],
    )
    yield (
        "memory",
        [
            ("keys and values", _bytes(OURS, "cache")),
            ("process, full", _bytes(OURS, "resident full")),
            ("process, later", _bytes(OURS, "resident late")),
            ("device, full", _bytes(OURS, "device full")),
            ("device, later", _bytes(OURS, "device late")),
        ],
    )


def _figure(of: str, measure: str) -> _Cell:
    def cell(size: SizeReport) -> str:
        found = size.figure(of, measure)
        return "" if found is None else _spread(found, _number)

    return cell


def _bytes(of: str, measure: str) -> _Cell:
    def cell(size: SizeReport) -> str:
        found = size.figure(of, measure)
        return "" if found is None else memory_size(round(found.median))

    return cell


def _token_time(which: str) -> _Cell:
    def cell(size: SizeReport) -> str:
        return "" if size.token_times is None else _number(1000 * getattr(size.token_times, which))

    return cell


def _ratio(what: str) -> _Cell:
    def cell(size: SizeReport) -> str:
        return next((_spread(one.value, _number) for one in size.ratios if one.what == what), "")

    return cell


def _reached(size: SizeReport) -> str:
    if size.roofline is None or size.roofline.reached is None:
        return ""
    return _spread(size.roofline.reached, lambda share: f"{100 * share:.0f}%")


def _aimed(what: str, sizes: Sequence[SizeReport]) -> str:
    """`later / full ≥ 0.98`, the target that holds at all of these sizes; `what, 4096: ≥ 22.2` where at one."""
    aims = {size.cache_size: _aim(one) for size in sizes for one in size.ratios if one.what == what}
    if len(set(aims.values())) == 1:
        return f"{what} {next(iter(aims.values()))}".rstrip()
    size, aim = next((size, aim) for size, aim in aims.items() if aim)
    return f"{what}, {size}: {aim}"


def _aim(ratio: Ratio) -> str:
    if ratio.at_least is not None:
        return f"≥ {ratio.at_least:g}"
    return "" if ratio.at_most is None else f"≤ {ratio.at_most:g}"


def _spread(value: Spread, number: Callable[[float], str]) -> str:
    """`24.1 (23.0–25.2)`; alone where there is but one value."""
    if value.count == 1:
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)}–{number(value.most)})"


def _number(value: float) -> str:
    """Three digits, or as many as stand before the point."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:,.{digits}f}"


def _gigabytes(value: Spread) -> str:
    return _spread(value, lambda bandwidth: _number(bandwidth / 1e9))
