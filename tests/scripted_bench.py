"""Streams whose every forward takes the time that a test says, on a clock that only they move."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sinkchat.lab.bench.bench import Field, Machine, Plan, Sample, bench

SIZE = 100
PLAN = Plan(cache_sizes=(SIZE,), rounds=3, tokens=4, windows=2)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedStream:
    """Takes `reading` seconds to read a token; its draws take what `drawing` lists for its state, one after other.

    `drawing` maps `empty`, `full`, `late` and `turn` to a list for each draw: seconds of its forwards, the last of
    which goes on. Its clock moves by nothing else.
    """

    name: str
    clock: Clock
    drawing: Mapping[str, Sequence[Sequence[float]]]
    reading: float = 1 / 64
    vocabulary_size: int = 50
    capacity: int = SIZE
    cache_bytes: int = 4096
    device_bytes: int | None = None
    held: int = 0
    evicted: int = 0
    policy: str = "token"
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draws: Counter[str] = Counter()

    @property
    def room(self) -> int:
        return self.capacity - self.held

    @property
    def state(self) -> str:
        if self.policy == "turn":
            return "turn"
        return "late" if self.evicted else "empty" if self.held <= self.capacity // 2 else "full"

    def warm_up(self) -> None:
        self.log.append("warm up")
        self.clock.now += 1000

    def evict(self, words: str) -> None:
        self.policy = words
        self.log.append(f"evict {words}")

    def begin(self) -> None:
        self.held = self.evicted = 0

    def read(self, ids: Sequence[int]) -> None:
        self._hold(len(ids))
        self.clock.now += self.reading * len(ids)

    def draw(self, count: int) -> Iterator[int]:
        state = self.state
        lists = self.drawing[state]
        seconds = lists[min(self._draws[state], len(lists) - 1)]
        if count > 1:
            self._draws[state] += 1
        for index in range(count):
            yield index
            if index + 1 < count:
                self.clock.now += seconds[min(index, len(seconds) - 1)]
                self._hold(1)

    def moment(self) -> tuple[int, int]:
        return self.held, self.evicted

    def back_to(self, moment: tuple[int, int]) -> None:
        self.held, self.evicted = moment
        self.clock.now += 77

    def _hold(self, count: int) -> None:
        self.evicted += max(0, self.held + count - self.capacity)
        self.held = min(self.capacity, self.held + count)


def scripted_bench(
    plan: Plan = PLAN,
    *,
    resident: Callable[[], int | None] = lambda: None,
    copies: Sequence[float] = (1e9,),
    **drawing: Mapping[str, Sequence[Sequence[float]]],
) -> Iterator[Sample]:
    """A bench of `sinkchat` and all others that `drawing` names, each by what its draws take."""
    clock = Clock()
    even = {"empty": [[1.0]], "full": [[1.0]], "late": [[1.0]], "turn": [[1.0]]}
    streams = {name: ScriptedStream(name, clock, even | dict(given)) for name, given in drawing.items()}
    ours = streams.pop("sinkchat", None) or ScriptedStream("sinkchat", clock, even)
    recomputed = streams.pop("recomputed", None) or ScriptedStream("recomputed", clock, even | {"empty": [[8.0]]})

    @contextmanager
    def field_of(size: int) -> Iterator[Field]:
        for stream in (ours, recomputed, *streams.values()):
            stream.capacity = size
        yield Field(ours, tuple(streams.values()), recomputed)

    left = list(copies)
    machine = Machine(lambda: left.pop(0) if len(left) > 1 else left[0], resident)
    return bench(plan, field_of, machine, clock=clock)
