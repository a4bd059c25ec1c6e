"""What has left memory since that was last told: a few numbers, however much it is.

A transcript of a million turns is read before anybody asks something, and only then it is said what left.
"""

from dataclasses import dataclass, field

from sinkchat.chat.events import Evicted, TurnRest


@dataclass(slots=True)
class Left:
    """`tokens` have left and, in runs, the `turns` of which nothing is held now; of `partly` something is."""

    tokens: int = 0
    turns: list[range] = field(default_factory=list)
    partly: TurnRest | None = None
    evicted: int = 0
    """all that is forgotten, since the conversation began"""

    def add(self, eviction: Evicted) -> None:
        self.tokens += len(eviction.span)
        self.partly, self.evicted = eviction.partly, eviction.state.evicted
        for number in eviction.gone:
            if self.turns and self.turns[-1].stop == number:
                self.turns[-1] = range(self.turns[-1].start, number + 1)
            elif not any(number in run for run in self.turns):
                self.turns.append(range(number, number + 1))
