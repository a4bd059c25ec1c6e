"""A conversation as its records tell it, whole or cut; and what of its memory comes back without saved keys."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept import NONE, Kept, all_said, resumed, talked
from streams import distance
from test_changes import everything
from test_outline import BRIEF, DEEDS
from test_session import END, ended, held_text, session_of

from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.chat.events import Evicted, Notice, PromptProgress, TurnCancelled
from sinkchat.chat.options import MemoryOptions, ModelCard
from sinkchat.chat.outline import Outline
from sinkchat.chat.past import Header, read_past
from sinkchat.chat.session import ChatSession
from sinkchat.chat.snapshot import SavedMemory
from sinkchat.chat.transcript import Said
from sinkchat.errors import SinkchatError, UsageError


def told(kept: Kept) -> list[tuple[str, str]]:
    return [(said.user, said.answer) for said in kept.past.transcript]


def notices(events) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def small(**settings):
    return session_of(capacity=128, **settings)


# Records happen again.


def happen(kept: Kept, what: str, number: int) -> None:
    session = kept.session
    some = 1 + number % max(1, session.latest)
    try:
        if what == "send":
            kept.send(f"{number} " + "w " * number)
        elif what == "stop":
            kept.send(f"{number}", stopped_after=1)
        elif what == "clear":
            kept.clear()
        elif what == "proceed":
            kept.proceed()
        elif what == "pin":
            kept.change(session.pin(some))
        elif what == "unpin":
            kept.change(session.unpin(session.pinned_turns[0] if session.pinned_turns else 1))
        elif what == "system":
            kept.system(f"Be {number}.")
        else:
            kept.undo(None if what == "undo" else some)
    except UsageError:
        pass


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    deeds=st.lists(st.tuples(st.sampled_from([*DEEDS, "system"]), st.integers(1, 25)), max_size=10),
    policy=st.sampled_from([EvictMessages(), EvictTokens(1)]),
)
def test_records_tell_what_was_said_and_what_memory_holds(deeds, policy):
    kept = Kept(session_of(capacity=128, policy=policy, options=BRIEF, system="Be brief."))
    kept.settle()
    for what, number in deeds:
        happen(kept, what, number)
    past = read_past(json.loads(json.dumps(record)) for record in kept.records)
    assert [(said.user, said.answer) for said in past.transcript] == list(all_said(kept.session))
    assert past.outline == kept.session.outline
    assert (past.whole, past.added, past.notes) == (kept.session.latest, "", ())
    assert past.system == kept.session.system
    fresh = session_of(capacity=128, policy=policy, options=BRIEF)
    resumed(past, fresh, SavedMemory.of(kept.session.engine))
    if kept.session.latest:
        assert everything(fresh) == everything(kept.session)


def test_the_header_and_the_system_prompt_come_from_the_beginning():
    kept = Kept(session_of(system="Be brief."))
    past = kept.past
    memory = MemoryOptions(cache_size=256, sinks=None, evict="turn", policy="sink")
    assert past.header == Header("test", "2026-11-29T21:30:00Z", "tiny", "tiny", "none", "float32", memory)
    assert (past.system, past.outline, past.whole, list(past.transcript)) == ("Be brief.", Outline(), 0, [])


def test_options_are_those_that_were_changed_last():
    kept = Kept(session_of())
    kept.add("options", temperature=0.2, stop=["a", "b"], colour="green")
    kept.add("options", temperature=0.3, seed=4)
    assert kept.past.options == {"temperature": 0.3, "stop": ("a", "b"), "seed": 4}
    session = session_of()
    session.sources |= {"temperature": "flag", "seed": "config.toml"}
    resumed(kept.past, session)
    assert (session.options.temperature, session.options.stop, session.options.seed) == (0, ("a", "b"), 4)
    assert session.options.max_tokens == 12
    assert session.sources == {"temperature": "flag", "seed": "conversation", "stop": "conversation"}


def test_pieces_of_texts_are_put_together():
    kept = Kept(session_of())
    kept.add("turn", number=1)
    for op, text in [("user", "he"), ("user", "llo"), ("answer", "a "), ("answer", "whale")]:
        kept.add(op, text=text)
    assert told(kept) == [("hello", "a whale")]
    assert kept.past.whole == 0


def test_a_turn_that_begins_again_takes_the_place_of_the_one_before():
    kept = talked(small, 2)
    kept.add("turn", number=2)
    kept.add("user", text="another")
    assert [said.user for said in kept.past.transcript] == ["message 1", "another"]
    assert kept.past.whole == 1


def test_a_journal_that_goes_on_in_another_part_is_one_conversation():
    kept = talked(small, 4)
    begin = kept.records[0]
    outline = kept.session.outline
    kept.records += [begin, {"op": "settled", **outline.difference()}]
    kept.send("five")
    assert kept.past.outline == kept.session.outline
    assert told(kept) == list(all_said(kept.session))


def test_a_part_can_be_resumed_alone():
    kept = talked(small, 6)
    begin, last = kept.records[0], {"op": "settled", **kept.session.outline.difference()}
    kept.records = [begin, last]
    for index in range(3):
        kept.send(f"more {index}")
    past = kept.past
    assert (past.transcript.first, past.transcript.count, past.whole) == (7, 9, 9)
    assert past.outline == kept.session.outline
    session = small()
    resumed(past, session)
    assert session.engine.held_ids == kept.session.engine.held_ids
    assert session.said(8) == kept.session.said(8)
    with pytest.raises(SinkchatError, match="what was said in turn 3 is not kept any more"):
        session.said(3)
    assert ended(session, "on").turn == 10


def test_a_part_that_begins_within_a_turn_keeps_it_cut():
    kept = talked(small, 2)
    kept.add("turn", number=3)
    kept.add("user", text="a long ")
    kept.records += [kept.records[0], {"op": "settled", **kept.session.outline.difference()}]
    kept.add("user", text="message")
    past = kept.past
    assert (past.whole, past.transcript.said(3)) == (2, Said("a long message", ""))


def test_a_lost_record_of_memory_is_found_out_and_words_are_kept():
    kept = talked(small, 5)
    whole = kept.past
    del kept.records[[index for index, record in enumerate(kept.records) if record["op"] == "settled"][2]]
    past = kept.past
    assert whole.outline is not None
    assert past.outline is None
    assert (past.whole, list(past.transcript)) == (5, list(whole.transcript))


def test_lost_turns_leave_the_others_their_numbers():
    kept = talked(small, 3)
    kept.add("turn", number=6)
    kept.add("user", text="six")
    users = [said.user for said in kept.past.transcript]
    assert users == ["message 1", "message 2", "message 3", "", "", "six"]


def test_more_turns_than_can_be_lost_begin_anew():
    kept = talked(small, 2)
    kept.add("turn", number=10**12)
    kept.add("user", text="far")
    transcript = kept.past.transcript
    assert (transcript.first, transcript.count, transcript.said(10**12).user) == (10**12, 10**12, "far")


def test_the_rest_of_a_turn_that_began_in_a_lost_part_is_passed_over():
    kept = talked(small, 6)
    begin, last = kept.records[0], {"op": "settled", **kept.session.outline.difference()}
    kept.records = [begin, last]
    kept.add("user", text="e rest")
    ended(kept.session, "the rest")
    kept.add("answer", text="of it")
    kept.settle()
    past = kept.past
    assert (past.transcript.first, past.transcript.count, past.whole) == (7, 7, 7)
    assert past.outline == kept.session.outline
    assert again(kept)[0].engine.held_ids == kept.session.engine.held_ids


def test_records_of_no_known_kind_and_no_known_form_are_told_and_passed_over():
    kept = talked(small, 1)
    kept.add("paint", colour="green")
    kept.add("paint", colour="red")
    kept.add("turn", number="x")
    kept.add("keep")
    past = kept.past
    assert past.notes == (
        "records of an unknown kind, 'paint', were passed over",
        "a record of the kind 'turn' does not say what it must, and was passed over",
        "a record of the kind 'keep' does not say what it must, and was passed over",
    )
    assert told(kept) == list(all_said(kept.session))


def test_a_newer_format_is_refused_with_what_to_do():
    kept = Kept(session_of())
    kept.records[0]["format"] = 2
    with pytest.raises(
        SinkchatError, match="kept by a newer sinkchat: its format is 2, and this one reads 1"
    ) as error:
        _ = kept.past
    assert error.value.hint == "pip install --upgrade sinkchat"


def test_no_beginning_is_told():
    with pytest.raises(SinkchatError, match="this conversation has no beginning"):
        read_past([])


# Memory comes back without saved keys.


def again(kept: Kept, **settings) -> tuple[ChatSession, list]:
    session = small(**settings)
    return session, resumed(kept.past, session)


def test_the_same_tokens_are_read_again_and_every_number_is_the_same():
    kept = talked(small, 20)
    original = kept.session
    session, events = again(kept)
    assert notices(events) == ["what is remembered is read again: there is no saved memory"]
    progress = [event for event in events if isinstance(event, PromptProgress)]
    assert progress[-1].read == progress[-1].total == session.state.occupied
    assert session.state == original.state
    assert session.engine.held_ids == original.engine.held_ids
    assert session.outline == original.outline
    assert (session.turns, session.held) == (original.turns, original.held)
    assert list(all_said(session)) == list(all_said(original))


def test_tokens_read_again_no_longer_know_what_was_forgotten_before():
    """Two layers carry what a token saw when it was read; while nothing is forgotten, that is what is held."""
    near, far = talked(lambda: session_of(capacity=2000), 8), talked(small, 20)
    same = session_of(capacity=2000)
    resumed(near.past, same)
    other, _ = again(far)
    assert distance(same.engine.logits, near.session.engine.logits) < 1e-4
    assert 0.01 < distance(other.engine.logits, far.session.engine.logits) < 3


def test_pinned_turns_stay_pinned_when_they_are_read_again():
    kept = talked(small, 3)
    kept.change(kept.session.pin(2))
    for index in range(12):
        kept.send(f"m {index}")
    session, _ = again(kept)
    assert session.pinned_turns == (2,)
    assert session.outline == kept.session.outline
    assert "message 2" in session.pinned_text()
    list(session.unpin(2).events)
    assert session.pinned_turns == ()


def test_a_smaller_memory_keeps_the_latest():
    kept = talked(lambda: session_of(capacity=400), 20)
    session, events = again(kept)
    assert session.state.capacity == 128
    assert session.state.seen == kept.session.state.seen
    assert any(isinstance(event, Evicted) for event in events)
    ids = session.engine.held_ids[session.state.pinned :]
    assert kept.session.engine.held_ids[-len(ids) :] == ids
    assert sum(turn.left for turn in session.turns) == session.state.window
    assert ended(session, "on").turn == 21


def test_what_is_pinned_must_leave_room_to_talk():
    kept = talked(lambda: session_of(capacity=2000), 1)
    kept.send("x" * 200)
    kept.change(kept.session.pin(2))
    session = small()
    with pytest.raises(UsageError, match="as this conversation goes on, only 0 of 128 tokens would be left"):
        resumed(kept.past, session)
    assert session.state.seen == 0


def test_a_larger_memory_goes_on_with_what_was_held():
    kept = talked(small, 20)
    session = session_of(capacity=400)
    resumed(kept.past, session)
    assert session.engine.held_ids == kept.session.engine.held_ids
    assert session.state.seen == kept.session.state.seen


def test_the_latest_turn_can_be_taken_back_afterwards():
    kept = talked(small, 9)
    for session in (again(kept)[0], kept.session):
        list(session.undo().events)
        assert session.latest == 8
        assert ended(session, "other").turn == 9
        assert list(all_said(session))[:8] == [(f"message {n}", session.said(n).answer) for n in range(1, 9)]


def test_the_words_are_read_anew_by_another_model():
    kept = talked(lambda: session_of(capacity=400), 20)
    session = session_of(capacity=256)
    session.card = ModelCard("another", "none", "float32", "cpu", 4096)
    events = resumed(kept.past, session)
    assert notices(events) == ["the latest turns are read again from their words, since their tokens cannot be used"]
    held = [turn.number for turn in session.turns if turn.left]
    assert held == list(range(held[0], 21))
    assert len(held) > 2
    for number in held[1:]:
        said = session.said(number)
        assert f"user\n{said.user}{END}\n<|im_start|>assistant\n" in held_text(session)
    assert session.state.evicted == 0
    assert session.latest == 20
    assert list(all_said(session)) == list(all_said(kept.session))
    assert ended(session, "on").turn == 21


def test_pinned_turns_stay_pinned_when_they_are_read_anew():
    kept = talked(lambda: session_of(capacity=400, system="Be brief."), 12)
    kept.change(kept.session.pin(2))
    session = session_of(capacity=300)
    session.card = ModelCard("another", "none", "float32", "cpu", 4096)
    resumed(kept.past, session)
    assert session.pinned_turns == (2,)
    assert "Be brief." in session.pinned_text()
    assert "message 2" in session.pinned_text()
    assert session.turns[-1].number == 12
    assert "message 12" in session.window_text()


def test_words_are_read_anew_where_memory_was_not_recorded():
    kept = talked(small, 6)
    del kept.records[[index for index, record in enumerate(kept.records) if record["op"] == "settled"][2]]
    session, events = again(kept)
    assert len(notices(events)) == 1
    assert session.latest == 6
    assert "message 6" in held_text(session)
    assert ended(session, "on").turn == 7


def test_ids_that_the_model_does_not_know_are_not_fed():
    kept = talked(small, 3)
    strange = kept.session.outline
    strange = replace(strange, window=(*strange.window[:-1], 99_999))
    kept.records[-1:] = [kept.records[0], {"op": "settled", **strange.difference()}]
    session, events = again(kept)
    assert notices(events)[0].startswith("the latest turns are read again from their words")
    assert session.latest == 3


def resumed_and_stopped(kept: Kept, session: ChatSession) -> None:
    for event in session.resume(kept.past, NONE):
        if isinstance(event, PromptProgress):
            session.stop()


def test_a_stop_while_it_is_read_again_leaves_nothing_half_done():
    kept = talked(lambda: session_of(capacity=400), 20)
    session, untouched = session_of(capacity=400), session_of(capacity=400)
    with pytest.raises(TurnCancelled):
        resumed_and_stopped(kept, session)
    assert everything(session) == everything(untouched)
    assert ended(session, "hi").text == ended(untouched, "hi").text


# What was cut off.


def cut(kept: Kept, user: str, answer: str) -> None:
    """The records of a turn that never ended."""
    kept.add("turn", number=kept.session.latest + 1)
    for op, text in (("user", user), ("answer", answer)):
        if text:
            kept.add(op, text=text)


@pytest.mark.parametrize("count", [0, 1, 12])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_turn_that_was_cut_in_its_answer_is_remembered_and_can_go_on(count, is_saved):
    kept = talked(small, count)
    cut(kept, "What is it?", "A wha")
    past = kept.past
    assert (past.whole, past.transcript.count) == (count, count + 1)
    session = small()
    events = resumed(past, session, SavedMemory.of(kept.session.engine) if is_saved else NONE)
    assert notices(events)[-1] == f"turn {count + 1} was cut in its answer"
    assert session.latest == count + 1
    assert held_text(session).endswith(f"user\nWhat is it?{END}\n<|im_start|>assistant\nA wha")
    assert (session.turns[-1].user, session.turns[-1].answer) == ("What is it?", "A wha")
    assert session.can_proceed
    more = list(session.proceed())[-1].text
    assert session.said(count + 1) == Said("What is it?", f"A wha{more}")
    ended(session, "next")
    assert re.search(f"A wha{re.escape(more)}�*{END}\n<.im_start.>user\nnext{END}", held_text(session))


def test_a_turn_that_was_cut_before_its_answer_can_be_answered():
    """As if it had been asked here."""
    kept, never = talked(lambda: session_of(capacity=2000), 2), talked(lambda: session_of(capacity=2000), 2)
    cut(kept, "What is it?", "")
    session = session_of(capacity=2000)
    events = resumed(kept.past, session, SavedMemory.of(kept.session.engine))
    assert notices(events) == ["turn 3 was cut before its answer"]
    assert list(session.proceed())[-1].text == ended(never.session, "What is it?").text
    assert session.engine.held_ids == never.session.engine.held_ids
    assert session.said(3) == never.session.said(3)


def test_a_turn_in_which_nothing_was_said_is_none():
    kept = talked(small, 3)
    cut(kept, "", "")
    session, events = again(kept)
    assert notices(events) == ["what is remembered is read again: there is no saved memory"]
    assert session.latest == 3


def test_an_answer_that_was_cut_as_it_went_on_is_remembered():
    kept = talked(small, 3)
    kept.add("answer", text=" and more")
    past = kept.past
    assert (past.whole, past.added) == (3, " and more")
    assert past.transcript.said(3).answer == kept.session.said(3).answer + " and more"
    session = small()
    events = resumed(past, session, SavedMemory.of(kept.session.engine))
    assert notices(events) == ["turn 3 was cut in its answer"]
    assert held_text(session).endswith(" and more")
    assert session.can_proceed
    more = list(session.proceed())[-1].text
    assert session.said(3).answer == kept.session.said(3).answer + f" and more{more}"


def test_turns_whose_ends_were_not_recorded_are_read_from_their_words():
    kept = talked(small, 3)
    for number, (user, answer) in enumerate([("four", "A."), ("five", "B."), ("six", "C")], 4):
        kept.add("turn", number=number)
        kept.add("user", text=user)
        kept.add("answer", text=answer)
    session, events = again(kept)
    assert notices(events)[-1] == "turn 6 was cut in its answer"
    assert session.latest == 6
    five = f"<|im_start|>user\nfive{END}\n<|im_start|>assistant\nB.{END}\n"
    assert held_text(session).endswith(f"{five}<|im_start|>user\nsix{END}\n<|im_start|>assistant\nC")


def test_a_cut_undo_is_done():
    kept = talked(small, 6)
    kept.add("keep", count=4)
    past = kept.past
    assert (past.whole, past.transcript.count, past.outline.count) == (4, 4, 6)
    session, _ = again(kept)
    assert session.latest == 4
    assert "message 4" in held_text(session)
    assert "message 5" not in held_text(session)


def test_a_cut_retry_is_a_cut_turn():
    kept = talked(small, 6)
    kept.add("keep", count=5)
    cut(kept, "", "")
    kept.records[-1]["number"] = 6
    kept.add("user", text="message 6")
    kept.add("answer", text="Oth")
    session, _ = again(kept)
    assert session.latest == 6
    assert session.said(6) == Said("message 6", "Oth")
    assert held_text(session).count("message 6") == 1


def test_a_cut_clear_is_done():
    kept = talked(small, 6)
    kept.add("clear")
    past = kept.past
    assert (past.whole, list(past.transcript), past.outline) == (0, [], Outline())
    session, events = again(kept)
    assert (events, session.latest, session.state.seen) == ([], 0, 0)
    kept.add("unclear")
    assert kept.past.outline == kept.session.outline
    assert told(kept) == list(all_said(kept.session))


def test_what_was_cleared_is_gone_once_something_was_said():
    kept = talked(small, 6)
    kept.clear()
    kept.send("new")
    kept.add("unclear")
    assert told(kept) == list(all_said(kept.session))
    assert len(told(kept)) == 1


def test_a_system_prompt_that_was_not_yet_in_memory_is_not_in_force():
    kept = Kept(session_of(system="Be brief."))
    kept.send("one")
    kept.add("system", text="Be long.")
    assert kept.past.system == "Be brief."
    kept.add("clear")
    kept.add("system", text="Be long.")
    assert kept.past.system == "Be long."


def test_records_cut_anywhere_lose_no_whole_turn():
    kept = Kept(small(system="Be brief."))
    for index in range(4):
        kept.send(f"m {index}")
    kept.change(kept.session.pin(2))
    kept.undo()
    kept.send("again")
    kept.proceed()
    kept.clear()
    kept.undo()
    kept.system("Be kind.")
    for count in range(1, len(kept.records) + 1):
        past = read_past(kept.records[:count])
        whole = past.whole
        session = small()
        resumed(past, session)
        assert session.latest in (whole, whole + 1), count
        assert ended(session, "on").turn == session.latest, count
