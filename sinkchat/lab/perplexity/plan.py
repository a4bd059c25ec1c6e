"""What is to be measured: which methods, with which caches and sinks. Plain values, without torch."""

from dataclasses import dataclass

from sinkchat.errors import UsageError
from sinkchat.lab.perplexity.scores import Method

KINDS = ("dense", "window", "recompute", "streaming")
DEFAULT_CACHE_SIZE = 1024
LINE_BREAKS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """A measurement. `cache_sizes=()` is 1,024 tokens, or what the model was trained on where that is less."""

    kinds: tuple[str, ...] = KINDS
    cache_sizes: tuple[int, ...] = ()
    sinks: tuple[int, ...] = (4,)
    line_breaks: bool = False
    """also with line breaks in place of the first tokens"""
    tokens: int = 4096
    """of the text; 0 is all of it"""
    every: int = 16
    """the methods are compared on every such token"""

    def sizes(self, largest: int | None) -> tuple[int, ...]:
        """The sizes of caches, where `largest` is the most that the model takes."""
        return tuple(sorted(self.cache_sizes)) or (min(DEFAULT_CACHE_SIZE, largest or DEFAULT_CACHE_SIZE),)

    def methods(self, sizes: tuple[int, ...]) -> tuple[Method, ...]:
        """What is read, in this order. Raises `UsageError` where sinks leave no window."""
        for size in sizes:
            for sinks in (*self.sinks, *([LINE_BREAKS] if self.line_breaks else [])):
                if sinks >= size:
                    raise UsageError(
                        f"{sinks:,} sinks leave no window in a cache of {size:,}",
                        hint=f"fewer sinks, or --cache-size {sinks + max(16, sinks)}",
                    )
        methods = [Method("dense")] if "dense" in self.kinds else []
        for kind in ("window", "recompute"):
            if kind in self.kinds:
                methods += [Method(kind, size) for size in sizes]
        if "streaming" in self.kinds:
            for size in sizes:
                methods += [
                    # Without sinks it is the window, which is read once.
                    Method("streaming", size, sinks) if sinks else Method("window", size)
                    for sinks in self.sinks
                ]
                if self.line_breaks:
                    methods.append(Method("streaming", size, LINE_BREAKS, line_breaks=True))
        return tuple(dict.fromkeys(methods))
