"""Ctrl-C at random moments: memory stays whole, the next turn well formed, the terminal as it was.

`interrupting` presses the key in this process, on real exchanges with a tiny model. The last tests press it in
programs of their own, on a terminal.
"""

import os
import random
import signal
from collections.abc import Iterator

import pytest
import torch
from interrupting import CHUNK, Clock, InterruptingPerson, RecklessPerson, Tally, Trial
from scripted import ScriptedConversation
from tiny import tiny_model
from transformers import DynamicCache
from worlds import Terminal

from sinkchat.chat.events import Event
from sinkchat.errors import ExitStatus
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.person import Look, PersonView
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.slash.desk import Desk

own_alarm = pytest.mark.timeout(1_800, method="thread")  # SIGALRM is ours here


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def interrupted(*, trials: int, seeds: range) -> Tally:
    """All trials together. Raises Trial at the first that leaves something behind."""
    whole = Tally()
    for seed in seeds:
        person = InterruptingPerson(trials=trials, seed=seed)
        assert person.run() is ExitStatus.OK
        whole.add(person.tally)
    return whole


@own_alarm
def test_sixty_interrupts_leave_memory_whole_and_the_next_turn_well_formed() -> None:
    tally = interrupted(trials=12, seeds=range(5))
    assert tally.trials == 60
    assert min(tally.reading, tally.answering) > 10


@own_alarm
@pytest.mark.slow
def test_a_thousand_interrupts_leave_memory_whole_and_the_next_turn_well_formed() -> None:
    tally = interrupted(trials=40, seeds=range(100, 125))
    print(tally)
    assert tally.trials == 1_000
    assert min(tally.reading, tally.answering) > 300


@own_alarm
def test_an_exception_in_the_middle_leaves_layers_of_unequal_length_in_another_cache() -> None:
    """The control: Python's own handler, transformers' own cache."""
    model, ids = tiny_model("llama", 8), torch.randint(4, 260, (1, 8 * CHUNK))
    draw = random.Random(0)
    unequal = 0
    for _ in range(40):
        cache = DynamicCache()

        def read(cache: DynamicCache = cache) -> None:
            with torch.inference_mode():
                for start in range(0, ids.shape[1], CHUNK):
                    model(ids[:, start : start + CHUNK], past_key_values=cache)

        if interrupted_by_exception(read, after=draw.uniform(0.002, 0.02)):
            unequal += len({layer.get_seq_length() for layer in cache.layers}) > 1
    print(f"{unequal} of 40")
    assert unequal > 10


@own_alarm
@pytest.mark.slow
def test_an_exception_in_the_middle_breaks_conversations_of_ours_though_no_layer() -> None:
    """Why Ctrl-C is a flag here too: the cache counts whole forwards, but the ids beside it can be torn off."""
    broken: list[str] = []
    for seed in range(60):
        person = RecklessPerson(trials=40, seed=seed)
        try:
            person.run()
        except Trial as trial:
            broken.append(str(trial))
        assert len({layer.get_seq_length() for layer in person.session.engine.cache.layers}) == 1
    print(f"{len(broken)} of 60 conversations", *broken, sep="\n")
    assert broken


def interrupted_by_exception(act: object, *, after: float) -> bool:
    """Whether Ctrl-C, by Python's own handler, broke into `act`."""

    def press(number: int, frame: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, press), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        act()  # type: ignore[operator]
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, before[1])
    return False


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class OnOneLine:
    """A person who says one thing, and leaves when asked again."""

    def __init__(self, line: str) -> None:
        self._line = line
        self.drafts: list[str] = []

    def read(self, draft: str = "") -> str:
        self.drafts.append(draft)
        if len(self.drafts) > 1:
            raise EOFError
        return self._line


def conversed(
    conversation: ScriptedConversation, person: OnOneLine, stream: Terminal, clock: Clock | None = None
) -> ExitStatus:
    clock = clock or Clock()
    screen = Screen(stream, clock=clock)
    desk = Desk(lambda: conversation)
    view = PersonView(
        screen,
        gauge=Gauge(clock=clock),
        choice=desk.panel,
        look=Look(),
        size=lambda: os.terminal_size((80, 24)),
        clock=clock,
    )
    return Repl(desk, screen=screen, view=view, clock=clock).run(person)


def test_ctrl_c_before_an_exchange_listens_stops_it_at_its_first_step() -> None:
    class Pressed(ScriptedConversation):
        def send(self, text: object) -> Iterator[Event]:
            press_ctrl_c()
            yield from super().send(text)  # type: ignore[arg-type]

    conversation, person = Pressed(capacity=1_000), OnOneLine("word " * 300)
    assert conversed(conversation, person, Terminal()) is ExitStatus.OK
    assert (person.drafts, conversation.heard, conversation.latest) == (["", "word " * 300], [], 0)


def test_one_ctrl_c_between_an_answer_and_the_prompt_does_not_leave() -> None:
    class Pressing(Terminal):
        pressed = 0

        def write(self, text: str) -> int:
            if text == "\n":  # the blank line after an answer
                self.pressed += 1
                clock.leap += 10
                press_ctrl_c()
            return super().write(text)

    clock, stream, person = Clock(), Pressing(), OnOneLine("hello")
    assert conversed(ScriptedConversation(), person, stream, clock) is ExitStatus.OK
    assert (stream.pressed > 0, person.drafts) == (True, ["", ""])


def test_ctrl_c_in_the_moment_after_enter_belongs_to_the_message() -> None:
    class Hasty(OnOneLine):
        def read(self, draft: str = "") -> str:
            line = super().read(draft)
            press_ctrl_c()
            return line

    conversation, person = ScriptedConversation(capacity=1_000), Hasty("word " * 300)
    assert conversed(conversation, person, Terminal()) is ExitStatus.OK
    assert (person.drafts, conversation.heard) == (["", "word " * 300], [])


def test_a_turn_that_was_stopped_before_the_latest_one_is_no_reason_to_leave() -> None:
    class Asked(OnOneLine):
        def read(self, draft: str = "") -> str:
            if len(self.drafts) == 2:
                self.drafts.append(draft)
                raise KeyboardInterrupt  # on an empty line
            if len(self.drafts) < 2:
                self.drafts.append(draft)
                return "word " * 300 if len(self.drafts) == 1 else "hello"
            raise EOFError

    class Stopped(ScriptedConversation):
        def send(self, text: object) -> Iterator[Event]:
            if text != "hello":
                press_ctrl_c()
            yield from super().send(text)  # type: ignore[arg-type]

    stream, person = Terminal(), Asked("")
    assert conversed(Stopped(capacity=1_000), person, stream) is ExitStatus.OK
    assert stream.getvalue().endswith("Ctrl-D or /exit leaves\n")


def test_a_second_ctrl_c_while_the_prompt_is_opening_leaves() -> None:
    class Impatient(OnOneLine):
        def read(self, draft: str = "") -> str:
            if self.drafts:
                press_ctrl_c()  # nobody hears keys yet
            return super().read(draft)

    class Stopped(ScriptedConversation):
        def send(self, text: object) -> Iterator[Event]:
            press_ctrl_c()
            yield from super().send(text)  # type: ignore[arg-type]

    status = conversed(Stopped(capacity=1_000), Impatient("word " * 300), Terminal())
    assert status is ExitStatus.INTERRUPTED
