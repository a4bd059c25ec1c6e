"""How recall is told: a row a distance, with what memory held beside what was right; a line a question."""

from collections.abc import Iterator

from sinkchat.lab.recall.questions import Reply, Score
from sinkchat.lab.recall.recall import Recall, Report
from sinkchat.terminal.environment import Environment
from sinkchat.terminal.lab.running import width_of
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.table import write_table

_BAR = 20
_FIGURES = 45
"""columns of a row before its bar"""

_VERDICT = 38
"""columns of a line before the reply, and one that stays free"""

_LEAST_SHOWN = 20
"""characters of a reply"""


def write_report(report: Report, environment: Environment) -> None:
    """A table a cache."""
    stdout = environment.stdout
    bar = ("█" if environment.is_unicode(stdout) else "#") * max(0, min(_BAR, width_of(environment) - _FIGURES))
    stdout.write(f"{one_line(report.model)}: recall of a line's number, by distance (evicting by {report.evict})\n")
    for recall in report.recalls:
        window = recall.capacity - recall.sinks
        stdout.write(f"\ncache of {recall.capacity:,}: {recall.sinks} sinks + {window:,}\n")
        write_table(list(_rows(recall, bar)), stdout, right=(0, 1, 2, 3, 4))
        stdout.write(
            f"Held: at most {_lines(recall.edge)} back. Recalled: "
            f"{'none' if not recall.reach else f'at most {_lines(recall.reach)} back'}.\n"
        )


def _rows(recall: Recall, bar: str) -> Iterator[tuple[str, ...]]:
    yield "lines back", "tokens back", "asked", "held", "right", ""
    for point in recall.points:
        yield (
            str(point.lines_back),
            f"{point.tokens_back:,.0f}",
            str(point.asked),
            f"{point.held / point.asked:.0%}",
            f"{point.accuracy:.0%}",
            bar[: round(point.accuracy * len(bar))],
        )


def _lines(count: int) -> str:
    return f"{count:,} line" if count == 1 else f"{count:,} lines"


def write_reply(reply: Reply, environment: Environment) -> None:
    """A line, as soon as the answer is there."""
    said = one_line(" ".join(reply.said.split()))
    room = max(_LEAST_SHOWN, width_of(environment) - _VERDICT)
    shown = said if len(said) <= room else f"{said[: room - 3]}..."
    environment.stdout.write(
        f"{reply.number:>4}  {_verdict(reply):<8}  {reply.evicted:>9,} forgotten  {shown}".rstrip() + "\n"
    )
    environment.stdout.flush()


def _verdict(reply: Reply) -> str:
    if not reply.is_marked:
        return "-"
    return "exact" if reply.is_exact else "contains" if reply.has_answer else "wrong"


def write_score(score: Score, model: str, environment: Environment) -> None:
    """What it came to."""
    stdout = environment.stdout
    questions = "1 question" if score.asked == 1 else f"{score.asked:,} questions"
    stdout.write(f"\n{one_line(model)}: {questions} in one stream, {score.marked:,} with a known answer\n")
    if score.marked:
        stdout.write(
            f"exact {score.exact / score.marked:.1%}, containing the answer {score.contained / score.marked:.1%}\n"
        )
