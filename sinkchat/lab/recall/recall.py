"""What a stream's facts are worth later: recall against distance (StreamEval, arXiv 2309.17453, section 4.3).

Facts stream by, a line each: `line 17: REGISTER_CONTENT is <4821>`. At every tenth line the numbers of earlier lines
are asked for, each a known distance back. What is in the cache can be recalled; what left it cannot, whatever the
model. Which facts are wholly held is plain arithmetic, done here beside the answers.

Unlike in the paper, a question is taken back once it is answered: so many distances can be asked at one place of one
stream, and no answer repeats a fact for those who ask later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sinkchat.cache.policy import CacheState
from sinkchat.errors import UsageError

HEADER = "Remember the number in each line.\n"

LOWEST, HIGHEST = 1000, 9999
"""numbers that stand in lines: all of one length"""


def opening_of(line: int) -> str:
    """How a line begins."""
    return f"line {line}: REGISTER_CONTENT is <"


def question_for(line: int) -> str:
    """What asks for a line's number, and begins to say it: base models answer too."""
    return f"What is the REGISTER_CONTENT in line {line}? The REGISTER_CONTENT in line {line} is <"


def line_text(line: int, number: int) -> str:
    return f"{opening_of(line)}{number}>\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and when."""

    sinks: int = 4
    rounds: int = 10
    """how many times questions are asked"""
    every: int = 10
    """lines from one time to the next"""
    distances: tuple[int, ...] = ()
    """lines back that are asked for; empty for some up to twice the window"""
    seed: int = 0

    def __post_init__(self) -> None:
        if any(distance < 1 for distance in self.distances):
            raise UsageError(
                "the line before the question is 1 back: --distances begin there", hint="--distances 1,10"
            )


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the stream: its tokens are `[start, stop)`."""

    line: int
    number: int
    start: int
    stop: int

    def is_held(self, state: CacheState) -> bool:
        """Whether all of it is in the cache."""
        return self.start >= state.next_to_leave or self.stop <= state.pinned or not state.evicted


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a stream is: lines that were read, of all that will be, and so with the questions."""

    lines: int
    of_lines: int
    asked: int
    to_ask: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said when a number was asked for."""

    lines_back: int
    tokens_back: int
    """from the question's first token to the fact's"""
    number: str
    said: str
    is_held: bool
    """whether the fact was in memory, wholly, when the answer ended"""

    @property
    def is_right(self) -> bool:
        return self.said == self.number


@dataclass(frozen=True, slots=True)
class Point:
    """All answers about facts that were equally many lines back."""

    lines_back: int
    tokens_back: float
    asked: int
    right: int
    held: int

    @property
    def accuracy(self) -> float:
        return self.right / self.asked


@dataclass(frozen=True, slots=True)
class Recall:
    """What one cache gave."""

    capacity: int
    sinks: int
    points: tuple[Point, ...]
    edge: int
    """the most lines back at which a fact was still wholly held, 0 where none was"""
    reach: int
    """the most lines back at which a number was right, 0 where none was"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that `sinkchat recall` found, a cache after the other."""

    model: str
    evict: str
    recalls: tuple[Recall, ...]


def recall_of(answers: Sequence[Answer], *, capacity: int, sinks: int) -> Recall:
    """The answers by distance."""
    return Recall(
        capacity,
        sinks,
        tuple(_points(answers)),
        max((answer.lines_back for answer in answers if answer.is_held), default=0),
        max((answer.lines_back for answer in answers if answer.is_right), default=0),
    )


def _points(answers: Sequence[Answer]) -> Iterator[Point]:
    for distance in sorted({answer.lines_back for answer in answers}):
        alike = [answer for answer in answers if answer.lines_back == distance]
        yield Point(
            lines_back=distance,
            tokens_back=sum(answer.tokens_back for answer in alike) / len(alike),
            asked=len(alike),
            right=sum(answer.is_right for answer in alike),
            held=sum(answer.is_held for answer in alike),
        )


def distances_around(edge: int) -> tuple[int, ...]:
    """Lines back worth asking for where about `edge` lines fit: evenly to half as many again, each at the edge."""
    even = {max(1, round(edge * eighth / 8)) for eighth in range(1, 13)}
    dense = {edge + step for step in range(-3, 4)}
    return tuple(sorted(distance for distance in {1, *even, *dense} if distance > 0))
