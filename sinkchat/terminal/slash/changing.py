"""The commands that change what was said, or what of it is remembered. Each says what it costs before it is done."""

from collections.abc import Iterator

from sinkchat.chat.events import TurnCancelled
from sinkchat.errors import UsageError
from sinkchat.terminal import wording
from sinkchat.terminal.conversation import ChangeLike, Conversation
from sinkchat.terminal.sanitize import one_line
from sinkchat.terminal.slash.desk import Desk, Draft, Output
from sinkchat.terminal.slash.looking import preview

NOTED = "Noted."


def clear(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    back = "; /undo brings the old one back" if conversation.latest else ""
    conversation.clear()
    kept = "the system prompt stays" if conversation.system is not None else "nothing is remembered"
    yield f"a new conversation: {kept}{back}"


def undo(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    latest = conversation.latest
    turn = _number(argument, "/undo") if argument else None
    change = conversation.undo(turn)
    yield from _costed(change)
    if not latest:
        yield "the old conversation is back"
    else:
        yield f"{wording.turn_numbers(range(turn or latest, latest + 1))} taken back"


def retry(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    text = _latest_message(conversation)
    yield from _costed(conversation.undo())
    try:
        yield from conversation.send(text)
    except TurnCancelled:
        yield Draft(text)
        raise


def edit(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    turn = _number(argument, "/edit") if argument else None
    text = _latest_message(conversation) if turn is None else conversation.said(turn).user
    yield from _costed(conversation.undo(turn))
    yield Draft(text)


def proceed(desk: Desk, argument: str) -> Iterator[Output]:
    yield from desk.conversation.proceed()


def pin(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    if not argument:
        yield from _pinned(conversation)
        return
    if not argument.isdecimal():
        yield f"reads {conversation.weigh(_noted(argument)).tokens:,} tokens"
        try:
            yield from conversation.read(argument, NOTED)
        except TurnCancelled:
            yield Draft(f"/pin {argument}")
            raise
        turn = conversation.latest
    else:
        turn = int(argument)
    yield from _costed(conversation.pin(turn))
    yield f"turn {turn} is pinned: {wording.memory(conversation.state)}"


def unpin(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    turn = _number(argument, "/unpin")
    yield from _costed(conversation.unpin(turn))
    yield f"turn {turn} may leave again, and is the next to: {wording.memory(conversation.state)}"


def recall(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    turn = _number(argument, "/recall")
    said = conversation.said(turn)
    if any(known.number == turn and known.left == known.tokens for known in conversation.turns):
        raise UsageError(
            f"turn {turn} is not forgotten: all of it is held", hint="/turns shows how much of each is left"
        )
    note = f"For reference, turn {turn} of this conversation again.\n{_quoted('user', said.user)}"
    note += f"\n{_quoted('assistant', said.answer)}"
    weight = conversation.weigh(_noted(note))
    room = conversation.state.window_capacity
    if weight.tokens > room:
        raise UsageError(f"turn {turn} is {weight.tokens:,} tokens, and the window holds {room:,}")
    loss = f", pushes out {wording.turn_numbers(weight.pushes_out)}" if weight.pushes_out else ""
    yield f"reads {weight.tokens:,} tokens{loss}"
    yield from conversation.read(note, NOTED)
    yield f"turn {turn} is remembered again, as turn {conversation.latest}"


def system(desk: Desk, argument: str) -> Iterator[Output]:
    conversation = desk.conversation
    if not argument:
        yield conversation.system if conversation.system is not None else "no system prompt was given"
    elif conversation.latest:
        yield from _costed(conversation.change_system(argument))
        yield f"the system prompt is another now: {wording.memory(conversation.state)}"
    else:
        conversation.set_system(argument)
        yield f"the system prompt is set: {conversation.pinned:,} tokens that never leave"


def _costed(change: ChangeLike) -> Iterator[Output]:
    if change.tokens:
        yield f"reads {change.tokens:,} tokens again · Ctrl-C leaves everything as it was"
    yield from change.events


def _pinned(conversation: Conversation) -> Iterator[Output]:
    turns = {turn.number: turn for turn in conversation.turns}
    if not conversation.pinned_turns:
        yield f"no turn is pinned; {conversation.state.pinned:,} first tokens never leave"
    for number in conversation.pinned_turns:
        turn = turns[number]
        yield f"{number:>5}  {turn.tokens:>7,} tokens  {preview(turn.user)}"


def _latest_message(conversation: Conversation) -> str:
    if not conversation.latest:
        raise UsageError("nothing was said yet")
    return conversation.said(conversation.latest).user


def _number(argument: str, command: str) -> int:
    if not argument.isdecimal() or not argument.isascii():
        typed = f"{command} {one_line(argument)}".rstrip()
        raise UsageError(f"{typed}: use the number of a turn; /turns lists them")
    return int(argument)


def _noted(text: str) -> str:
    """What a text weighs that is read with its answer."""
    return f"{text} {NOTED}"


def _quoted(role: str, text: str) -> str:
    first, *others = text.strip().split("\n")
    return "\n".join([f"> {role}: {first}", *(f"> {line}" for line in others)])
