"""A person who presses Ctrl-C at random moments of real exchanges with a tiny model, and what must be so after each.

The signal is a real SIGINT. Beside the conversation runs a control: an engine that is fed the same stream of ids,
message by message, and is never interrupted. What is in the stream is learnt from the model itself, by hooks.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from streams import distance, engine_for
from tiny import SPECIAL_TOKENS, tiny_model, tiny_tokenizer
from worlds import Terminal

from sinkchat.cache.policy import EvictionPolicy, EvictMessages, EvictTokens
from sinkchat.chat.events import TurnEnded
from sinkchat.chat.options import ChatOptions, ModelCard
from sinkchat.chat.session import ChatSession
from sinkchat.engine.engine import Engine
from sinkchat.engine.segment import Segment
from sinkchat.errors import ExitStatus
from sinkchat.terminal.drawing.gauge import Gauge
from sinkchat.terminal.drawing.person import Look, PersonView
from sinkchat.terminal.repl import Repl
from sinkchat.terminal.screen import Screen
from sinkchat.terminal.slash.desk import Desk

TOKENIZER = tiny_tokenizer()
END, START = (TOKENIZER.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|im_start|>"))
TOLERANCE = 1e-4
"""of logits, in their standard deviations: chunks of other sizes add up in another order"""

POLICIES: tuple[EvictionPolicy, ...] = (EvictMessages(), EvictTokens(4), EvictTokens(16))
CHUNK, ANSWER = 16, 20


@dataclass
class Press:
    """A Ctrl-C: how many forwards there had been by then."""

    forwards: int


@dataclass
class Tally:
    """What the presses met."""

    reading: int = 0
    answering: int = 0
    late: int = 0
    """nothing was left to stop: the last token had been drawn"""
    worst: float = 0.0
    """the largest distance of logits from those of the control"""

    @property
    def trials(self) -> int:
        return self.reading + self.answering + self.late

    def add(self, other: "Tally") -> None:
        self.reading += other.reading
        self.answering += other.answering
        self.late += other.late
        self.worst = max(self.worst, other.worst)


class Clock:
    """Real time, in which each Ctrl-C comes long after the one before."""

    def __init__(self) -> None:
        self.leap = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.leap


@dataclass
class Fed:
    """What a model was fed, and how many forwards that took."""

    ids: list[int] = field(default_factory=list)
    forwards: int = 0

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        def note(module: object, args: object, kwargs: dict[str, Any], output: object) -> None:
            self.ids += kwargs["input_ids"][0].tolist()
            self.forwards += 1

        hook = model.register_forward_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


def exchange_problems(ids: list[int]) -> list[str]:
    """What is wrong with a stream that should be ChatML whose last message is an answer that may go on."""
    roles, problems, is_open = [], [], False
    for place, number in enumerate(ids):
        if number == START:
            if is_open:
                problems.append(f"message {len(roles)} begins inside another")
            header = TOKENIZER.decode(ids[place + 1 : place + 12]).partition("\n")[0]
            roles.append(header)
            is_open = True
        elif number == END:
            if not is_open:
                problems.append(f"an end without a beginning after message {len(roles)}")
            is_open = False
        elif not is_open and TOKENIZER.decode([number]) != "\n":
            problems.append(f"text between two messages after message {len(roles)}")
    talk = roles[1:] if roles[:1] == ["system"] else roles
    if talk != ["user", "assistant"] * (len(talk) // 2):
        problems.append(f"roles {talk}")
    if ids and not is_open:
        problems.append("the last answer is closed before the next turn is asked for")
    return problems


def user_messages(ids: list[int]) -> list[str]:
    """What the person said in a stream of ChatML."""
    text = TOKENIZER.decode(ids)
    return [part.removeprefix("user\n").partition("<|im_end|>")[0] for part in text.split("<|im_start|>")[1::2]]


class Trial(Exception):
    """A check failed."""


class InterruptingPerson:
    """Sends messages through the real prompt loop and presses Ctrl-C once in each exchange. A line source."""

    def __init__(self, *, trials: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._trials = trials
        self._capacity = self._random.choice((96, 160, 256))
        self._policy = POLICIES[seed % len(POLICIES)]
        self.model = self._model(seed)
        system = self._random.choice((None, "Be brief."))
        self.session = ChatSession(
            self._engine(self.model, pinned=0),
            TOKENIZER,
            card=ModelCard("tiny", "none", "float32", "cpu", 4096),
            options=ChatOptions(temperature=0.8, top_k=20, seed=seed, max_tokens=ANSWER),
            system=system,
        )
        self.control = self._engine(self._model(seed), pinned=self.session.pinned)
        self.fed = Fed()
        self.tally = Tally()
        self._clock = Clock()
        self._desk = Desk(lambda: self.session)
        self._said: list[str] = []
        self._message: str | None = None
        self._press: Press | None = None
        self._before = self.session.state
        self._answered = 0
        self._seconds = self._forwards = 1e-9

    def run(self) -> ExitStatus:
        before = signal.signal(signal.SIGALRM, self._press_ctrl_c)
        try:
            with self.fed.of(self.model):
                return self._converse()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _converse(self) -> ExitStatus:
        screen = Screen(Terminal(), clock=self._clock)
        view = PersonView(
            screen,
            gauge=Gauge(clock=self._clock),
            choice=self._desk.panel,
            look=Look(),
            size=lambda: os.terminal_size((80, 24)),
            clock=self._clock,
        )
        return Repl(self._desk, screen=screen, view=view, clock=self._clock).run(self)

    def read(self, draft: str = "") -> str:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._message is not None:
            self._judge(draft)
        if self.tally.trials == self._trials:
            raise EOFError
        self._clock.leap += 10
        self._message = "".join(
            self._random.choices("abcdefgh ,.\n", k=self._random.choice((1, 30, 200, 600)))
        ).strip()
        self._message = self._message or "?"
        self._press, self._before = None, self.session.state
        self._forwards_before, self._began = self.fed.forwards, time.perf_counter()
        forwards = len(self._message) / (4 if self._policy == EvictTokens(4) else CHUNK) + ANSWER
        moment = self._random.random() * forwards * self._seconds / self._forwards
        signal.setitimer(signal.ITIMER_REAL, min(max(1e-5, moment), 1.0))
        return self._message

    def _press_ctrl_c(self, number: int, frame: FrameType | None) -> None:
        self._press = Press(self.fed.forwards)
        os.kill(os.getpid(), signal.SIGINT)

    def _judge(self, draft: str) -> None:
        """What has become of the exchange, and whether all is as it should be."""
        session, tally, press = self.session, self.tally, self._press
        self._seconds += time.perf_counter() - self._began
        self._forwards += self.fed.forwards - self._forwards_before
        words = self._desk.tally.completion_tokens - self._answered
        self._answered += words
        was_taken_back = session.latest == len(self._said)
        if was_taken_back:  # but for the opening, which is read before the first turn
            del self.fed.ids[self._before.seen or min(session.state.seen, len(session.template.opening)) :]
            self._check(draft == self._message, "the message is back on the line")
        else:
            self._said.append(str(self._message))
            self._check(draft == "", "nothing stands on the line")
        if press is not None:
            more = self.fed.forwards - press.forwards
            self._check(more <= 1, f"at most one more forward after Ctrl-C, not {more}")
            if was_taken_back:
                tally.reading += 1
            elif session.can_proceed and words < ANSWER:
                tally.answering += 1
            else:
                tally.late += 1
        self._check_memory()

    def _check_memory(self) -> None:
        session, engine, state = self.session, self.session.engine, self.session.state
        lengths = [layer.get_seq_length() for layer in engine.cache.layers]
        self._check(set(lengths) == {state.occupied}, f"all layers hold {state.occupied}, not {lengths}")
        self._check(state.pinned + state.window + state.evicted == state.seen, f"the sum of {state}")
        self._check(len(self.fed.ids) == state.seen, f"{len(self.fed.ids)} ids were fed, {state.seen} seen")
        kept = self.fed.ids[: state.pinned] + self.fed.ids[state.next_to_leave :]
        self._check(engine.held_ids == kept, "the ids that are held are those of the stream")
        borders = [at for at, number in enumerate(self.fed.ids) if number == START and at >= session.pinned]
        held = [at for at in borders if at >= state.next_to_leave]
        self._check(list(engine.cache.borders) == held, "the borders are where messages begin")
        self._check(sum(turn.left for turn in session.held) <= state.window, "turns hold no more than the window")
        if session.latest:
            stream = self.fed.ids + engine.pending
            self._check(not (problems := exchange_problems(stream)), f"{problems}")
            talk = stream[len(session.template.opening) :]
            self._check(user_messages(talk) == self._said, "the messages are those that were sent")
            waiting = len(engine.pending)
            self._check(waiting <= session.can_proceed, f"{waiting} tokens of the answer wait to be fed")
        self._compare_with_control(borders)

    def _compare_with_control(self, borders: list[int]) -> None:
        """Feeds the control what is new, and compares what both make of it."""
        engine, control = self.session.engine, self.control
        known = control.state.seen
        cuts = sorted({known, len(self.fed.ids), *(at for at in borders if at > known)})
        for start, stop in pairwise(cuts):
            for _ in control.read([Segment(tuple(self.fed.ids[start:stop]), opens_message=start in borders)]):
                pass
        self._check(control.state == engine.state, f"{engine.state} is {control.state} in the control")
        if control.logits is not None and engine.logits is not None:
            self.tally.worst = max(self.tally.worst, distance(engine.logits, control.logits))
            self._check(self.tally.worst < TOLERANCE, f"logits differ by {self.tally.worst}")

    def _model(self, seed: int) -> torch.nn.Module:
        """A model that never draws a special token, so that the length of an answer is known."""
        model = tiny_model("llama", 2 + seed % 3, seed=seed)
        for name in SPECIAL_TOKENS:
            model.lm_head.weight[TOKENIZER.convert_tokens_to_ids(name)] = 0  # never among the likeliest 20 of 260
        return model

    def _engine(self, model: torch.nn.Module, *, pinned: int) -> Engine:
        return engine_for(model, self._policy, capacity=self._capacity, pinned=pinned, chunk_size=CHUNK)

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Trial(f"trial {self.tally.trials}: {what}")


class RecklessPerson(InterruptingPerson):
    """The same without the prompt loop: Ctrl-C raises KeyboardInterrupt wherever it comes, as Python has it.

    Not compared with the control: room that was made for a forward that never came is no fault.
    """

    def _compare_with_control(self, borders: list[int]) -> None:
        """Nothing."""

    def _converse(self) -> ExitStatus:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        draft = ""
        try:
            while True:
                try:
                    message = self.read(draft)
                except EOFError:
                    return ExitStatus.OK
                turns = self.session.latest
                try:
                    for event in self.session.send(message):
                        if isinstance(event, TurnEnded):
                            self._desk.tally.add(event)
                except KeyboardInterrupt:
                    """Whatever that broke is seen at the next look."""
                draft = message if self.session.latest == turns else ""
        finally:
            signal.signal(signal.SIGINT, before)
