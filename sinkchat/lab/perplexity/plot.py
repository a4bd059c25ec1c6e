"""Perplexity as figures: along the text, and against the number of sinks or the size of the cache."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from sinkchat.lab.perplexity.scores import Block, Result, Subject
from sinkchat.lab.plotting import drawn_to, series_style

_LEGEND = 8
"""names beside each other"""

_JOINED, _SCORED = 2, 20
"""blocks that are one point of a line, at least, and tokens that were scored in them"""


def draw(path: Path, subject: Subject, results: Sequence[Result]) -> None:
    """Writes the figures that the results give to `path`. Raises `UsageError` where that cannot be."""
    results = [_coarse(result) for result in results]
    figures: list[Callable[[Any], None]] = [
        lambda axes: _along(axes, subject, results, _of_blocks, "of each part of the text"),
        lambda axes: _along(axes, subject, results, _so_far, "so far"),
    ]
    streamed = [result for result in results if result.method.kind in ("window", "streaming") and result.perplexity]
    if len({result.method.sinks for result in streamed}) > 2:  # two points are no line: the table says them better
        figures.append(lambda axes: _against_sinks(axes, streamed))
    if len({result.method.cache_size for result in streamed}) > 2:
        figures.append(lambda axes: _against_size(axes, results))
    rows = (len(figures) + 1) // 2
    with drawn_to(path, rows, 2) as all_axes:
        places = [axes for row in all_axes for axes in row]
        for axes in places[len(figures) :]:
            axes.set_axis_off()
        for figure, axes in zip(figures, places, strict=False):
            figure(axes)
            axes.set_yscale("log")
            axes.set_ylabel("perplexity")
        whole = places[0].figure
        whole.suptitle(f"{subject.model}: {Path(subject.text).name}, {subject.tokens:,} tokens", fontsize=12)
        whole.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=_LEGEND, fontsize=9)


def _along(
    axes: Any,
    subject: Subject,
    results: Sequence[Result],
    series: Callable[[Result], Iterator[float | None]],
    name: str,
) -> None:
    for index, result in enumerate(results):
        middles = [(block.start + block.stop) / 2 for block in result.blocks]
        axes.plot(middles, list(map(_drawable, series(result))), label=result.method.label, **series_style(index))
    for size in sorted({result.method.cache_size for result in results if result.method.cache_size}):
        axes.axvline(size, color="#999999", linewidth=0.8, linestyle=":")
    axes.plot([], [], color="#999999", linewidth=0.8, linestyle=":", label="cache full")
    if subject.trained is not None and subject.trained < subject.tokens:
        axes.axvline(subject.trained, color="#999999", linewidth=0.8)
        axes.annotate(
            "trained length", (subject.trained, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("tokens of the text")
    axes.set_title(f"Perplexity {name}")


def _coarse(result: Result) -> Result:
    """The same with neighbouring blocks joined until enough was scored in each: a line that one can follow."""
    joined: list[Block] = []
    parts = 0
    for block in result.blocks:
        if joined and (parts < _JOINED or joined[-1].count < _SCORED):
            before = joined.pop()
            block = Block(before.start, block.stop, before.total + block.total, before.count + block.count)
            parts += 1
        else:
            parts = 1
        joined.append(block)
    return replace(result, blocks=tuple(joined))


def _of_blocks(result: Result) -> Iterator[float | None]:
    return (block.perplexity for block in result.blocks)


def _so_far(result: Result) -> Iterator[float | None]:
    totals = accumulate(block.total for block in result.blocks)
    counts = accumulate(block.count for block in result.blocks)
    return (_mean_exp(total, count) for total, count in zip(totals, counts, strict=True))


def _mean_exp(total: float, count: int) -> float:
    return math.exp(min(700.0, total / count))


def _against_sinks(axes: Any, results: Sequence[Result]) -> None:
    sizes = sorted({result.method.cache_size or 0 for result in results})
    for index, size in enumerate(sizes):
        plain = [r for r in results if r.method.cache_size == size and not r.method.line_breaks]
        plain.sort(key=lambda result: result.method.sinks)
        _points(axes, [r.method.sinks for r in plain], plain, f"cache {size:,}", index)
        breaks = [r for r in results if r.method.cache_size == size and r.method.line_breaks]
        axes.scatter(
            [r.method.sinks for r in breaks],
            [_drawable(r.perplexity) for r in breaks],
            marker="x",
            color=series_style(index)["color"],
            label=f"line breaks, cache {size:,}" if breaks else None,
        )
    axes.set_xlabel("sinks")
    axes.set_xticks(sorted({result.method.sinks for result in results}))
    axes.set_title("Perplexity by number of sinks")
    axes.legend(fontsize=8)


def _against_size(axes: Any, results: Sequence[Result]) -> None:
    ways = dict.fromkeys(
        (r.method.kind, r.method.sinks, r.method.line_breaks) for r in results if r.method.cache_size
    )
    for index, way in enumerate(ways):
        one = [r for r in results if (r.method.kind, r.method.sinks, r.method.line_breaks) == way]
        one.sort(key=lambda result: result.method.cache_size or 0)
        kind, sinks, line_breaks = way
        what = "line break" if line_breaks else "sink"
        label = kind if kind != "streaming" else f"{sinks} {what}{'' if sinks == 1 else 's'}"
        _points(axes, [r.method.cache_size or 0 for r in one], one, label, index)
    sizes = sorted({result.method.cache_size for result in results if result.method.cache_size})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("cache size in tokens")
    axes.set_title("Perplexity by size of the cache")
    axes.legend(fontsize=8)


def _points(axes: Any, places: Sequence[int], results: Sequence[Result], label: str, index: int) -> None:
    heights = [_drawable(result.perplexity) for result in results]
    axes.plot(places, heights, marker="o", markersize=4, label=label, **series_style(index))


def _drawable(value: float | None) -> float:
    return math.nan if value is None or math.isinf(value) else value
