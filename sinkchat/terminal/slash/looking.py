"""The commands that look: at memory, turns, settings, speeds. They change nothing of what was said."""

from collections.abc import Iterator

from sinkchat.errors import UsageError
from sinkchat.terminal import wording
from sinkchat.terminal.asked import settings
from sinkchat.terminal.drawing.choice import FORMS
from sinkchat.terminal.drawing.markdown import render as laid_out
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.slash.desk import Desk, Leave, Output, Page

_EDGE_CHARACTERS = 600
_PREVIEW_CHARACTERS = 48


def leave(desk: Desk, argument: str) -> Iterator[Output]:
    raise Leave


def memory(desk: Desk, argument: str) -> Iterator[Output]:
    state = desk.conversation.state
    yield wording.memory(state)
    yield from wording.what_is_held(desk.conversation.turns)
    yield f"keys and values: {wording.memory_size(state.nbytes)}"


def turns(desk: Desk, argument: str) -> Iterator[Output]:
    turns = desk.conversation.turns
    if not turns:
        yield "no turn yet"
    for turn in turns:
        if turn.is_pinned:
            held = "pinned"
        elif turn.left == turn.tokens:
            held = "held"
        else:
            held = wording.percent_left(turn.left, turn.tokens) if turn.left else "forgotten"
        yield f"{turn.number:>5}  {held:<10}{turn.tokens:>7,} tokens  {preview(turn.user)}"


def see(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    state = conversation.state
    if argument not in ("", "pinned", "edge"):
        raise UsageError(f"/see {one_line(argument)}: use pinned, edge, or nothing for all")
    if argument != "edge":
        yield f"── pinned: {state.pinned:,} tokens that never leave ──"
        yield conversation.pinned_text()
    if argument == "edge":
        yield "── the edge: the oldest words of the window, next to leave ──"
        yield conversation.window_text()[:_EDGE_CHARACTERS]
    elif not argument:
        yield f"── window: {state.window:,} tokens, oldest first ──"
        yield conversation.window_text()


def change_setting(desk: Desk, argument: str) -> Iterator[Output]:
    name, _, value = argument.partition(" ")
    options = desk.conversation.options
    if not name:
        yield from settings.listed(options, desk.sources)
        return
    chosen = settings.setting(name)
    if value.strip():
        desk.conversation.options = options = settings.changed(options, name, value.strip())
        desk.set_here[chosen.field] = "/set"
    source = desk.sources.get(chosen.field, "built-in")
    yield f"{chosen.name} {settings.shown(getattr(options, chosen.field))} ({source}): {chosen.meaning}"


def render(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    if not conversation.latest:
        raise UsageError("nothing was said yet")
    answer = conversation.said(conversation.latest).answer
    yield Page(laid_out(answer, columns=desk.columns(), color=desk.color))


def stats(desk: Desk, argument: str) -> Iterator[Output]:
    tally, state = desk.tally, desk.conversation.state
    speed = tally.completion_tokens / tally.answer_seconds if tally.answer_seconds else 0.0
    yield f"answers {tally.answers:,}: {tally.prompt_tokens:,} tokens read, {tally.completion_tokens:,} written"
    yield f"speed {speed:.1f} tok/s on average, {desk.conversation.decoding}"
    yield f"memory {wording.memory(state)}, {wording.memory_size(state.nbytes)} of keys and values"


def panel(desk: Desk, argument: str) -> Iterator[Output]:
    if not argument:
        desk.panel.change()
    elif chosen := next((form for form in FORMS if form == argument), None):
        desk.panel.form = chosen
    else:
        raise UsageError(
            f"/panel {one_line(argument)}: use full, line or off; alone it changes to the next, as F2 does"
        )
    yield f"panel: {desk.panel.form}"


def preview(text: str) -> str:
    """The beginning of a text, on one line."""
    line = one_line(text)
    return line if len(line) <= _PREVIEW_CHARACTERS else f"{line[: _PREVIEW_CHARACTERS - 1]}…"
