"""Conversations outlast what happens to the process and to the disk. The whole program, with a tiny real model."""

import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from forked import Nursery, Talk
from lasting_program import CAPACITY, LETTERS, MAX_TOKENS
from terminals import CTRL_C, CTRL_D

from sinkchat.chat.past import Past, read_past
from sinkchat.chat.store import Store

QUIET = ("--panel", "off", "--raw")
SUMS = re.compile(r"pinned ([\d,]+) \+ window ([\d,]+)/([\d,]+) \+ forgotten ([\d,]+) = seen ([\d,]+)")
READ_AGAIN = "note: what is remembered is read again: "


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def past_of(home: Path, name: str = "x") -> Past:
    """A conversation as its files tell it. Raises where one of them is damaged."""
    return read_past(Store(home / "sinkchat" / "sessions").read(name))


def said_in(past: Past) -> list[tuple[str, str]]:
    transcript = past.transcript
    turns = [transcript.said(number) for number in range(transcript.first, transcript.count + 1)]
    return [(said.user, said.answer) for said in turns]


def is_begun(talk: Talk) -> bool:
    return talk.waits(lambda: any(" · cache " in row for row in talk.rows)) and talk.is_asked()


def say(talk: Talk, line: str) -> list[str]:
    """Sends a line; the rows between it and the next prompt."""
    asked = f"> {line}"
    before = talk.all_rows.count(asked)
    talk.type(f"{line}\r")
    assert talk.waits(lambda: talk.all_rows.count(asked) > before), talk.rows
    assert talk.is_asked(), talk.rows
    rows = [row for row in talk.all_rows if row]
    return rows[len(rows) - rows[::-1].index(asked) : len(rows) - 1 - rows[::-1].index(">")]


def sums(row: str) -> dict[str, int]:
    """What /memory says, which must add up."""
    found = SUMS.match(row)
    assert found, row
    names = ("pinned", "window", "room", "forgotten", "seen")
    state = dict(zip(names, (int(number.replace(",", "")) for number in found.groups()), strict=True))
    assert state["pinned"] + state["window"] + state["forgotten"] == state["seen"]
    assert state["pinned"] + state["room"] == CAPACITY
    assert state["window"] <= state["room"]
    return state


def is_sane(answer: str) -> bool:
    """Whether this is how the model speaks."""
    return 0 < len(answer) <= MAX_TOKENS and set(answer) <= set(LETTERS)


@dataclass
class Chat:
    """A conversation by what was seen of it: what certainly happened, and what may have."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    pins: set[int] = field(default_factory=set)
    cleared: tuple[list[tuple[str, str]], set[int]] | None = None

    def copy(self) -> "Chat":
        return Chat(list(self.turns), set(self.pins), self.cleared)


class Chatter:
    """Somebody who says and does all kinds of things, and at some moment is cut off."""

    def __init__(self, draws: random.Random, nursery: Nursery, home: Path) -> None:
        self.draws = draws
        self.nursery = nursery
        self.home = home
        self.chat = Chat()
        self.messages = 0
        self.kills: list[str] = []

    def live_and_die(self) -> None:
        """One process, from its beginning to a kill, and what is found afterwards."""
        draws = self.draws
        with Talk(self.nursery, self.home, "--session", "x", *QUIET) as talk:
            if draws.random() < 0.1:
                time.sleep(draws.random() * 0.5)
                talk.kill()
                after, deed = self.chat, "begin"
            else:
                self._begins(talk)
                for _ in range(draws.randrange(3)):
                    self.chat = self._do(talk, self._deed(), is_cut=False)
                deed = self._deed(may_leave=True)
                after = self._do(talk, deed, is_cut=True)
        self.kills.append(deed)
        self._look(after, deed)

    def _begins(self, talk: Talk) -> None:
        """The conversation goes on: all is there, memory adds up, the next turn has the next number."""
        chat = self.chat
        assert is_begun(talk), talk.rows
        state = sums(say(talk, "/memory")[0])
        rows = say(talk, "/turns")
        if not chat.turns:
            assert rows == ["no turn yet"]
        else:
            assert int(rows[-1].split()[0]) == len(chat.turns)
            assert rows[-1].endswith(chat.turns[-1][0])
            assert state["seen"] > 0
        assert {int(row.split()[0]) for row in rows if " pinned " in row} == chat.pins
        self.chat = self._do(talk, "send", is_cut=False)
        assert is_sane(self.chat.turns[-1][1]), self.chat.turns[-1]
        assert say(talk, "/turns")[-1].split()[0] == str(len(self.chat.turns))

    def _deed(self, *, may_leave: bool = False) -> str:
        deeds = {"send": 12, "cut": 3, "undo": 3, "pin": 2, "unpin": 1, "clear": 1, "note": 1}
        if may_leave:
            deeds |= {"leave": 4}
        return self.draws.choices(list(deeds), list(deeds.values()))[0]

    def _do(self, talk: Talk, deed: str, *, is_cut: bool) -> Chat:
        """What the conversation is once that is done; where it is cut, the process is killed before one sees it."""
        chat = self.chat.copy()
        number = len(chat.turns)
        match deed:
            case "send" | "cut":
                self.messages += 1
                slowly = "slowly " if deed == "cut" else ""
                line = f"{slowly}message {self.messages}"
                chat.turns.append((line, ""))
                chat.cleared = None
            case "note":
                self.messages += 1
                line = f"/pin fact {self.messages}"
            case "undo":
                line = "/undo"
                if chat.turns:
                    chat.turns.pop()
                    chat.pins.discard(number)
                elif chat.cleared is not None:
                    chat.turns, chat.pins = chat.cleared
                    chat.cleared = None
            case "pin":
                line = f"/pin {number}"
            case "unpin":
                line = f"/unpin {max(chat.pins, default=1)}"
            case "clear":
                line = "/clear"
                if chat.turns:
                    chat.cleared = (list(chat.turns), set(chat.pins))
                chat.turns, chat.pins = [], set()
            case _:
                line = ""
        if is_cut:
            talk.type(CTRL_D if deed == "leave" else f"{line}\r")
            longest = {"cut": 0.9, "leave": 0.3}.get(deed, 0.15)
            time.sleep(self.draws.random() * longest)
            talk.kill()
            return chat
        if deed == "cut":
            talk.type(f"{line}\r")
            time.sleep(0.3 + self.draws.random() * 0.4)
            talk.type(CTRL_C)
            rows = self._until_asked(talk, line)
        else:
            rows = say(talk, line)
        return self._seen(chat, deed, rows)

    def _until_asked(self, talk: Talk, line: str) -> list[str]:
        assert talk.waits(lambda: f"> {line}" in talk.all_rows)
        assert talk.waits(lambda: bool(talk.rows) and re.fullmatch(r">( slowly message \d+)?", talk.rows[-1]) is not None)
        talk.watch(0.05)
        if not talk.is_asked(0.2):
            talk.type("\x15")
            assert talk.is_asked(), talk.rows
        rows = [row for row in talk.all_rows if row]
        at = len(rows) - 1 - rows[::-1].index(f"> {line}")
        return rows[at + 1 : -1]

    def _seen(self, chat: Chat, deed: str, rows: list[str]) -> Chat:
        """The conversation after a deed, by the rows that it left on the screen."""
        if any(row.startswith("error:") for row in rows):
            return self.chat
        before = self.chat
        if deed in ("send", "cut"):
            answer = next((row for row in rows if set(row) <= set(LETTERS)), "")
            if not answer:
                assert deed == "cut", rows
                return before
            chat.turns[-1] = (chat.turns[-1][0], answer)
        elif deed == "note":
            number = len(before.turns) + 1
            assert f"turn {number} is pinned: " in "\n".join(rows)
            chat.turns.append((f"fact {self.messages}", "Noted."))
            chat.pins.add(number)
            chat.cleared = None
        elif deed == "pin":
            chat.pins.add(len(before.turns))
        elif deed == "unpin":
            chat.pins.discard(max(before.pins))
        return chat

    def _look(self, after: Chat, deed: str) -> None:
        """Nothing that was seen to be complete is lost, and nothing came of what was cut but what may."""
        before = self.chat
        if not (self.home / "sinkchat/sessions/x/00001.jsonl").exists():
            assert before.turns == []
            return
        past = past_of(self.home)
        found = said_in(past)
        assert past.notes == ()
        if found == before.turns and (deed in ("send", "cut") or len(after.turns) == len(before.turns)):
            self.chat = before.copy()
        elif deed in ("send", "cut"):
            assert found[:-1] == before.turns, (deed, found, before.turns)
            user, answer = found[-1]
            assert after.turns[-1][0].startswith(user), (user, after.turns[-1])
            assert answer == "" or is_sane(answer)
            self.chat = after
            self.chat.turns = found
            if user == "":
                self.chat = before.copy()
        elif deed == "note":
            assert found[: len(before.turns)] == before.turns
            assert len(found) <= len(before.turns) + 1
            self.chat = before.copy()
            self.chat.turns = [turn for turn in found if turn[0]]
        else:
            assert found in (before.turns, after.turns), (deed, found, before.turns, after.turns)
            self.chat = after if found == after.turns else before.copy()
        self.chat.cleared = None
        pins = set() if past.outline is None else {entry.number for entry, _ in past.outline.pins}
        may = {frozenset(before.pins), frozenset(after.pins)}
        if deed == "pin":
            may.add(frozenset(before.pins | {len(before.turns)}))
        if deed == "unpin" and before.pins:
            may.add(frozenset(before.pins - {max(before.pins)}))
        if deed == "note":
            may.add(frozenset(before.pins | {len(before.turns) + 1}))
        if found:
            assert frozenset(pins) & set(range(1, len(found) + 1)) in may, (deed, pins, may)
            self.chat.pins = pins & set(range(1, len(found) + 1))
        else:
            self.chat.pins = set()


def kill(nursery: Nursery, folder: Path, *, times: int, seed: int) -> Chatter:
    chatter, life = None, 0
    kills: list[str] = []
    while len(kills) < times:
        if chatter is None or len(chatter.kills) == 25:
            life += 1
            chatter = Chatter(random.Random(seed + life), nursery, folder / str(life))
            (folder / str(life)).mkdir()
        chatter.live_and_die()
        kills.append(chatter.kills[-1])
    chatter.kills = kills
    return chatter


def test_what_was_seen_to_be_complete_outlasts_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    chatter = kill(nursery, tmp_path, times=15, seed=int(time.time()))
    assert len(set(chatter.kills)) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_what_was_seen_to_be_complete_outlasts_three_hundred_kills(nursery: Nursery, tmp_path: Path) -> None:
    chatter = kill(nursery, tmp_path, times=300, seed=1)
    deeds: dict[str, Any] = {deed: chatter.kills.count(deed) for deed in set(chatter.kills)}
    assert {"begin", "send", "cut", "undo", "pin", "leave", "clear"} <= deeds.keys(), deeds
