"""Memory turn by turn, as something that can be arranged anew: pinned, unpinned, taken back, under another opening.

A layout is a plain value. Arranging moves and drops whole turns, and every token that was seen stays accounted for:
it is pinned, in the window, or among the forgotten. What comes out is read again by the engine, from the same ids.
Only a turn that was cut, or has left altogether, is made of its text again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sinkchat.cache.policy import Span
from sinkchat.chat.turns import TurnLedger
from sinkchat.engine.engine import Engine
from sinkchat.engine.segment import Segment


@dataclass(frozen=True, slots=True)
class Block:
    """A turn, or what is left of it; number 0 is the part of the opening that is not pinned."""

    number: int
    segments: tuple[Segment, ...]
    gone: int = 0
    """tokens of the turn that are forgotten"""
    in_head: int = 0
    """its first tokens, which are among the sinks"""

    @property
    def held(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def tokens(self) -> int:
        """All of the turn, but for what is among the sinks."""
        return self.gone + self.held

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(number for segment in self.segments for number in segment.ids)

    def cut(self, count: int) -> "Block":
        """Without the first `count` tokens."""
        segments: list[Segment] = []
        for segment in self.segments:
            rest = segment.ids[count:]
            count = max(0, count - len(segment.ids))
            if rest:
                segments.append(Segment(rest, opens_message=segment.opens_message and rest == segment.ids))
        return replace(self, segments=tuple(segments))


Encode: TypeAlias = Callable[[int], Block]
"""The whole turn of that number, made of its text."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All that was seen, in its order: `head`, `pins`, what was forgotten, `window`.

    `forgotten` are turns of which nothing is held, oldest first, with their tokens; `unlisted` counts forgotten
    tokens of none of them.
    """

    head: tuple[int, ...]
    pins: tuple[Block, ...]
    unlisted: int
    forgotten: tuple[tuple[int, int], ...]
    window: tuple[Block, ...]

    @property
    def pinned(self) -> int:
        return len(self.head) + sum(block.held for block in self.pins)

    @property
    def forgotten_tokens(self) -> int:
        return self.unlisted + sum(tokens for _, tokens in self.forgotten) + sum(block.gone for block in self.window)

    @property
    def tokens(self) -> int:
        """Tokens to be held, and so to be read."""
        return self.pinned + sum(block.held for block in self.window)

    def pinning(self, block: Block) -> "Layout":
        """That turn among the pinned, in the order in which they were said."""
        pins = sorted((*self.pins, block), key=lambda pin: pin.number)
        return replace(self.without(lambda number: number == block.number), pins=tuple(pins))

    def unpinning(self, number: int) -> "Layout":
        """That pinned turn at the window's old end, behind a turn that has begun to leave: it is the next to go."""
        block = next(pin for pin in self.pins if pin.number == number)
        left = self.without(lambda other: other == number)
        place = 1 if left.window and (left.window[0].gone or not left.window[0].number) else 0
        return replace(left, window=(*left.window[:place], block, *left.window[place:]))

    def without(self, drops: Callable[[int], bool]) -> "Layout":
        """As if the turns that `drops` names had never been."""
        return replace(
            self,
            pins=tuple(block for block in self.pins if not drops(block.number)),
            forgotten=tuple((number, tokens) for number, tokens in self.forgotten if not drops(number)),
            window=tuple(block for block in self.window if not drops(block.number)),
        )

    def replacing(self, number: int, encode: Encode) -> "Layout":
        """That turn made anew of its text, if the window holds all of it."""
        window = (encode(number) if block.number == number and not block.gone else block for block in self.window)
        return replace(self, window=tuple(window))

    def refilled(self, room: int, encode: Encode) -> "Layout":
        """With the latest forgotten turns brought back, as many as `room` window tokens take, and never none."""
        layout = self
        while candidate := layout._next_to_bring_back():
            number, tokens = candidate
            others = tuple(block for block in layout.window if block.number != number)
            held = sum(block.held for block in others)
            is_empty = not any(block.held for block in layout.window)
            if held + tokens > room and not is_empty:
                break
            block = encode(number)
            if held + block.held > room and not is_empty:
                break
            if excess := max(0, block.held - room):  # of a turn too long for memory its end, as when it was said
                block = replace(block.cut(excess), gone=excess)
            forgotten = tuple(entry for entry in layout.forgotten if entry[0] != number)
            layout = replace(layout, forgotten=forgotten, window=(block, *others))
            if excess:
                break
        return layout

    def _next_to_bring_back(self) -> tuple[int, int] | None:
        if self.window and self.window[0].gone:
            return self.window[0].number, self.window[0].tokens
        return self.forgotten[-1] if self.forgotten else None

    def with_head_of(self, count: int) -> "Layout":
        """With `count` tokens in the head: the first of the window move there, or the last of the head move back.

        They go back to the turn that begins in the head. If that has left or has begun to, they are forgotten.
        """
        if len(self.head) <= count:
            return self._taking(count - len(self.head))
        freed = self.head[count:]
        layout = replace(self, head=self.head[:count])
        if not (self.window and self.window[0].in_head):
            return replace(layout, unlisted=self.unlisted + len(freed))
        back = Segment(freed[-self.window[0].in_head :], opens_message=True)
        whole = replace(self.window[0], segments=(back, *self.window[0].segments), in_head=0)
        rest = len(freed) - len(back.ids)
        return replace(layout, unlisted=self.unlisted + rest, window=(whole, *self.window[1:]))

    def _taking(self, count: int) -> "Layout":
        """With `count` more tokens in the head: they move there, or behind a gap are said once more."""
        ids = [number for block in self.window for number in block.ids][:count]
        layout = replace(self, head=(*self.head, *ids))
        if self.forgotten_tokens:
            return layout
        window: list[Block] = []
        for block in self.window:
            moved = min(count, block.held)
            count -= moved
            window.append(replace(block.cut(moved), in_head=block.in_head + moved) if moved else block)
        return replace(layout, window=tuple(window))


def layout_of(engine: Engine, ledger: TurnLedger, *, head: int) -> Layout:
    """What `engine` holds now, of which the first `head` tokens are the head."""
    state, ids = engine.state, engine.held_ids
    pins: list[Block] = []
    place = min(head, state.seen)
    for number, tokens in ledger.pinned().items():
        pins.append(Block(number, (Segment(tuple(ids[place : place + tokens]), opens_message=True),)))
        place += tokens
    spans = ledger.spans(state)
    oldest = state.next_to_leave
    window = _blocks(engine.window_segments(), spans, oldest)
    if window and not state.evicted and not pins:
        starts = {entry.number: entry.start for entry in ledger.entries}
        window[0] = replace(window[0], in_head=max(0, state.pinned - starts.get(window[0].number, state.pinned)))
    held = {block.number for block in window}
    forgotten = tuple((number, len(span)) for number, span in spans.items() if number not in held)
    listed = sum(tokens for _, tokens in forgotten) + sum(block.gone for block in window)
    return Layout(tuple(ids[: min(head, state.seen)]), tuple(pins), state.evicted - listed, forgotten, tuple(window))


def _blocks(segments: Sequence[Segment], spans: dict[int, Span], first: int) -> list[Block]:
    """The window's segments, the oldest of which begins with token `first`, by turns."""
    blocks: dict[int, list[Segment]] = {}
    for segment in segments:
        number = next((number for number, span in spans.items() if span.start <= first < span.stop), 0)
        blocks.setdefault(number, []).append(segment)
        first += len(segment.ids)
    oldest = first - sum(len(segment.ids) for segment in segments)
    return [
        Block(number, tuple(parts), gone=max(0, oldest - spans[number].start) if number else 0)
        for number, parts in blocks.items()
    ]
