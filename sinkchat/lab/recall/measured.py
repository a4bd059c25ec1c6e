"""StreamEval on an engine: facts are read, questions asked and taken back. Nothing here knows which model answers."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy
from sinkchat.engine.segment import Segment
from sinkchat.errors import UsageError
from sinkchat.lab.recall.recall import (
    HEADER,
    HIGHEST,
    LOWEST,
    Answer,
    Fact,
    Plan,
    Reading,
    distances_around,
    line_text,
    question_for,
)

_NUMBER = re.compile(r"\s*(\d+)")
_LEAST_LINES = 4


class Words(Protocol):
    """What is asked of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


def stream_eval(engine: Engine, words: Words, plan: Plan) -> Iterator[Reading | Answer]:
    """Reads lines of facts, as far as the questions go; tells of each line, and gives an answer for each question.

    Each line opens a message, so that a policy which evicts messages evicts lines. Leaving the loop stops the work.
    """
    plan = _settled(engine, words, plan)
    draw = random.Random(plan.seed)
    engine.cache.pinned = plan.sinks
    engine.reset()
    engine.feed(words.encode(HEADER))
    facts: list[Fact] = []
    first = -(-max(plan.distances) // plan.every) * plan.every
    last = first + (plan.rounds - 1) * plan.every
    asked = 0
    for line in range(1, last + 1):
        facts.append(_tell(engine, words, Fact(line, draw.randint(LOWEST, HIGHEST), 0, 0)))
        yield Reading(line, last, asked, plan.rounds * len(plan.distances))
        if line % plan.every == 0 and line >= first:
            for distance in plan.distances:
                yield _ask(engine, words, facts[-distance], distance)
            asked += len(plan.distances)


def _settled(engine: Engine, words: Words, plan: Plan) -> Plan:
    """The plan with its distances. Raises `UsageError` for a cache in which no fact has room beside a question."""
    fact = len(words.encode(line_text(100, LOWEST), add_special_tokens=False))
    window = engine.cache.capacity - plan.sinks
    lines = window // fact
    if lines < _LEAST_LINES:
        raise UsageError(
            f"{plan.sinks} sinks and lines of {fact} tokens leave room for {max(0, lines)} of them in a cache of "
            f"{engine.cache.capacity:,}",
            hint=f"--cache-size {plan.sinks + 2 * _LEAST_LINES * fact}",
        )
    return plan if plan.distances else replace(plan, distances=distances_around(lines - 1))


def _tell(engine: Engine, words: Words, fact: Fact) -> Fact:
    """Reads the line; the fact with its place in the stream."""
    ids = words.encode(line_text(fact.line, fact.number), add_special_tokens=False)
    start = engine.state.seen
    for _ in engine.read([Segment(tuple(ids), opens_message=True)]):
        pass
    return replace(fact, start=start, stop=engine.state.seen)


def _ask(engine: Engine, words: Words, fact: Fact, distance: int) -> Answer:
    """Asks for a fact's number and takes question and answer back. Held is what still is when the answer ends."""
    here = engine.mark()
    seen = engine.state.seen
    question = words.encode(question_for(fact.line), add_special_tokens=False)
    number = str(fact.number)
    most = len(words.encode(number, add_special_tokens=False)) + 1
    try:
        for _ in engine.read([Segment(tuple(question), opens_message=True)]):
            pass
        said = [
            step.token
            for step in engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=most)
            if step.token is not None
        ]
        is_held = fact.is_held(engine.state)
    finally:
        engine.rewind(here)
    found = _NUMBER.match(words.decode(said))
    return Answer(distance, seen - fact.start, number, found[1] if found else "", is_held)
