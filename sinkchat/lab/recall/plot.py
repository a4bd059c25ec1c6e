"""Recall against distance, drawn: accuracy falls to nothing where the window ends."""

from pathlib import Path

from sinkchat.lab.plotting import drawn_to, series_style
from sinkchat.lab.recall.recall import Report


def draw(report: Report, path: Path) -> None:
    """Writes the plot to `path`."""
    with drawn_to(path, width=8.4, height=3.4) as axes:
        panel = axes[0][0]
        for index, recall in enumerate(report.recalls):
            style = series_style(index)
            points = recall.points
            label = f"{recall.sinks} sinks + {recall.capacity - recall.sinks:,}"
            panel.plot(
                [point.tokens_back for point in points],
                [100 * point.accuracy for point in points],
                label=label,
                marker="o",
                markersize=3,
                **style,
            )
            held = [point.tokens_back for point in points if point.held]
            if held:
                panel.axvline(max(held), color=style["color"], linewidth=0.8, linestyle=":")
        panel.plot([], [], color="#555555", linewidth=0.8, linestyle=":", label="last fact that is held")
        panel.set(
            title=f"{report.model}: recall of a line's number",
            xlabel="tokens back",
            ylabel="right answers, %",
            ylim=(-3, 103),
            xlim=(0, None),
        )
        panel.figure.legend(loc="outside lower center", ncols=4, fontsize=9)
