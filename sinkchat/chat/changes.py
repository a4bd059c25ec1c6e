"""What can be changed about what was said: turns taken back, pinned, unpinned, under another system prompt.

Each is a `Change`: what it costs, said before it is done. The latest turn comes out exactly, and so does any turn
while nothing has been forgotten. Everything else lays memory out anew and reads it again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sinkchat.chat.events import Event, PromptProgress, TurnCancelled
from sinkchat.chat.layout import Block, Encode, Layout, layout_of
from sinkchat.chat.memory import Memory
from sinkchat.chat.outline import Outline
from sinkchat.chat.room import leaves_room
from sinkchat.chat.template import ChatTemplate
from sinkchat.chat.turns import Entry, TurnLedger, shorten
from sinkchat.engine.segment import Segment
from sinkchat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Change:
    """`tokens` must be read again; 0: it is exact and done at once. Going through `events` does it."""

    tokens: int
    events: Iterator[Event]

    def between(self, before: Callable[[], object], after: Callable[[], object] = lambda: None) -> "Change":
        """The same change, with something done when it begins and when it is done."""

        def events() -> Iterator[Event]:
            before()
            yield from self.events
            after()

        return Change(self.tokens, events())


def at_once(act: Callable[[], None]) -> Change:
    """A change that costs nothing."""

    def events() -> Iterator[Event]:
        act()
        yield from ()

    return Change(0, events())


class Changes:
    """The changes that one conversation allows, under one template.

    `sinks` is how many tokens are pinned besides turns; `is_auto` lets pinned turns stand in for those of them that
    lie behind the opening.
    """

    def __init__(
        self,
        memory: Memory,
        template: ChatTemplate,
        *,
        sinks: int,
        is_auto: bool,
        stopped: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._engine = memory.engine
        self._template = template
        self._sinks = sinks
        self._is_auto = is_auto
        self._stopped = stopped
        self._clock = clock

    def undo(self, turn: int | None) -> Change:
        """Takes back that turn and all after it, by default the latest; after clearing, brings the old turns back."""
        memory = self._memory
        if turn is None and memory.can_unclear:
            return at_once(memory.unclear)
        latest = memory.ledger.count
        first = self._known(latest if turn is None else turn)
        if first == latest and memory.can_take_back:
            return at_once(memory.take_back)
        if first == 1:
            return at_once(lambda: memory.clear(sinks=self._sinks, for_good=True))
        layout = self._layout()
        kept = layout.without(lambda number: number >= first)
        refilled = kept.refilled(self._engine.state.capacity - kept.pinned, self._encoding_behind(kept))
        dropped = next((block for block in layout.window if block.number >= first), None)
        ends_earlier = (layout.pins, layout.forgotten, layout.window[: len(kept.window)]) == (
            kept.pins,
            kept.forgotten,
            kept.window,
        )
        if refilled == kept and ends_earlier and dropped is not None and not dropped.gone:
            return at_once(lambda: self._truncate(first, dropped.number))
        if not refilled.pins:
            refilled = refilled.with_head_of(self._sinks)
        return self._laid(refilled, count=first - 1, keeps_latest=False)

    def pin(self, turn: int) -> Change:
        """Keeps that turn for ever, among the pinned tokens."""
        ledger = self._memory.ledger
        if self._known(turn) in ledger.pinned():
            raise UsageError(f"turn {turn} is pinned already")
        layout = self._layout(with_pins=True)
        is_latest = turn == ledger.count
        block = next((block for block in layout.window if block.number == turn and not block.gone), None)
        if block is None:
            block = self._encoding_behind(layout)(turn)
        elif is_latest and not self._memory.is_closed:
            ending = Segment((*self._engine.pending, *self._template.closing))
            block = Block(turn, (*block.segments, ending))
        layout = self._in_place(layout.pinning(block))
        self._check_room(layout.pinned, f"with turn {turn} ({block.held:,} tokens) pinned")
        return self._laid(layout, count=ledger.count, keeps_latest=not is_latest)

    def unpin(self, turn: int) -> Change:
        """Lets that turn leave again: it is the next to go."""
        ledger = self._memory.ledger
        if turn not in ledger.pinned():
            raise UsageError(f"turn {turn} is not pinned", hint="/pin lists those that are")
        layout = self._in_place(self._layout().unpinning(turn))
        if not layout.pins:
            layout = layout.with_head_of(self._sinks)
        return self._laid(layout, count=ledger.count, keeps_latest=True)

    def after_opening_of(self, opening: int) -> Change:
        """What is held behind another opening, of so many tokens, goes behind that of this template."""
        layout = replace(self._layout().with_head_of(opening), head=self._template.opening)
        if not layout.pins:
            layout = layout.with_head_of(self._sinks)
        layout = layout.replacing(1, self._encoding_behind(layout))
        self._check_room(layout.pinned, "under this system prompt")
        return self._laid(layout, count=self._memory.ledger.count, keeps_latest=self._memory.ledger.count != 1)

    def read_again(self, outline: Outline) -> Change:
        """What the outline describes, read from its ids: equal in every number, and the keys are nearly those."""
        self._check_room(outline.to_pin, "as this conversation goes on")
        return Change(len(outline.pinned) + len(outline.window), self._read_again(outline))

    def read_anew(self, count: int, pins: Sequence[int]) -> Change:
        """A conversation of `count` turns, read from its words: the pinned ones, and of the latest what fits."""
        encode, opening = self._encoding(first=not pins), Segment(self._template.opening)
        pinned = tuple(encode(number) for number in pins)
        head = len(opening.ids) if pins else self._sinks
        room = self._engine.state.capacity - max(len(opening.ids), head) - sum(block.held for block in pinned)
        blocks: list[Block] = []
        for number in range(count, self._memory.transcript.first - 1, -1):
            if number not in pins:
                block = encode(number)
                room -= block.held
                if room < 0:
                    break
                blocks.insert(0, block)
        layout = Layout((), pinned, 0, (), (Block(0, (opening,)), *blocks)).with_head_of(head)
        self._check_room(layout.pinned, "as this conversation goes on")
        return Change(layout.tokens, self._read_anew(layout, count))

    def _read_again(self, outline: Outline) -> Iterator[Event]:
        memory = self._memory
        with memory.change():
            memory.ledger = TurnLedger.of(outline.turns, outline.pins, count=outline.count)
            yield from self._relay(
                outline.pinned, outline.segments(), pinned=outline.to_pin, forgotten=outline.evicted
            )
            self._engine.pending.extend(outline.pending)
            memory.is_closed = outline.is_closed

    def _read_anew(self, layout: Layout, count: int) -> Iterator[Event]:
        memory = self._memory
        read = [block.number for block in (*layout.pins, *layout.window) if block.number]
        said = [(number, memory.transcript.said(number)) for number in read]
        entries = [Entry(number, 0, shorten(words.user), shorten(words.answer)) for number, words in said]
        with memory.change():
            memory.ledger = TurnLedger.of(entries, (), count=count)
            yield from self._lay(layout, count, False)

    def _known(self, turn: int) -> int:
        """The number of a turn that the ledger still lists."""
        turns = self._memory.ledger.turns(self._engine.state)
        if not turns:
            raise UsageError("nothing was said yet")
        if turn not in {known.number for known in turns}:
            raise UsageError(
                f"there is no turn {turn}", hint=f"/turns lists them: {turns[0].number} to {turns[-1].number}"
            )
        return turn

    def _layout(self, *, with_pins: bool = False) -> Layout:
        """What is held now. Sinks behind the opening that nobody asked for give way to pinned turns."""
        ledger, opening = self._memory.ledger, len(self._template.opening)
        head = opening if ledger.pinned() and self._is_auto else self._sinks
        layout = layout_of(self._engine, ledger, head=head)
        return layout.with_head_of(opening) if with_pins and self._is_auto else layout

    def _in_place(self, layout: Layout) -> Layout:
        """The layout with turn 1 written for its place: not behind the opening, where pinned turns are."""
        is_apart = bool(layout.pins) and not self._template.first_is_like_later
        return layout.replacing(1, self._encoding(first=False)) if is_apart else layout

    def _encoding_behind(self, layout: Layout) -> Encode:
        """Makes turns of their texts, whole: what the head holds of turn 1 is said once more."""
        return self._encoding(first=not layout.pins)

    def _encoding(self, *, first: bool) -> Encode:
        def encode(turn: int) -> Block:
            said = self._memory.transcript.said(turn)
            return Block(turn, tuple(self._template.exchange(said.user, said.answer, first=first and turn == 1)))

        return encode

    def _check_room(self, pinned: int, when: str) -> None:
        capacity = self._engine.state.capacity
        if not leaves_room(pinned, capacity):
            raise UsageError(
                f"{when}, only {max(0, capacity - pinned):,} of {capacity:,} tokens would be left to talk in",
                hint="a larger --cache-size, or /unpin another turn",
            )

    def _truncate(self, first: int, block: int) -> None:
        """Takes back turn `first` and all after it, of which `block` is the first in the window."""
        memory = self._memory
        seen = memory.ledger.spans(self._engine.state)[block].start
        memory.forget_turn()
        self._engine.truncate(seen)
        memory.ledger.cancel_from(first)
        memory.transcript.keep(first - 1)
        memory.is_closed = True

    def _laid(self, layout: Layout, *, count: int, keeps_latest: bool) -> Change:
        def events() -> Iterator[Event]:
            yield from self._lay(layout, count, keeps_latest)
            self._memory.transcript.keep(count)

        return Change(layout.tokens, events())

    def _lay(self, layout: Layout, count: int, keeps_latest: bool) -> Iterator[Event]:
        """Reads the layout into memory. The stop flag, or an error, leaves everything as it was."""
        memory = self._memory
        pending = list(self._engine.pending) if keeps_latest else []
        forgotten = layout.forgotten_tokens
        with memory.change():
            window = [
                *layout.forgotten,
                *((block.number, block.tokens + block.in_head) for block in layout.window if block.number),
            ]
            pins = [(block.number, block.held) for block in layout.pins]
            memory.ledger.rearrange(window, pins, stop=layout.tokens + forgotten)
            memory.ledger.count = count
            head = [*layout.head, *(number for block in layout.pins for number in block.ids)]
            segments = [segment for block in layout.window for segment in block.segments]
            yield from self._relay(head, segments, pinned=max(len(head), self._sinks), forgotten=forgotten)
            self._engine.pending.extend(pending)
            memory.is_closed = memory.is_closed or not keeps_latest

    def _relay(
        self, head: Sequence[int], window: Iterable[Segment], *, pinned: int, forgotten: int
    ) -> Iterator[Event]:
        """The engine's relay as events. Raises TurnCancelled on a stop."""
        started, segments = self._clock(), list(window)
        total = len(head) + sum(len(segment.ids) for segment in segments)
        for step in self._engine.relay(head, segments, pinned=pinned, forgotten=forgotten):
            for span in step.evicted:
                yield self._memory.ledger.evicted(span, step.state)
            read = step.state.seen - (forgotten if step.state.seen > len(head) else 0)
            yield PromptProgress(read, total, self._clock() - started, step.state)
            if self._stopped():
                raise TurnCancelled
