"""One look for all plots: readable on a screen and in print, in colour and without.

matplotlib is an extra and slow to import, so that happens where a figure is made. A figure is an object here, not a
state of `pyplot`; the ending of its file says whether it becomes points or lines.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkchat.errors import UsageError

ENDINGS = (".png", ".pdf", ".svg")

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's: told apart by all eyes, and in print"""

DASHES = ("-", "--", "-.", ":")

PIXELS = 1400
"""across a PNG: sharp over the width of a page or of a screen, and small"""

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,  # letters stay letters, to be searched and edited
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a model's name is a dollar
}


def check_plot(path: Path) -> None:
    """Raises `UsageError` where no plot could be written to `path`: better before long work than after it."""
    _matplotlib()
    if path.is_dir():
        raise UsageError(f"--plot {path} is a folder", hint=f"--plot {path / 'plot.png'}")
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"--plot {path}: a plot is not written as {path.suffix or 'a file without an ending'}",
            hint=f"--plot {path.with_suffix('.png')}, .pdf or .svg",
        )
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}", hint="a folder that is there")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--plot {path} may not be written", hint="a folder of yours")


def series_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line that is number `index`: told apart in black and white too."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index % len(DASHES)]}


@contextmanager
def drawn_to(
    path: Path, rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 4.0
) -> Iterator[list[list[Any]]]:
    """Axes to draw on, `axes[row][column]`; what is drawn until the block ends is then written to `path`.

    `width` and `height` are those of one plot, in inches. Letters that the font lacks become boxes. Raises
    `UsageError` where the file cannot be written.
    """
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
        yield [list(row) for row in figure.subplots(rows, columns, squeeze=False)]
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                _write_numbers_out(axis)
        try:
            figure.savefig(path, dpi=PIXELS / (columns * width))
        except OSError as error:
            raise UsageError(
                f"--plot {path} cannot be written: {(error.strerror or str(error)).lower()}", hint="another place"
            ) from error


def _write_numbers_out(axis: Any) -> None:
    """1,024 with its comma; on a logarithmic axis in place of powers, which are mathematics, and that is off here."""
    from matplotlib.ticker import (
        FuncFormatter,
        LogFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        NullLocator,
        ScalarFormatter,
    )

    if isinstance(axis.get_major_formatter(), ScalarFormatter) and max(map(abs, axis.get_view_interval())) >= 1000:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if axis.get_scale() != "log" or not isinstance(axis.get_major_formatter(), LogFormatter):
        return
    low, high = sorted(axis.get_view_interval())
    written = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    axis.set_major_formatter(written)
    axis.set_minor_formatter(NullFormatter())
    if high < 5 * low:  # no power within, perhaps
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(NullLocator())
    elif axis.get_transform().base == 10 and high < 100 * low:
        axis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        axis.set_minor_formatter(written)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("plots need matplotlib, which is not here", hint='pip install "sinkchat[plot]"') from error
    return matplotlib
