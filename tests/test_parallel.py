"""A model cut across two processes: the same numbers as in one, whatever is done to memory. gloo, on a CPU."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from in_processes import in_two
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor
from transformers import AutoConfig

from sinkchat.chat.events import TextDelta
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.session import ChatSession
from sinkchat.chat.snapshot import SavedMemory, identity_of, load_snapshot, save_snapshot
from sinkchat.chat.start import build_engine, start_session
from sinkchat.engine.engine import Engine
from sinkchat.engine.segment import Segment
from sinkchat.errors import SinkchatError, UsageError
from sinkchat.lab.families.configs import STREAMING
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.spread import Cut, process_counts
from sinkchat.parallel.link import Followers
from sinkchat.parallel.ranks import Ranks

FLOAT32 = LoadOptions(device="cpu", dtype="float32")
MEMORY = MemoryOptions(cache_size=24, sinks=4, evict="token")
POSITIONS = 64
"""so few that the window is turned back again and again"""
MORE = ("qwen3", "gpt_neox")
ANY = ("phi3", "phi3, longrope", "phi4, partial", "olmo2", "olmo3")
COUNTS = dict.fromkeys(ANY) | dict.fromkeys(("phi", "gptj", "codegen", "deepseek_v2", "deepseek_v3"), (1, 2, 4))
"""how many processes can share a model of a family that has a plan, where that is not 1 or 2; None: any number"""
PLANNED_SINCE_5_17 = {"codegen", "gptj"}
"""families that transformers 5.17 has no plan for yet"""
WHOLE = ("mpt", "falcon", "falcon, new", "falcon, alibi", "stablelm", "bloom", "gpt_oss")
"""families without a plan for their layers"""


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    def save(family: str = "llama", **config: Any) -> str:
        settings = {"max_position_embeddings": POSITIONS} | config
        tiny_model(family, **settings).save_pretrained(tmp_path / "model")
        tiny_tokenizer().save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def engine_in_two(followers: Followers, name: str) -> Engine:
    followers.tell("load", name, FLOAT32, MEMORY)
    loaded = load_model(name, replace(FLOAT32, ranks=followers.ranks))
    return build_engine(loaded, MEMORY, followers=followers)


def story(engine: Engine) -> dict[str, Tensor]:
    """Logits of each chapter; every way in which memory can be changed is one."""
    told: dict[str, list[Tensor]] = {}

    def feed(chapter: str, *ids: int) -> None:
        engine.feed(ids)
        assert engine.logits is not None
        told.setdefault(chapter, []).append(engine.logits.clone())

    engine.cache.pinned = 4
    engine.reset()
    feed("before anything is forgotten", *range(5, 25))
    for number in range(50):
        feed("past evictions", 30 + number)
    mark = engine.mark()
    for number in range(30):
        feed("after a mark", 100 + number)
    engine.rewind(mark)
    feed("after going back", 7)
    engine.release()
    image = engine.image()
    feed("after an image", *range(40, 70))
    engine.restore(image)
    feed("as in the image", 8)
    engine.truncate(engine.state.seen - 3)
    feed("after a few are taken back", 9)
    for _ in engine.relay(range(3), [Segment((50, 51, 52))], pinned=3, forgotten=200):
        pass
    feed("laid out anew", *range(60, 90))
    return {chapter: torch.stack(logits) for chapter, logits in told.items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    assert one.keys() == other.keys()
    return {chapter: float((one[chapter] - other[chapter]).abs().max()) for chapter in one}


@pytest.mark.parametrize("family", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_two_processes_compute_what_one_does_whatever_happens_to_memory(
    saved: Callable[..., str], tmp_path: Path, family: str
) -> None:
    name = saved(family)
    in_one = story(build_engine(load_model(name, FLOAT32), MEMORY))
    together = in_two(tmp_path, lambda followers: story(engine_in_two(followers, name)))
    assert max(apart(in_one, together).values()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("family", STREAMING)
def test_every_family_computes_the_same_in_two_processes_or_is_refused(tmp_path: Path, family: str) -> None:
    model = tiny_model(family, 3)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    name = str(tmp_path / "model")
    if family in WHOLE or (family in PLANNED_SINCE_5_17 and not model.config.base_model_tp_plan):
        assert process_counts(model.config) == (1,)
        assert refusal(name, cut(2)).message.endswith("transformers has no plan for its layers")
        return
    assert process_counts(model.config) == COUNTS.get(family, (1, 2))
    in_one = story(build_engine(load_model(name, FLOAT32), MEMORY))
    together = in_two(tmp_path, lambda followers: story(engine_in_two(followers, name)))
    assert max(apart(in_one, together).values()) < 1e-4


def test_the_comparison_sees_pinned_keys_that_one_process_does_not_move(
    saved: Callable[..., str], tmp_path: Path
) -> None:
    name = saved()
    in_one = story(build_engine(load_model(name, FLOAT32), MEMORY))
    together = in_two(tmp_path, lambda followers: story(engine_in_two(followers, name)), deaf_to="place")
    off = apart(in_one, together)
    assert off["before anything is forgotten"] < 1e-5
    assert off["past evictions"] > 1e-2


def greedy(name: str, followers: Followers | None = None) -> ChatSession:
    chat = {"temperature": 0, "max_tokens": 40}
    return start_session(name, load=FLOAT32, memory=MemoryOptions(cache_size=96), chat=chat, followers=followers)


def said(session: ChatSession, *texts: str) -> list[str]:
    return ["".join(e.text for e in session.send(text) if isinstance(e, TextDelta)) for text in texts]


TALK = ["hello there", "and what then", "what was it again", "so be it"]


def test_a_conversation_goes_on_in_two_processes_as_in_one(saved: Callable[..., str], tmp_path: Path) -> None:
    name = saved(max_position_embeddings=256)
    alone = greedy(name)
    expected = said(alone, *TALK)

    def lead(followers: Followers) -> tuple[list[str], Any, str, str]:
        session = greedy(name, followers)
        return said(session, *TALK), session.state, session.card.device, session.engine.decoding

    answers, state, device, decoding = in_two(tmp_path, lead)
    assert answers == expected
    assert state == alone.state
    assert state.evicted > 0
    assert (device, decoding) == ("2 x cpu", "by the model's own code, in 2 processes")


def test_saved_memory_holds_the_heads_of_all_processes_and_comes_back(
    saved: Callable[..., str], tmp_path: Path
) -> None:
    name = saved(max_position_embeddings=256)
    place = tmp_path / "memory"

    def save(followers: Followers) -> tuple[list[tuple[int, ...]], list[str]]:
        session = greedy(name, followers)
        said(session, *TALK[:3])
        memory = SavedMemory.of(session.engine)
        save_snapshot(place, memory, identity=identity_of(session.engine, session.card), at="then")
        return [tuple(held.keys.shape) for held in memory.image.cache.held], said(session, TALK[3])

    def come_back(followers: Followers) -> list[str]:
        session = greedy(name, followers)
        found = load_snapshot(place, identity=identity_of(session.engine, session.card), at="then")
        assert isinstance(found, SavedMemory), found
        session.engine.restore(found.image)
        return [session.engine.logits is not None and str(int(session.engine.logits.argmax()))]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shapes, _ = in_two(tmp_path / "a", save)
    alone = greedy(name)
    said(alone, *TALK[:3])
    held = alone.engine.image().cache.held
    assert shapes == [tuple(tokens.keys.shape) for tokens in held]
    assert alone.engine.logits is not None
    assert in_two(tmp_path / "b", come_back) == [str(int(alone.engine.logits.argmax()))]


def test_ctrl_c_in_the_middle_of_a_forward_leaves_all_in_step(saved: Callable[..., str], tmp_path: Path) -> None:
    """As it does for a second Ctrl-C, which leaves: what is remembered is still to be saved then."""
    name = saved()

    def lead(followers: Followers, *, is_interrupted: bool) -> tuple[list[Tensor], bool]:
        engine = engine_in_two(followers, name)
        engine.feed(range(5, 25))
        pressed = False
        if is_interrupted:
            hook = engine.model.model.layers[0].mlp.register_forward_hook(
                lambda *_: os.kill(os.getpid(), signal.SIGINT)
            )
            try:
                engine.feed(range(30, 34))
            except KeyboardInterrupt:
                pressed = True
            hook.remove()
            engine.pending.clear()
        held = engine.image().cache.held
        engine.feed(range(50, 60))
        assert engine.logits is not None
        return [*(tokens.keys for tokens in held), engine.logits], pressed

    outcomes = []
    for is_interrupted in (False, True):
        (folder := tmp_path / str(is_interrupted)).mkdir()
        outcomes.append(in_two(folder, partial(lead, is_interrupted=is_interrupted)))
    (calm, _), (interrupted, pressed) = outcomes
    assert pressed
    assert all(torch.equal(one, other) for one, other in zip(calm, interrupted, strict=True))


def refusal(name: str, options: LoadOptions) -> SinkchatError:
    with pytest.raises(SinkchatError) as caught:
        load_model(name, options)
    return caught.value


def cut(count: int, **options: Any) -> LoadOptions:
    return replace(FLOAT32, ranks=Ranks(0, count, "none"), **options)


def test_processes_that_cannot_share_the_heads_alike_are_refused(saved: Callable[..., str]) -> None:
    error = refusal(saved(num_attention_heads=8, num_key_value_heads=4), cut(3))
    assert isinstance(error, UsageError)
    assert error.message == "3 processes cannot share model alike: its attention heads number 8"
    assert error.hint == "--processes 2 or 4"
    assert (
        refusal(saved(), cut(4)).message
        == "4 processes cannot share model alike: its heads of keys and values number 2"
    )


@pytest.mark.parametrize(
    ("family", "changed", "counts"),
    [
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 4}, [1, 2, 4]),
        ("llama", {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3}, [1, 3]),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}, [1]),
        ("phi3", {}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("deepseek_v3", {"moe_intermediate_size": 24}, [1, 3]),
        ("mpt", {}, [1]),
        ("gpt_oss", {}, [1]),
    ],
)
def test_the_numbers_of_processes_that_show_names_are_those_that_can_be_had(
    family: str, changed: dict[str, int], counts: list[int]
) -> None:
    model_type, settings = STREAMING[family]
    config = AutoConfig.for_model(model_type, **settings(2) | changed)

    def can_be_had(count: int) -> bool:
        try:
            Cut(Ranks(0, count, "none"), torch.device("cpu")).check(config, "model")
        except SinkchatError:
            return False
        return True

    said = process_counts(config)
    assert [count for count in range(1, 9) if said is None or count in said] == counts
    assert [1, *(count for count in range(2, 9) if can_be_had(count))] == counts


def test_a_number_that_can_be_had_is_named(saved: Callable[..., str]) -> None:
    ninths = {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3}
    assert refusal(saved(**ninths), cut(2)).hint == "--processes 3"
    error = refusal(saved(num_key_value_heads=1), cut(2))
    assert (error.message, error.hint) == (
        "2 processes cannot share model alike: its heads of keys and values number 1",
        "one process",
    )


def test_weights_that_come_quantised_are_not_cut(saved: Callable[..., str]) -> None:
    folder = Path(saved())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    error = refusal(str(folder), cut(2))
    assert (error.message, error.hint) == (
        "model comes quantised (gptq), and is not cut across processes",
        "one process",
    )


def test_a_model_without_a_plan_is_refused(saved: Callable[..., str]) -> None:
    error = refusal(saved("stablelm"), cut(2))
    assert isinstance(error, UsageError)
    assert error.message == "model cannot be cut across 2 processes: transformers has no plan for its layers"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"quant": "int4"}, "--quant int4 cannot be cut across processes"),
        ({"device": "cuda:0"}, "--device cuda:0 is one place, and these are 2 processes"),
        ({"device": "mps"}, "--device mps is one place, and these are 2 processes"),
    ],
)
def test_what_makes_no_sense_for_several_processes_is_refused(
    saved: Callable[..., str], changed: dict[str, str], message: str
) -> None:
    assert refusal(saved(), cut(2, **changed)).message == message


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_knows_its_number_from_what_torchrun_sets() -> None:
    assert Ranks.of(TORCHRUN) == Ranks(1, 2, "29500")
    assert Ranks.of(TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}) == Ranks(1, 2, "29500", is_elastic=True)
    for alone in ({}, TORCHRUN | {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}):
        assert Ranks.of(alone) is None


def test_more_than_one_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="4 processes on more than one machine"):
        Ranks.of(TORCHRUN | {"WORLD_SIZE": "4"})
