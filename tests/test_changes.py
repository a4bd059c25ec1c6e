"""What was said is taken back, pinned, unpinned: against sessions in which it never happened, or otherwise."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from streams import engine_for
from templates import ZOO, tokenizer_for
from test_session import CARD, END, ended, held_text, session_of, stop_at
from tiny import tiny_model, tiny_tokenizer

from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.chat.events import Event, PromptProgress, TextDelta, TurnCancelled
from sinkchat.chat.options import ChatOptions
from sinkchat.chat.session import ChatSession
from sinkchat.errors import UsageError


def everything(session: ChatSession) -> list[object]:
    """All that the next token depends on, as comparable values."""
    cache = session.engine.cache
    tensors = [buffer for tokens in cache.snapshot().held for buffer in (tokens.keys, tokens.values)]
    logits = session.engine.logits
    return [
        session.state,
        session.engine.held_ids[:],
        session.engine.pending[:],
        None if logits is None else logits.tolist(),
        [tensor.tolist() for tensor in tensors],
        [(turn.number, turn.user, turn.answer, turn.tokens, turn.left) for turn in session.turns],
        [session.said(number) for number in range(1, session.latest + 1)],
    ]


def done(change) -> list[Event]:
    return list(change.events)


def talked(count: int, **options) -> ChatSession:
    session = session_of(**options)
    for index in range(1, count + 1):
        ended(session, f"message {index}")
    return session


LONG = ["short", "a message that is longer than the window is wide " * 12]


@pytest.mark.parametrize("text", LONG)
def test_undo_is_exact_whatever_the_turn_pushed_out(text):
    session, never = talked(9, capacity=200), talked(9, capacity=200)
    ended(session, text)
    assert session.state.evicted > never.state.evicted
    assert everything(session) != everything(never)
    change = session.undo()
    assert change.tokens == 0
    assert done(change) == []
    assert everything(session) == everything(never)
    assert ended(session, "again").text == ended(never, "again").text
    assert everything(session) == everything(never)


@pytest.mark.parametrize("text", LONG)
def test_a_greedy_retry_after_wrap_around_gives_the_same_answer(text):
    session = talked(9, capacity=200)
    first = ended(session, text)
    before = everything(session)
    done(session.undo())
    assert ended(session, text).text == first.text
    assert everything(session) == before


def test_two_turns_are_taken_back_exactly_while_nothing_is_forgotten():
    session, never = talked(5, capacity=2000), talked(3, capacity=2000)
    change = session.undo(4)
    assert change.tokens == 0
    done(change)
    end = [2, TOKENIZER_NEWLINE]
    assert session.engine.held_ids[-2:] == end  # the answer that was open in the other one is closed here
    assert session.engine.held_ids[:-2] == [*never.engine.held_ids, *never.engine.pending]
    assert ended(session, "on").text == ended(never, "on").text
    torch.testing.assert_close(session.engine.logits, never.engine.logits, atol=1e-4, rtol=1e-4)


TOKENIZER_NEWLINE = tiny_tokenizer().encode("\n", add_special_tokens=False)[0]


def test_a_deep_undo_brings_back_what_fits_from_the_transcript():
    session = talked(12, capacity=220, options=ChatOptions(temperature=0, max_tokens=4))
    assert session.turns[5].left == 0
    change = session.undo(8)
    events = done(change)
    assert [type(event) for event in events] == [PromptProgress] * len(events)
    assert events[-1].read == events[-1].total == change.tokens == session.state.occupied
    assert session.latest == 7
    text = held_text(session)
    left = {turn.number for turn in session.turns if turn.left}
    assert left == set(range(min(left), 8))
    assert len(left) >= 3
    for number in range(1, 8):
        said = session.said(number)
        whole = f"user\n{said.user}{END}\n<|im_start|>assistant\n"
        assert (whole in text) == (number in left), number
    assert [turn.number for turn in session.turns] == list(range(1, 8))
    state = session.state
    assert state.pinned + state.window + state.evicted == state.seen
    assert ended(session, "on").turn == 8


def test_undoing_all_begins_again():
    session, fresh = talked(8, capacity=200), session_of(capacity=200)
    done(session.undo(1))
    assert (session.latest, session.state.seen, session.turns) == (0, 0, [])
    assert ended(session, "hi").text == ended(fresh, "hi").text


def test_a_cleared_conversation_can_be_had_back():
    session, control = talked(9, capacity=200), talked(9, capacity=200)
    session.clear()
    assert session.state.seen == 0
    done(session.undo())
    assert everything(session) == everything(control)


def test_a_cleared_conversation_is_gone_once_something_was_said():
    session = talked(9, capacity=200)
    session.clear()
    ended(session, "new")
    done(session.undo())
    assert session.state.evicted == 0
    assert session.turns == []


def test_a_pinned_turn_never_leaves():
    session, control = talked(2), talked(2)
    change = session.pin(1)
    done(change)
    assert change.tokens == session.state.occupied
    for each in (session, control):
        for index in range(20):
            ended(each, f"m {index}")
    assert "message 1" in session.pinned_text()
    assert session.pinned_turns == (1,)
    assert "message 1" not in held_text(control)
    pinned = session.turns[0]
    assert (pinned.number, pinned.is_pinned, pinned.left) == (1, True, pinned.tokens)


def test_a_pinned_turn_stands_behind_the_opening_as_it_was_written():
    session = session_of(capacity=2000, system="Be brief.")
    for number in (1, 2, 3):
        list(session.read(f"message {number}", f"answer {number}"))
    texts = [session.said(number) for number in (1, 2, 3)]
    done(session.pin(2))
    turns = [f"<|im_start|>user\n{said.user}{END}\n<|im_start|>assistant\n{said.answer}" for said in texts]
    opening = f"<|im_start|>system\nBe brief.{END}\n"
    assert session.pinned_text() == opening + turns[1] + f"{END}\n"
    assert session.window_text() == turns[0] + f"{END}\n" + turns[2]


def test_the_latest_turn_is_closed_when_it_is_pinned():
    session = session_of(capacity=2000)
    list(session.read("message", "answer"))
    said = session.said(1)
    done(session.pin(1))
    whole = f"<|im_start|>user\n{said.user}{END}\n<|im_start|>assistant\n{said.answer}{END}\n"
    assert session.pinned_text() == whole
    ended(session, "on")
    assert session.window_text().startswith("<|im_start|>user\non")


def test_a_forgotten_turn_can_be_pinned():
    session = talked(12)
    seen = session.state.seen
    assert session.turns[1].left == 0
    done(session.pin(2))
    assert "message 2" in session.pinned_text()
    assert session.said(2).answer in session.pinned_text()
    state = session.state
    assert state.pinned + state.window + state.evicted == state.seen
    assert abs(state.seen - seen) <= 64  # an answer made of its text again may take other tokens


def test_an_unpinned_turn_is_the_next_to_leave():
    session = talked(3, capacity=2000)
    done(session.pin(2))
    done(session.unpin(2))
    assert session.pinned_turns == ()
    assert [turn.number for turn in session.held] == [2, 1, 3]
    assert session.state.pinned == 4


def test_pinning_what_leaves_no_room_is_refused_and_changes_nothing():
    session = talked(3)
    ended(session, "x" * 220)
    before = everything(session)
    with pytest.raises(UsageError, match=r"with turn 4 .* pinned, only .* of 256 tokens would be left to talk in"):
        session.pin(4)
    assert everything(session) == before


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda session: session.pin(9), "there is no turn 9"),
        (lambda session: session.undo(0), "there is no turn 0"),
        (lambda session: session.unpin(1), "turn 1 is not pinned"),
        (lambda session: session.said(4), "there is no turn 4"),
        (lambda session: list(session.proceed()), "the latest answer is complete"),
    ],
)
def test_what_is_not_there_cannot_be_changed(act, message):
    session = talked(2, capacity=2000)
    list(session.read("last", "given"))
    with pytest.raises(UsageError, match=message):
        act(session)


def test_nothing_can_be_undone_before_anything_was_said():
    with pytest.raises(UsageError, match="nothing was said yet"):
        session_of().undo()


def test_a_change_that_is_stopped_leaves_everything_as_it_was():
    session = talked(12, chunk_size=16)
    before = everything(session)
    for change in (session.pin(2), session.undo(7)):
        events = change.events
        next(events)
        assert everything(session) != before
        session.stop()
        with pytest.raises(TurnCancelled):
            list(events)
        assert everything(session) == before


def test_a_change_that_is_left_leaves_everything_as_it_was():
    session = talked(12, chunk_size=16)
    before = everything(session)
    events = session.pin(2).events
    next(events)
    events.close()
    assert everything(session) == before


def test_an_answer_goes_on_where_it_was_cut():
    whole = ended(session_of(capacity=2000, options=ChatOptions(temperature=0, max_tokens=24)), "hello")
    session = session_of(capacity=2000)
    first = ended(session, "hello")
    assert (first.finish, session.can_proceed) == ("length", True)
    rest = list(session.proceed())[-1]
    assert (rest.prompt_tokens, rest.completion_tokens, rest.turn) == (0, 12, 1)
    assert first.text + rest.text == whole.text == session.said(1).answer


def test_a_continued_answer_is_one_turn_to_undo():
    session, never = talked(9, capacity=200), talked(9, capacity=200)
    ended(session, "hello")
    list(session.proceed())
    done(session.undo())
    assert everything(session) == everything(never)


def test_another_system_prompt_takes_the_place_of_the_old_one():
    session = talked(9, system="Be brief.")
    window, turns = session.window_text(), session.held
    done(session.change_system("Be very long, and then longer."))
    assert session.pinned_text() == f"<|im_start|>system\nBe very long, and then longer.{END}\n"
    assert window.endswith(session.window_text())
    assert len(session.held) >= len(turns) - 1
    state = session.state
    assert state.pinned + state.window + state.evicted == state.seen
    ended(session, "on")
    assert session.system == "Be very long, and then longer."


def test_a_weighed_message_pushes_out_what_it_is_said_to():
    for text in ("short", "a longer one " * 9, "x" * 700):
        session = talked(9)
        weight = session.weigh(text)
        left = {turn.number: turn.left for turn in session.held}
        opening = session.state.seen + len(session.engine.pending)
        events = list(session.send(text))
        read = next(event for event in events if isinstance(event, TextDelta))
        assert events[-1].prompt_tokens == weight.tokens, text
        assert session.state.seen >= opening + weight.tokens
        now = {turn.number: turn.left for turn in session._memory.ledger.turns(read.state)}
        assert [number for number in left if now[number] < left[number]] == list(weight.pushes_out), text


WIDE = tiny_model("llama", 1, vocab_size=2048)


def test_the_sinks_are_the_first_tokens_again_when_the_last_pin_is_taken_back():
    """Turn 1 had begun to leave when turn 2 was pinned; it comes back whole, and its first tokens are the sinks."""
    session = session_of(capacity=192, policy=EvictTokens(1), options=ChatOptions(temperature=0, max_tokens=3))
    ended(session, "1 " + "w " * 11)
    ended(session, "2 " + "w " * 60)
    done(session.pin(2))
    done(session.undo())
    assert held_text(session).startswith("<|im_start|>user\n1 w w")
    assert session.state.pinned == 4


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_pinned_turn_is_well_formed_in_every_template(name):
    """Turn 2 pinned: what is held is what a conversation that said it first would hold."""
    turns = [("one", "first"), ("two", "second"), ("three", "third")]

    def told(order) -> ChatSession:
        engine = engine_for(WIDE, EvictMessages(), capacity=512, pinned=0)
        session = ChatSession(
            engine, tokenizer_for(ZOO[name]), card=CARD, options=ChatOptions(temperature=0, max_tokens=1)
        )
        for index in order:
            list(session.read(*turns[index]))
        return session

    session, plain = told([0, 1, 2]), told([1, 0, 2])
    assert held_text(session) != held_text(plain)
    done(session.pin(2))
    held, expected = held_text(session), held_text(plain)
    if not session.template.first_is_like_later:  # turn 2 is written as a later one, as after an eviction
        held, expected = held[-len("three") - 60 :], expected[-len("three") - 60 :]
        assert held_text(session).index("second") < held_text(session).index("one")
    assert held == expected


class Talk(RuleBasedStateMachine):
    """Any order of sends, stops and changes against a list of what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.session = session_of(
            capacity=192, chunk_size=64, options=ChatOptions(temperature=0, max_tokens=3), policy=self.policy
        )
        self.model: list[str] = []
        self.pinned: set[int] = set()
        self.cleared: tuple[list[str], set[int]] | None = None
        self.number = 0

    policy = None

    @rule(words=st.integers(1, 60))
    def send(self, words):
        self.number += 1
        text = f"{self.number} " + "w " * words
        turn = ended(self.session, text)
        self.model.append(text)
        self.cleared = None
        assert turn.turn == len(self.model)

    @rule()
    def stopped_while_reading(self):
        before = everything(self.session)
        if not self.session.state.seen:
            return
        with pytest.raises(TurnCancelled):
            stop_at(self.session, "z " * 300, PromptProgress)
        assert everything(self.session) == before
        self.cleared = None

    @precondition(lambda self: self.model)
    @rule()
    def retry(self):
        before = everything(self.session)
        exact = self.session._memory.can_take_back
        text = self.session.said(len(self.model)).user
        was_pinned = len(self.model) in self.pinned
        if self.cleared is not None:
            return
        done(self.session.undo())
        ended(self.session, text)
        self.pinned.discard(len(self.model))
        if exact and not was_pinned and self.greedy_is_whole:
            assert everything(self.session) == before

    greedy_is_whole = True

    @precondition(lambda self: self.model or self.cleared)
    @rule()
    def undo(self):
        done(self.session.undo())
        if self.cleared is not None:
            self.model, self.pinned = self.cleared
            self.cleared = None
        else:
            self.pinned.discard(len(self.model))
            self.model.pop()

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data())
    def deep_undo(self, data):
        turn = data.draw(st.integers(1, len(self.model)))
        done(self.session.undo(turn))
        del self.model[turn - 1 :]
        self.pinned = {number for number in self.pinned if number < turn}
        self.cleared = None

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def pin(self, data):
        turn = data.draw(st.integers(1, len(self.model)))
        try:
            change = self.session.pin(turn)
        except UsageError:
            assert turn in self.pinned or len(self.pinned) > 0 or len(self.model[turn - 1]) > 60
            return
        done(change)
        self.pinned.add(turn)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        turn = data.draw(st.sampled_from(sorted(self.pinned)))
        done(self.session.unpin(turn))
        self.pinned.discard(turn)

    @precondition(lambda self: self.model)
    @rule()
    def clear(self):
        self.session.clear()
        self.cleared = (self.model, self.pinned)
        self.model, self.pinned = [], set()

    @invariant()
    def the_numbers_add_up(self):
        state = self.session.state
        assert state.pinned + state.window + state.evicted == state.seen
        assert state.occupied == len(self.session.engine.held_ids) <= state.capacity

    @invariant()
    def every_turn_is_known_and_its_words_are_kept(self):
        session = self.session
        assert session.latest == len(self.model)
        assert [turn.number for turn in session.turns] == list(range(1, len(self.model) + 1))
        assert [session.said(number).user for number in range(1, len(self.model) + 1)] == self.model
        assert set(session.pinned_turns) == self.pinned

    @invariant()
    def a_turn_is_held_if_its_words_are_in_memory(self):
        session = self.session
        if not session.state.seen:
            return
        text = held_text(session)
        for turn in session.turns:
            whole = f"user\n{self.model[turn.number - 1]}"[:12]
            if turn.left == turn.tokens and turn.tokens > 20:
                assert whole in text, turn
            if turn.left == 0 and turn.number > 1:
                assert whole not in text, turn


class TalkByTokens(Talk):
    policy = EvictTokens(1)


TestTalk = Talk.TestCase
TestTalkByTokens = TalkByTokens.TestCase
TestTalk.settings = TestTalkByTokens.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
