"""The picture of the sink on paper: the map of heads, the maps of single layers, one query with sinks and without."""

from functools import partial
from pathlib import Path
from typing import Any

from sinkchat.lab.attention.shares import SHALLOW, Report, Shares, SinksEvicted, mean
from sinkchat.lab.plotting import COLORS, drawn_to, series_style

_ROWS, _COLUMNS = 2, 3
"""layers of which the whole map is drawn, where passages are short"""


def draw(report: Report, path: Path) -> None:
    """Writes the plot to `path`."""
    shares, found = report.shares, report.eviction
    pictures = [partial(_heads, shares=shares), partial(_layers, shares=shares)]
    if shares.maps:
        pictures.append(partial(_maps, shares=shares))
    if found is not None:
        pictures.append(partial(_query, found=found))
    with drawn_to(path, -(-len(pictures) // 2), 2, width=5.6, height=4.4) as axes:
        panels = [panel for row in axes for panel in row]
        for panel, picture in zip(panels, pictures, strict=False):
            picture(panel)
        for panel in panels[len(pictures) :]:
            panel.axis("off")
        panels[0].figure.suptitle(
            f"{report.model}: {shares.passages:,} passages of {shares.length:,} tokens", fontsize=12
        )


def _heads(axes: Any, shares: Shares) -> None:
    image = axes.imshow(shares.first, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label=f"share of the first {shares.sinks}")
    axes.set(title=f"Attention to the first {shares.sinks} tokens", xlabel="head", ylabel="layer")
    axes.locator_params(integer=True)
    axes.grid(False)


def _layers(axes: Any, shares: Shares) -> None:
    lines = [(f"first {shares.sinks}", shares.first, shares.even), ("token 0", shares.token_0, shares.even_0)]
    for index, (name, by_head, even) in enumerate(lines[shares.sinks == 1 :]):
        style = series_style(index)
        axes.plot([mean(layer) for layer in by_head], label=name, **style)
        axes.axhline(even, color=style["color"], linewidth=0.8, linestyle=":", label=f"{name}, even attention")
    if shares.has_learned_sinks:
        axes.plot([mean(layer) for layer in shares.learned], label="learned sink", **series_style(2))
    axes.set(title="Mean over heads", xlabel="layer", ylabel="share of the attention", ylim=(0, 1))
    axes.locator_params(axis="x", integer=True)
    axes.legend(ncols=2, fontsize=8)


def _maps(axes: Any, shares: Shares) -> None:
    """Queries by keys of some layers, beside and below each other in one picture."""
    import numpy as np

    last, length = len(shares.maps) - 1, len(shares.maps[0])
    deeper = {SHALLOW + round((last - SHALLOW) * third / 3) for third in range(4)}
    chosen = sorted(layer for layer in {*range(SHALLOW), *deeper} if layer <= last)
    step = length + max(2, length // 5)
    canvas = np.full((_ROWS * step, _COLUMNS * step), np.nan)
    for place, layer in enumerate(chosen):
        top, left = place // _COLUMNS * step, place % _COLUMNS * step
        weights = np.where(np.tri(length, dtype=bool), np.array(shares.maps[layer]), np.nan)
        canvas[top : top + length, left : left + length] = weights
        axes.text(left + length / 2, top + length / 4, f"layer {layer}", fontsize=8)
    axes.imshow(canvas**0.5, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")  # 0.01 and 0.5 are both seen
    axes.set(title="Mean maps: rows are queries, columns keys", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(False)


def _query(axes: Any, found: SinksEvicted) -> None:
    names, before, after = zip(*found.pieces(), strict=True)
    places = range(len(names))
    axes.bar([at - 0.2 for at in places], before, width=0.4, color=COLORS[0], label="with the sinks")
    axes.bar(
        [at + 0.2 for at in places],
        [share or 0 for share in after],
        width=0.4,
        color=COLORS[1],
        label="sinks evicted",
    )
    axes.set_xticks(list(places))
    axes.set_xticklabels([" ".join(name.split()) for name in names], rotation=60, ha="right", fontsize=8)
    axes.set(title=f"One query over one cache of {found.capacity:,}", ylabel="share of the attention")
    axes.legend(fontsize=8, loc="upper center")
    axes.grid(False, axis="x")
    axes.set_axisbelow(True)
