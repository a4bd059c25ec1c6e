"""Where attention goes: how much of it the first tokens get, layer by layer and head by head.

Softmax must spend all of its weight; what a head does not need it puts on the first tokens, whatever they say. That
is what an attention sink is (arXiv 2309.17453, figure 2: passages of 16 tokens, averaged over 256). Only the second
half of each passage is asked, where even attention would leave the first tokens little; that little is told too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sinkchat.errors import UsageError

SHALLOW = 2
"""Layers at the bottom that attend to what is near; sinks rule from here on (the paper's section 3.1)."""

MAPPED = 64
"""The longest passage of which the whole map is kept: queries by keys, for each layer."""

LEARNED = 0.01
"""A share that no rounding of bfloat16 explains: less of it is no learned sink."""

SLICES = 8
"""Pieces in which a window is told."""

ByHead = tuple[tuple[float, ...], ...]
"""A share, from 0 to 1, of each head of each layer."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the first tokens got of the attention of later ones, averaged over `passages` passages."""

    sinks: int
    """how many tokens count as the first ones"""
    length: int
    """tokens of a passage; those from `length // 2` on were asked"""
    passages: int
    first: ByHead
    """of all first tokens together"""
    token_0: ByHead
    learned: ByHead
    """of the sink that a head has learned beside all tokens (gpt-oss); nought where there is none"""
    even: float
    """what `first` would be if attention were even"""
    even_0: float
    maps: tuple[ByHead, ...]
    """for each layer, queries by keys, averaged over heads; empty for passages longer than `MAPPED`"""

    @property
    def has_learned_sinks(self) -> bool:
        return any(share > LEARNED for layer in self.learned for share in layer)


def require_room(sinks: int, length: int) -> None:
    """Raises `UsageError` where the first `sinks` tokens of a passage leave none that could look back at them."""
    if not 1 <= sinks <= length // 2:
        raise UsageError(
            f"the first {sinks:,} of {length:,} tokens leave too few that look back at them",
            hint=f"--sinks 1 to {length // 2}, or a larger --length",
        )


def mean_beyond(shares: ByHead, layer: int = SHALLOW) -> float:
    """The mean over heads of all layers from `layer` on; over all layers where there are no more."""
    layers = shares[layer:] or shares
    return sum(map(mean, layers)) / len(layers)


def mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Where one query's attention went, by layer, averaged over heads."""

    sinks: ByHead
    """each sink; no columns where they were evicted"""
    window: ByHead
    """each token of the window, oldest first; the last one is the query itself"""
    learned: tuple[float, ...]
    """the share of sinks that heads have learned"""
    likeliest: int
    """the token that would come next"""
    probability: float

    def pieces(self) -> Iterator[tuple[str, float]]:
        """Each sink, the window in slices, oldest first, and the query itself, in the mean of the deep layers."""
        for index, share in enumerate(_mean_layer(self.sinks)):
            yield f"sink {index}", share
        if (learned := mean(self.learned[SHALLOW:] or self.learned)) > LEARNED:
            yield "learned sink", learned
        *older, query = _mean_layer(self.window)
        cuts = sorted({len(older) * index // SLICES for index in range(SLICES + 1)})
        for start, stop in pairwise(cuts):
            age = "oldest " if start == 0 else "newest " if stop == len(older) else "       "
            yield f"{age}{stop - start}", sum(older[start:stop])
        yield "the query itself", query


def _mean_layer(layers: ByHead) -> list[float]:
    """The mean over the deep layers, or over all where none is deep, token by token."""
    return [mean(column) for column in zip(*(layers[SHALLOW:] or layers), strict=True)]


@dataclass(frozen=True, slots=True)
class SinksEvicted:
    """The same query over the same cache, with its sinks and without."""

    token: int
    """the query's place in the stream"""
    capacity: int
    kept: Distribution
    evicted: Distribution
    words: tuple[str, str]
    """the likeliest next token of each, in letters"""
    divergence: float
    """of what would come next, with the sinks from without them: Kullback-Leibler, in nats"""

    def pieces(self) -> Iterator[tuple[str, float, float | None]]:
        """Each piece of the cache, with its share before and after; None for the sinks, which have gone."""
        after = list(self.evicted.pieces())
        gone = len(self.kept.sinks[0])
        for index, (name, share) in enumerate(self.kept.pieces()):
            yield name, share, None if index < gone else after[index - gone][1]


@dataclass(frozen=True, slots=True)
class Report:
    """All that `sinkchat attention` found."""

    model: str
    text: str
    """where it came from"""
    shares: Shares
    eviction: SinksEvicted | None
    notes: tuple[str, ...] = ()
