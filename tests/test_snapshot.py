"""A conversation goes on from a file as if it had not been left; and no file that is not whole, or of it, is used."""

import os
import stat
from dataclasses import replace

import pytest
import torch
from kept import NONE, Kept, resumed
from streams import engine_for
from test_changes import everything
from test_session import CARD, ended
from tiny import tiny_model, tiny_tokenizer

from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.cache.storage import KeysValues
from sinkchat.chat.options import ChatOptions
from sinkchat.chat.session import ChatSession
from sinkchat.chat.snapshot import SavedMemory, Unusable, identity_of, load_snapshot, save_snapshot
from sinkchat.errors import SinkchatError
from sinkchat.models.int4.replace import to_int4

TOKENIZER = tiny_tokenizer()
MODELS = {dtype: tiny_model("llama", 2, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
GREEDY = ChatOptions(temperature=0, max_tokens=12)
SEEDED = ChatOptions(temperature=1.0, top_p=1.0, seed=7, max_tokens=12)
CAPACITY = 160


def session_with(
    model, *, policy=None, capacity=CAPACITY, options=GREEDY, system="Be brief.", **cache
) -> ChatSession:
    engine = engine_for(model, policy or EvictMessages(), capacity=capacity, pinned=0, **cache)
    return ChatSession(engine, TOKENIZER, card=CARD, options=options, system=system)


def past_windows(session: ChatSession, *, windows: int = 5, pins: bool = False) -> Kept:
    """The session talked until it has forgotten so many windows."""
    kept = Kept(session)
    while session.state.evicted < windows * session.state.window_capacity:
        kept.send(f"message {session.latest + 1}")
        if pins and session.latest == 3:
            kept.change(session.pin(2))
    return kept


def at_of(session: ChatSession) -> str:
    return session.outline.check


def save(path, session: ChatSession) -> None:
    identity = identity_of(session.engine, session.card)
    save_snapshot(path, SavedMemory.of(session.engine), identity=identity, at=at_of(session))


def load(path, session: ChatSession, *, at: str) -> SavedMemory | Unusable:
    return load_snapshot(path, identity=identity_of(session.engine, session.card), at=at)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.safetensors"


POLICIES = {"turn": EvictMessages(), "token": EvictTokens(1)}


@pytest.mark.parametrize("dtype", MODELS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pins", [False, True], ids=["", "pins"])
def test_a_conversation_goes_on_to_the_bit_after_five_windows_of_forgetting(path, dtype, policy, pins):
    model, policy = MODELS[dtype], POLICIES[policy]
    kept = past_windows(session_with(model, policy=policy), pins=pins)
    session = kept.session
    save(path, session)
    fresh = session_with(model, policy=policy)
    assert resumed(kept.past, fresh, load(path, fresh, at=at_of(session))) == []
    assert everything(fresh) == everything(session)
    assert torch.equal(fresh.engine.logits, session.engine.logits)
    assert fresh.engine.logits.dtype == dtype
    assert fresh.outline == session.outline
    for text in ("and on", "and on"):
        assert ended(fresh, text).text == ended(session, text).text
        assert everything(fresh) == everything(session)
    list(fresh.undo().events)
    list(session.undo().events)
    assert everything(fresh) == everything(session)


def int4_model():
    """Of its weights only embedding and norms are parameters."""
    model = tiny_model("llama", 2, dtype=torch.bfloat16)
    to_int4(model)
    return model


def test_weights_in_four_bits_go_on_to_the_bit_too(path):
    model = int4_model()
    kept = past_windows(session_with(model))
    save(path, kept.session)
    fresh = session_with(model)
    assert resumed(kept.past, fresh, load(path, fresh, at=at_of(kept.session))) == []
    assert torch.equal(fresh.engine.logits, kept.session.engine.logits)
    assert ended(fresh, "and on").text == ended(kept.session, "and on").text
    assert everything(fresh) == everything(kept.session)


def test_other_weights_in_four_bits_are_another_model(path):
    model, other = int4_model(), int4_model()
    kept = past_windows(session_with(model))
    save(path, kept.session)
    other.model.layers[1].mlp.down_proj.packed.bitwise_not_()
    told = load(path, session_with(other), at=at_of(kept.session))
    assert isinstance(told, Unusable)
    assert isinstance(load(path, session_with(int4_model()), at=at_of(kept.session)), SavedMemory)


def test_where_positions_were_turned_back_they_go_on_to_the_bit(path):
    """A position limit of 200 turns everything back every few turns."""
    kept = past_windows(session_with(MODELS[torch.float32], position_limit=200), pins=True)
    assert kept.session.engine.cache.snapshot().base > 0
    save(path, kept.session)
    fresh = session_with(MODELS[torch.float32], position_limit=200)
    resumed(kept.past, fresh, load(path, fresh, at=at_of(kept.session)))
    for index in range(6):
        assert ended(fresh, f"on {index}").text == ended(kept.session, f"on {index}").text
        assert everything(fresh) == everything(kept.session)


def test_one_wrong_key_is_another_conversation(path):
    """The control of the tests above."""
    kept = past_windows(session_with(MODELS[torch.float32]))
    saved = SavedMemory.of(kept.session.engine)
    held = saved.image.cache.held[0]
    keys = held.keys.clone()
    keys[0, 0, -1, 0] += 0.5
    wrong = replace(saved.image.cache, held=(KeysValues(keys, held.values),))
    fresh = session_with(MODELS[torch.float32])
    resumed(kept.past, fresh, replace(saved, image=replace(saved.image, cache=wrong)))
    assert everything(fresh) != everything(kept.session)
    for session in (fresh, kept.session):
        ended(session, "and on")
    assert not torch.equal(fresh.engine.logits, kept.session.engine.logits)


def test_a_seeded_conversation_goes_on_with_the_same_draws(path):
    kept = past_windows(session_with(MODELS[torch.float32], options=SEEDED))
    save(path, kept.session)
    fresh, unsaved = (session_with(MODELS[torch.float32], options=SEEDED) for _ in range(2))
    resumed(kept.past, fresh, load(path, fresh, at=at_of(kept.session)))
    resumed(kept.past, unsaved, NONE)
    answers = [ended(session, "on").text for session in (kept.session, fresh, unsaved)]
    assert answers[0] == answers[1] != answers[2]


def test_a_seed_that_was_asked_for_anew_draws_anew(path):
    kept = past_windows(session_with(MODELS[torch.float32], options=SEEDED))
    save(path, kept.session)
    fresh = session_with(MODELS[torch.float32], options=SEEDED)
    fresh.sources["seed"] = "flag"
    resumed(kept.past, fresh, load(path, fresh, at=at_of(kept.session)))
    expected = torch.Generator().manual_seed(7).get_state()
    assert torch.equal(fresh.engine.generator.get_state(), expected)
    assert everything(fresh) == everything(kept.session)


def test_a_cut_answer_goes_on_where_it_was_cut(path):
    kept = Kept(session_with(MODELS[torch.float32]))
    for number in range(1, 20):
        kept.send(f"m {number}", stopped_after=number % 5 + 1)
        save(path, kept.session)
        fresh = session_with(MODELS[torch.float32])
        resumed(kept.past, fresh, load(path, fresh, at=at_of(kept.session)))
        assert fresh.can_proceed
        ends = [list(session.proceed())[-1].text for session in (fresh, kept.session)]
        assert ends[0] == ends[1]
        kept.add("answer", text=ends[1])
        kept.settle()
        assert everything(fresh) == everything(kept.session)


def test_a_file_is_its_owner_s_alone_and_takes_the_place_of_another(path):
    kept = past_windows(session_with(MODELS[torch.float32]), windows=1)
    path.write_bytes(b"another")
    save(path, kept.session)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]
    assert isinstance(load(path, kept.session, at=at_of(kept.session)), SavedMemory)


def test_a_file_that_cannot_be_written_leaves_the_one_before(path):
    kept = past_windows(session_with(MODELS[torch.float32]), windows=1)
    save(path, kept.session)
    before = path.read_bytes()
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(SinkchatError, match=r"memory cannot be saved in .*: .*file too large"):
            save(path, kept.session)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(path.parent) == [path.name]
    assert path.read_bytes() == before


def test_a_folder_that_is_gone_is_told(path):
    session = session_with(MODELS[torch.float32])
    with pytest.raises(SinkchatError, match=r"memory cannot be saved in .*/gone: no such file or directory"):
        save(path.parent / "gone" / "x", session)


def test_no_file_is_no_memory(path):
    session = session_with(MODELS[torch.float32])
    assert load(path, session, at="") == Unusable("there is no saved memory")


def others():
    """Sessions that a saved memory of `session_with(float32 model)` is not for, by what is other."""
    model = MODELS[torch.float32]
    trained_on = tiny_model("llama", 2, seed=5)
    tuned = tiny_model("llama", 2)
    with torch.no_grad():
        next(tuned.parameters()).mul_(1.001)
    quantised = session_with(model)
    quantised.card = replace(CARD, quant="int8")
    return [
        ("model", session_with(trained_on)),
        ("model", session_with(tuned)),
        ("model", session_with(tiny_model("qwen2", 2))),
        ("model", session_with(tiny_model("llama", 3))),
        ("model", session_with(MODELS[torch.bfloat16])),
        ("quantisation", quantised),
        ("cache size", session_with(model, capacity=2 * CAPACITY)),
        ("policy", session_with(model, policy=EvictTokens(1))),
        ("policy", session_with(model, policy=EvictTokens(2))),
        ("position limit", session_with(model, position_limit=1000)),
        ("layout of layers", session_with(model, moves_sinks=False)),
    ]


def test_the_memory_of_anything_else_is_recognised(path):
    kept = past_windows(session_with(MODELS[torch.float32]), windows=1)
    save(path, kept.session)
    at = at_of(kept.session)
    assert isinstance(load(path, session_with(MODELS[torch.float32]), at=at), SavedMemory)
    for name, session in others():
        assert load(path, session, at=at) == Unusable(f"the saved memory is of another {name}"), name


def test_the_memory_of_an_earlier_moment_is_recognised(path):
    kept = past_windows(session_with(MODELS[torch.float32]), windows=1)
    save(path, kept.session)
    kept.send("one more")
    stale = load(path, kept.session, at=at_of(kept.session))
    assert stale == Unusable("the saved memory is of another moment")


def test_memory_that_is_not_what_was_recorded_is_not_taken_up():
    kept = past_windows(session_with(MODELS[torch.float32]), windows=1)
    saved = SavedMemory.of(kept.session.engine)
    kept.send("one more")
    fresh = session_with(MODELS[torch.float32])
    notice = resumed(kept.past, fresh, saved)[0]
    assert notice.text == "what is remembered is read again: the saved memory is of another moment"
    assert fresh.engine.held_ids == kept.session.engine.held_ids


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small saved memory, its session and its bytes."""
    session = session_with(MODELS[torch.float32], capacity=64, system=None)
    kept = past_windows(session, windows=1)
    path = tmp_path_factory.mktemp("small") / "memory.safetensors"
    save(path, session)
    return kept.session, path.read_bytes()


def damaged(path, data: bytes, session: ChatSession) -> bool:
    path.write_bytes(data)
    result = load(path, session, at=at_of(session))
    return isinstance(result, Unusable) and result.reason.startswith(
        ("the saved memory is damaged", "the saved memory cannot be read: ")
    )


def test_a_file_cut_anywhere_is_recognised(path, small):
    session, whole = small
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (*range(0, header, 11), *range(header, len(whole), 997), len(whole) - 1):
        assert damaged(path, whole[:length], session), length
    assert damaged(path, whole + b"\0", session)


def test_a_flipped_bit_anywhere_is_recognised(path, small):
    session, whole = small
    header = 8 + int.from_bytes(whole[:8], "little")
    places = (*range(0, 8 * header, 13), *range(8 * header, 8 * len(whole), 1999), 8 * len(whole) - 1)
    for bit in places:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        assert damaged(path, bytes(flipped), session), bit
    assert not damaged(path, whole, session)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 64, b"\0" * 4096])
def test_a_file_of_something_else_is_recognised(path, small, data):
    assert damaged(path, data, small[0])


def test_a_folder_in_its_place_is_no_memory(path, small):
    path.mkdir()
    assert load(path, small[0], at="").reason.startswith("the saved memory cannot be read: ")
