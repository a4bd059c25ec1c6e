"""A bench as two plots: the time of a token and the speed of reading, over the size of the cache."""

from pathlib import Path
from typing import Any

from sinkchat.lab.bench.report import OURS, RECOMPUTED, Report
from sinkchat.lab.bench.timing import Spread
from sinkchat.lab.plotting import drawn_to, series_style


def draw(report: Report, path: Path) -> None:
    """Medians as lines, least and most as bars. Raises `UsageError` where `path` cannot be written."""
    names = dict.fromkeys(one.of for size in report.sizes for one in size.figures if one.measure == "full")
    others = [name for name in names if name != OURS]
    with drawn_to(path, columns=2, width=5.4) as [[times, reading]]:
        times.set_title(f"{report.subject.model} on {report.subject.device}: one token")
        times.set_ylabel("ms a token")
        _line(times, 0, "sinkchat, full", report, OURS, "full", of_token=True)
        _line(times, 1, "sinkchat, windows later", report, OURS, "late", of_token=True)
        for index, name in enumerate(others, 2):
            _line(times, index, name, report, name, "full", of_token=True)
        reading.set_title("reading")
        reading.set_ylabel("tokens a second")
        for index, name in enumerate([OURS, *(name for name in others if name != RECOMPUTED)]):
            _line(reading, index, name, report, name, "prefill", of_token=False)
        sizes = [size.cache_size for size in report.sizes]
        for axes in (times, reading):
            axes.set_xlabel("tokens in the cache")
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
            axes.legend()
        times.set_yscale("log")
        reading.set_ylim(bottom=0)


def _line(axes: Any, index: int, label: str, report: Report, of: str, measure: str, *, of_token: bool) -> None:
    """One line, of what was measured of `of`; `of_token` turns tokens a second into ms of a token."""
    found = [
        (size.cache_size, _ms(value) if of_token else value)
        for size in report.sizes
        if (value := size.figure(of, measure)) is not None
    ]
    if found:
        sizes, values = zip(*found, strict=True)
        middles = [value.median for value in values]
        below = [value.median - value.least for value in values]
        above = [value.most - value.median for value in values]
        axes.errorbar(sizes, middles, yerr=[below, above], label=label, marker="o", capsize=3, **series_style(index))


def _ms(rate: Spread) -> Spread:
    return Spread(1000 / rate.median, 1000 / rate.most, 1000 / rate.least, rate.count)
