"""A device that runs out of memory or fails: one line says so, and the conversation goes on or is on the disk."""

import copy

import pytest
import torch
from faults import fail_after
from streams import engine_for
from test_session import MODEL, ended, held_text, session_of

from sinkchat.cache.policy import EvictTokens
from sinkchat.chat.events import TextDelta
from sinkchat.engine.sampling import Greedy, Sampling
from sinkchat.errors import DeviceLost, NotNumbers, OutOfMemory

SAID = [f"message {number} of a long conversation" for number in range(1, 8)]
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
LOST = torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")


def session_with_a_model_of_its_own():
    """Some turns have been forgotten."""
    session = session_of(capacity=200)
    session.engine.model = session.engine._forward.model = copy.deepcopy(MODEL)
    for text in SAID:
        ended(session, text)
    return session


@pytest.fixture
def session():
    return session_with_a_model_of_its_own()


@pytest.fixture
def control():
    return session_with_a_model_of_its_own()


def test_memory_that_runs_out_while_a_message_is_read_takes_the_turn_back(session, control):
    broken = fail_after(session.engine.model, 0, FULL)
    with pytest.raises(OutOfMemory, match=r"^out of memory reading \d+ tokens with 19\d in memory$") as caught:
        ended(session, "a message " * 30)
    assert "smaller --cache-size" in caught.value.hint
    assert (session.state, session.latest) == (control.state, control.latest)
    broken.remove()
    assert ended(session, "and then").text == ended(control, "and then").text
    assert torch.equal(session.engine.logits, control.engine.logits)


def test_memory_that_runs_out_in_mid_answer_keeps_what_was_said(session, control):
    whole = ended(control, "go on").text
    turns = session.latest
    broken = fail_after(session.engine.model, 5, FULL)
    said = []
    with pytest.raises(OutOfMemory):
        said.extend(event.text for event in session.send("go on") if isinstance(event, TextDelta))
    broken.remove()
    assert session.latest == turns + 1
    part = session.said(session.latest).answer
    assert part != whole
    assert part
    assert whole.startswith(part)
    assert session.can_proceed
    rest = list(session.proceed())[-1].text
    assert (part + rest).startswith(whole)
    assert session.state.seen - session.state.evicted == session.state.occupied == len(session.engine.held_ids)
    assert part in held_text(session)


def test_a_device_that_fails_is_told_in_one_line_and_loses_no_word(session):
    fail_after(session.engine.model, 4, LOST)
    with pytest.raises(DeviceLost) as caught:
        ended(session, "go on")
    assert caught.value.message == "the device failed: CUDA error: unspecified launch failure"
    assert session.said(session.latest).user == "go on"
    assert session.said(session.latest).answer
    with pytest.raises(DeviceLost):
        ended(session, "once more")


@pytest.mark.parametrize("sampler", [Greedy(), Sampling(top_p=0.9), Sampling(top_k=5), Sampling()])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_no_token(sampler, number):
    engine = engine_for(MODEL, EvictTokens(1), capacity=64)
    engine.feed(range(10))
    numbers, engine.logits = engine.logits, engine.logits.clone()
    engine.logits[7] = number
    with pytest.raises(NotNumbers, match="computes in float32 overflows") as caught:
        next(engine.generate(sampler, stop_ids=frozenset()))
    assert caught.value.hint == "fetch the model again: sinkchat pull"
    engine.logits = numbers.half()
    engine.logits[7] = number
    with pytest.raises(NotNumbers, match="computes in float16 overflows") as caught:
        next(engine.generate(sampler, stop_ids=frozenset()))
    assert caught.value.hint == "the same with --dtype float32"
    engine.logits = numbers.clone()
    engine.logits[7] = -float("inf")  # a word that must not be said: no fault
    assert next(engine.generate(sampler, stop_ids=frozenset())).token >= 0


def test_a_turn_that_overflows_is_taken_back(session, control):
    head = session.engine.model.lm_head
    broken = head.register_forward_hook(lambda module, inputs, logits: logits * float("inf"))
    with pytest.raises(NotNumbers):
        ended(session, "a message")
    assert (session.state, session.latest) == (control.state, control.latest)
    broken.remove()
    assert ended(session, "and then").text == ended(control, "and then").text
