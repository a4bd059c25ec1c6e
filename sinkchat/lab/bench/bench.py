"""How fast a model speaks while its memory is empty, full, and long after it first forgot something.

The bench knows streams of ids and a clock. What draws the tokens, our engine or somebody else's, is behind `Stream`.
All that is compared is measured in turns, round by round. Samples come as they are measured: leaving the loop keeps
what there is. Importing this loads no torch.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice, pairwise
from time import perf_counter
from typing import Any, Protocol

from sinkchat.errors import UsageError
from sinkchat.lab.bench.timing import Clock

SETTLING = 2
"""tokens drawn, and not counted, before the first that is"""
OPENING = 16
"""tokens held where memory is nearly empty"""
LONGEST_PROMPT = 512
DRAWN_EACH_TURN = 2
TURNS_A_WINDOW = 40
LEAST_READ_EACH_TURN = 32


class Stream(Protocol):
    """Something that reads ids and draws the likeliest next ones, timed from outside."""

    @property
    def name(self) -> str: ...

    def begin(self) -> None:
        """Forgets everything: a new stream."""

    def read(self, ids: Sequence[int]) -> None:
        """Reads on, as one message."""

    def draw(self, count: int) -> Iterator[int]:
        """`count` tokens, with exactly one forward between each two of them. The last is not read."""

    def moment(self) -> Any:
        """This moment of the stream, to come back to."""

    def back_to(self, moment: Any) -> None: ...


class EndlessStream(Stream, Protocol):
    """Ours: it also forgets."""

    vocabulary_size: int

    def warm_up(self) -> None:
        """Returns when everything runs as fast as it ever will."""

    def evict(self, words: str) -> None:
        """Forgets in this way from now on: `turn`, `token` or a number of tokens at once."""

    @property
    def room(self) -> int:
        """How many tokens more can be held."""

    @property
    def cache_bytes(self) -> int: ...

    @property
    def device_bytes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Field:
    """What is measured side by side at one cache size."""

    ours: EndlessStream
    others: tuple[Stream, ...]
    recomputed: Stream
    """reads the whole window for each token: what streaming is there to avoid"""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured of the machine itself."""

    copy_bandwidth: Callable[[], float]
    """bytes a second, read and written, of a copy too large for any cache"""
    resident_bytes: Callable[[], int | None]
    """memory of this process that is really there; None where the system does not tell"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. Raises `UsageError` where that cannot be."""

    cache_sizes: tuple[int, ...]
    rounds: int = 5
    tokens: int = 32
    """drawn in each measurement"""
    windows: int = 4
    """how often the window rolls over before the late measurements"""
    turns: int = 100
    """of the conversation whose first and last answers are timed"""

    def __post_init__(self) -> None:
        least = self.tokens + SETTLING + OPENING + 1
        for size in self.cache_sizes:
            if size < least:
                raise UsageError(
                    f"--cache-size {size} is too small to draw {self.tokens} tokens in",
                    hint=f"--cache-size {least}, or fewer --tokens",
                )

    def prompt(self, size: int) -> int:
        """Tokens read where prefill is timed."""
        return min(LONGEST_PROMPT, size // 2)

    def turn(self, size: int) -> int:
        """Tokens read each turn: so many that a hundred turns are two windows and a half."""
        return max(LEAST_READ_EACH_TURN, size // TURNS_A_WINDOW)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value, measured once."""

    cache_size: int
    of: str
    measure: str
    """`empty`, `full`, `late` and `prefill` in tokens a second; single tokens of `full` and `late` (`full token`,
    `late token`), `first turn` and `last turn` in seconds;
    `copy` in bytes a second, `cache`, `resident ...` and `device ...` in bytes"""
    value: float


def bench(
    plan: Plan,
    field_of: Callable[[int], AbstractContextManager[Field]],
    machine: Machine,
    *,
    clock: Clock = perf_counter,
    progress: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Sample]:
    """Everything that `plan` asks for, one cache size after the other."""
    for size in plan.cache_sizes:
        progress(f"cache {size:,}: making ready")
        with field_of(size) as field:
            yield from _Bench(size, field, plan, machine, clock, progress).samples()


@dataclass(frozen=True, slots=True)
class _Bench:
    size: int
    field: Field
    plan: Plan
    machine: Machine
    clock: Clock
    progress: Callable[[str], None]

    def samples(self) -> Iterator[Sample]:
        ours, streams = self.field.ours, (self.field.ours, *self.field.others)

        # 1. Everything runs as it will, and fills up to the last token before something must leave.
        self._tell("warming up")
        _warm_up(self.field)
        self._tell("filling")
        almost_full = self._ids(self.size - self.plan.tokens - SETTLING - 1)
        full = []
        for stream in streams:
            _begin_with(stream, almost_full)
            full.append(stream.moment())
        yield from self._memory("full")

        # 2. Ours goes on, several windows further, and is full again.
        self._tell(f"forgetting {self.plan.windows} windows")
        ours.back_to(full[0])
        ours.evict(str(max(1, self.size // 8)))
        ours.read(self._ids(self.plan.windows * self.size))
        ours.evict("token")
        ours.read(self._ids(ours.room))
        yield from self._memory("late")
        late = ours.moment()

        # 3. In turns, as often as was asked for.
        for round_ in range(self.plan.rounds):
            self._tell(f"round {round_ + 1} of {self.plan.rounds}")
            yield Sample(self.size, "machine", "copy", self.machine.copy_bandwidth())
            for stream in streams:
                yield self._prefill(stream)
            _begin_with(ours, self._ids(OPENING))
            yield self._rate(ours, "empty", self.plan.tokens)
            for stream, moment in zip(streams, full, strict=True):
                stream.back_to(moment)
                yield from self._tokens(stream, "full")
                if stream is ours:  # at once: what is compared is timed in one breath
                    ours.back_to(late)
                    yield from self._tokens(ours, "late")
            yield self._rate(self.field.recomputed, "full", 1, settling=0)

        # 4. A conversation, forgotten turn by turn.
        yield from self._turns()

    def _turns(self) -> Iterator[Sample]:
        ours, length = self.field.ours, self.plan.turn(self.size)
        ours.evict("turn")
        for _ in range(self.plan.rounds):
            ours.begin()
            yield self._sample(ours, "first turn", self._first_token(ours, length))
        for turn in range(2, self.plan.turns + 1):
            self._tell(f"turn {turn} of {self.plan.turns}")
            for _ in ours.draw(DRAWN_EACH_TURN):
                pass
            seconds = self._first_token(ours, length)
            if turn > self.plan.turns - self.plan.rounds:
                yield self._sample(ours, "last turn", seconds)

    def _prefill(self, stream: Stream) -> Sample:
        count = self.plan.prompt(self.size)
        stream.begin()
        return self._sample(stream, "prefill", count / self._first_token(stream, count))

    def _first_token(self, stream: Stream, count: int) -> float:
        """Seconds from the first of `count` tokens that are read to the first that is drawn."""
        ids = self._ids(count)
        start = self.clock()
        stream.read(ids)
        next(stream.draw(1))
        return self.clock() - start

    def _tokens(self, stream: Stream, measure: str) -> Iterator[Sample]:
        times = token_times(stream, self.plan.tokens, self.clock)
        yield self._sample(stream, measure, len(times) / sum(times))
        yield from (self._sample(stream, f"{measure} token", seconds) for seconds in times)

    def _rate(self, stream: Stream, measure: str, count: int, *, settling: int = SETTLING) -> Sample:
        times = token_times(stream, count, self.clock, settling=settling)
        return self._sample(stream, measure, len(times) / sum(times))

    def _memory(self, when: str) -> Iterator[Sample]:
        ours = self.field.ours
        found = {
            "cache": ours.cache_bytes if when == "full" else None,
            f"resident {when}": self.machine.resident_bytes(),
            f"device {when}": ours.device_bytes,
        }
        yield from (self._sample(ours, name, value) for name, value in found.items() if value is not None)

    def _sample(self, stream: Stream, measure: str, value: float) -> Sample:
        return Sample(self.size, stream.name, measure, value)

    def _ids(self, count: int) -> list[int]:
        """Any ids: what they say does not change how long they take."""
        chosen = random.Random(count)
        return [chosen.randrange(self.field.ours.vocabulary_size) for _ in range(count)]

    def _tell(self, what: str) -> None:
        self.progress(f"cache {self.size:,}: {what}")


def token_times(stream: Stream, count: int, clock: Clock, *, settling: int = SETTLING) -> list[float]:
    """Seconds of each of `count` tokens, after `settling` that are not counted."""
    drawn = stream.draw(count + settling + 1)
    ends = [clock() for _ in islice(drawn, settling, None)]
    return [stop - start for start, stop in pairwise(ends)]


def _begin_with(stream: Stream, ids: Sequence[int]) -> None:
    stream.begin()
    stream.read(ids)


def _warm_up(field: Field) -> None:
    """Outside of all that is measured. Ours knows what it must wait for; the others draw a few tokens."""
    field.ours.warm_up()
    for stream in field.others:
        _begin_with(stream, range(OPENING))
        for _ in stream.draw(SETTLING + 1):
            pass
