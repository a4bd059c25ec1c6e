"""How surprising a text was, token by token: sums that grow while it is read, and what is told of them.

Plain values, without torch: the terminal draws them, a file keeps them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BLOCKS = 64
"""parts of a text whose perplexity is told apart"""


def perplexity(total: float, count: int) -> float | None:
    """exp of the mean of `count` losses whose sum is `total`; None without any, infinite where a float ends."""
    if not count:
        return None
    try:
        return math.exp(total / count)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Losses:
    """Negative log-likelihoods, in nats, of the tokens `first`, `first + step`, ... of a text."""

    first: int
    values: Sequence[float]
    step: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens `[start, stop)` of the text, and the losses of those among them that were scored."""

    start: int
    stop: int
    total: float
    count: int

    @property
    def perplexity(self) -> float | None:
        return perplexity(self.total, self.count)


@dataclass(slots=True)
class Scores:
    """The sums of one method over a text of `tokens` tokens.

    All methods can be compared on the tokens `first`, `first + every`, ...; the sums over all that a method scored
    are beside it. Nothing is counted twice: a token before `next` is known already.
    """

    tokens: int
    first: int
    every: int
    next: int = 1
    total: float = 0.0
    count: int = 0
    common_total: float = 0.0
    common_count: int = 0
    seconds: float = 0.0
    block_totals: list[float] = field(default_factory=list)
    block_counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.block_totals:
            blocks = -(-self.tokens // self.block)
            self.block_totals, self.block_counts = [0.0] * blocks, [0] * blocks

    @property
    def block(self) -> int:
        """Tokens in a block."""
        return max(1, -(-self.tokens // BLOCKS))

    def add(self, losses: Losses) -> None:
        """Counts the losses of tokens that were not counted before."""
        for index, loss in enumerate(losses.values):
            token = losses.first + index * losses.step
            if token < self.next:
                continue
            self.next = token + 1
            self.total += loss
            self.count += 1
            self.block_totals[token // self.block] += loss
            self.block_counts[token // self.block] += 1
            if token >= self.first and (token - self.first) % self.every == 0:
                self.common_total += loss
                self.common_count += 1

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of which something was scored, in order."""
        for index, (total, count) in enumerate(zip(self.block_totals, self.block_counts, strict=True)):
            if count:
                yield Block(index * self.block, min((index + 1) * self.block, self.tokens), total, count)


@dataclass(frozen=True, slots=True)
class Method:
    """One way to read a text: `dense`, `window`, `recompute` or `streaming`.

    `sinks` counts in `cache_size`; with `line_breaks` the first tokens of the text are line breaks in their place.
    """

    kind: str
    cache_size: int | None = None
    sinks: int = 0
    line_breaks: bool = False

    @property
    def label(self) -> str:
        """`dense`, `window 1,024`, `recompute 1,024`, `4 sinks + 1,020`, `4 line breaks + 1,020`."""
        if self.cache_size is None:
            return self.kind
        if self.kind != "streaming":
            return f"{self.kind} {self.cache_size:,}"
        what = "line break" if self.line_breaks else "sink"
        return f"{self.sinks} {what}{'' if self.sinks == 1 else 's'} + {self.cache_size - self.sinks:,}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a method came to. `ended` says why it did not read to the end, and is empty where it did."""

    method: Method
    perplexity: float | None
    """on the tokens that all methods score"""
    scored: int
    perplexity_of_all: float | None
    """on all tokens after the first that this method scored"""
    scored_of_all: int
    read: int
    seconds: float
    blocks: tuple[Block, ...]
    ended: str = ""

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens scored a second."""
        return self.scored_of_all / self.seconds if self.seconds > 0 else None

    @classmethod
    def of(cls, method: Method, scores: Scores, *, ended: str = "") -> "Result":
        return cls(
            method=method,
            perplexity=perplexity(scores.common_total, scores.common_count),
            scored=scores.common_count,
            perplexity_of_all=perplexity(scores.total, scores.count),
            scored_of_all=scores.count,
            read=scores.next,
            seconds=scores.seconds,
            blocks=tuple(scores.blocks),
            ended=ended,
        )

    def as_record(self) -> dict[str, Any]:
        """For JSON, which `of_record` reads again; numbers that JSON lacks are None."""
        record = asdict(self) | {"label": self.method.label, "tokens_per_s": self.tokens_per_s}
        record["blocks"] = [asdict(block) | {"perplexity": block.perplexity} for block in self.blocks]
        return record

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Result":
        known = {name: record[name] for name in cls.__dataclass_fields__}
        known["method"] = Method(**record["method"])
        known["blocks"] = tuple(
            Block(**{name: block[name] for name in Block.__dataclass_fields__}) for block in record["blocks"]
        )
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a method is; `number` of `methods`, counted from 1."""

    so_far: Result
    number: int
    methods: int
    tokens: int
    """of the text"""
    seconds_left: float | None
    """for this method, None while that cannot be said"""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured, and on what."""

    model: str
    quant: str
    dtype: str
    device: str
    trained: int | None
    """positions that the model was trained on"""
    text: str
    tokens: int
    """of the text that are read"""
    first: int
    """the first token that is scored: from here on the largest cache is full"""
    every: int
    notes: tuple[str, ...] = ()
