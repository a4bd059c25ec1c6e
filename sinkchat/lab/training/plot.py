"""The table of three kinds of sinks, drawn: perplexity against the sinks that were kept."""

from collections.abc import Sequence
from pathlib import Path

from sinkchat.lab.plotting import drawn_to, series_style
from sinkchat.lab.training.table import SINKS, Plan, Row


def draw(plan: Plan, rows: Sequence[Row], path: Path) -> None:
    """Writes the plot to `path`."""
    with drawn_to(path) as axes:
        panel = axes[0][0]
        for index, row in enumerate(rows):
            panel.plot(SINKS, row.perplexities, label=row.kind, marker="o", markersize=4, **series_style(index))
        panel.set(
            title=f"Past a cache of {plan.length:,}, after {plan.steps:,} steps of training",
            xlabel="sinks",
            ylabel="perplexity of a byte",
            xticks=SINKS,
        )
        panel.legend()
