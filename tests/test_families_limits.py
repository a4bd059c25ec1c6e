"""How much a model may be shown, what it is given then, and which models are refused before any text."""

import pytest
import torch
from streams import distance, engine_for, held_after, logits_one_by_one, random_ids
from tiny import tiny_model, tiny_tokenizer

from sinkchat.cache.layers import ContiguousStorage
from sinkchat.cache.probe import probe, shift_test
from sinkchat.chat.events import TurnEnded
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_cache, session_for
from sinkchat.errors import CannotStream, ExitStatus, UsageError
from sinkchat.lab.families.configs import REFUSED
from sinkchat.models.families import Limits, attends_plainly, limits_of, make_bias_for, refuse_unmovable
from sinkchat.models.loading import LoadedModel

QUICK = {"temperature": 0, "max_tokens": 4}


def loaded(family: str, layers: int = 2, *, compiles: bool = False, **config) -> LoadedModel:
    model = tiny_model(family, layers, **config)
    length = limits_of(model.config).trained
    return LoadedModel(model, tiny_tokenizer(), "tiny", "none", "float32", "cpu", length, notes=(), compiles=compiles)


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("llama, longrope", {}, Limits(4096, None, 4096)),
        ("phi3, longrope", {}, Limits(4096, None, 2048)),
        ("ministral3", {}, Limits(4096, None, 2048)),
        ("gptj", {}, Limits(2048, None, 2048)),
        ("mpt", {}, Limits(512, None, None, has_alibi=True)),
        ("bloom", {}, Limits(None, None, None, has_alibi=True)),
        ("falcon, alibi", {}, Limits(4096, None, None, has_alibi=True)),
        ("falcon", {}, Limits(4096, None, None)),
        ("gemma2", {}, Limits(4096, None, None)),
        ("mistral, window", {"sliding_window": 100}, Limits(4096, 100, None)),
    ],
)
def test_limits_are_read_from_the_configuration(family, settings, expected):
    assert limits_of(tiny_model(family, 3, **settings).config) == expected


def test_a_cache_leaves_room_below_a_switch_to_go_on_in():
    limits = Limits(4096, None, 2048)
    assert (limits.capacity, limits.length, limits.positions(64)) == (1536, 2048, 2048)


def test_alibi_has_no_largest_cache():
    limits = Limits(512, None, None, has_alibi=True)
    assert (limits.capacity, limits.length) == (None, None)


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("llama", {}, "--cache-size 4097 is more than the 4,096 positions tiny was trained on"),
        (
            "gptj",
            {},
            "--cache-size 4097 is more than the 1,536 tokens that leave tiny room to go on below position 2,048",
        ),
        ("mistral, window", {}, "--cache-size 4097 is more than the 256 tokens that any layer of tiny sees"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused_with_the_reason(family, config, message):
    with pytest.raises(UsageError) as refusal:
        build_cache(loaded(family, **config), MemoryOptions(cache_size=4097))
    assert refusal.value.message == message


def test_where_all_layers_have_a_window_the_cache_is_as_large():
    assert build_cache(loaded("mistral, window", sliding_window=100), MemoryOptions()).capacity == 100


def test_a_cache_as_large_as_the_window_of_all_layers_is_exact():
    model = tiny_model("mistral, window", 1, sliding_window=16)
    ids = random_ids(80)
    streamed = logits_one_by_one(engine_for(model, capacity=16, pinned=4), ids)
    assert distance(streamed, afresh(model, ids, 16)) < 1e-5


def test_a_cache_larger_than_the_window_of_all_layers_loses_its_sinks():
    model = tiny_model("mistral, window", 1, sliding_window=16)
    ids = random_ids(80)
    seeing_all = tiny_model("mistral", 1)
    assert (
        distance(logits_one_by_one(engine_for(model, capacity=24, pinned=4), ids), afresh(seeing_all, ids, 24)) > 0.1
    )


def afresh(model, ids: list[int], capacity: int) -> torch.Tensor:
    """Logits (T, V), each token read with what is kept before it, at positions from 0 on."""
    kept = ([ids[i] for i in held_after(count, capacity, 4)] for count in range(1, len(ids) + 1))
    with torch.inference_mode():
        return torch.stack([model(torch.tensor([tokens]), use_cache=False).logits[0, -1] for tokens in kept])


def test_mpt_streams_past_the_length_it_was_trained_on():
    model, ids = tiny_model("mpt", 1, max_seq_len=72), random_ids(200)
    make_bias_for(model, 96)
    streamed = logits_one_by_one(engine_for(model, capacity=96, pinned=4), ids)
    assert distance(streamed, afresh(tiny_model("mpt", 1, max_seq_len=512), ids, 96)) < 1e-5


def test_mpt_has_no_bias_past_it_otherwise():
    engine = engine_for(tiny_model("mpt", 1, max_seq_len=72), capacity=96, pinned=4)
    with pytest.raises(RuntimeError, match="size of tensor"):
        engine.feed(random_ids(80))


@pytest.mark.parametrize("family", ["mpt", "bloom", "falcon, alibi"])
def test_alibi_chats_in_a_cache_of_any_size(family):
    settings = {"max_seq_len": 64} if family == "mpt" else {}
    session = session_for(loaded(family, **settings), memory=MemoryOptions(cache_size=200), chat=QUICK)
    for _ in range(4):
        assert isinstance(list(session.send("x" * 60))[-1], TurnEnded)
    assert (session.state.capacity, session.state.evicted > 0) == (200, True)


def test_without_a_word_an_alibi_cache_is_no_larger_than_what_was_trained():
    assert build_cache(loaded("mpt"), MemoryOptions()).capacity == 512


@pytest.mark.parametrize(
    ("family", "is_plain"),
    [
        ("llama", True),
        ("smollm3", True),
        ("mpt", False),
        ("falcon, alibi", False),
        ("falcon", True),
        ("gemma2", False),
        ("mistral, window", False),
        ("mistral", True),
        ("qwen2, window", False),
        ("qwen2", True),
        ("gpt_oss", False),
    ],
)
def test_attention_is_plain_where_all_that_is_held_is_seen_by_scores_alone(family, is_plain):
    assert attends_plainly(tiny_model(family, 3)) == is_plain


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2", "mpt", "bloom", "deepseek_v3"])
def test_what_the_faster_step_does_not_compute_is_kept_in_one_run(family):
    cache = build_cache(loaded(family, 3, compiles=True), MemoryOptions(cache_size=128))
    assert isinstance(cache.storage, ContiguousStorage)


REASONS = {
    "gpt2": "it learns absolute positions, so its cached keys cannot move",
    "opt": "it learns absolute positions, so its cached keys cannot move",
    "gpt_neo": "it learns absolute positions, so its cached keys cannot move",
    "gpt_bigcode": "it learns absolute positions, so its cached keys cannot move",
    "mamba": "its layers keep a running state of all that came before, from which nothing can leave",
    "jamba": "3 of its 4 layers (linear_attention) keep a running state of all that came before, "
    "from which nothing can leave",
    "qwen3_next": "3 of its 4 layers (linear_attention) keep a running state of all that came before, "
    "from which nothing can leave",
    "lfm2": "2 of its 3 layers (conv) keep a running state of all that came before, from which nothing can leave",
    "hunyuan_v1": "its keys are scaled after they were turned, so they cannot be turned on",
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_stream_is_refused_before_any_text(family):
    with pytest.raises(CannotStream) as refusal:
        build_cache(loaded(family), MemoryOptions())
    assert refusal.value.message.startswith(f"tiny cannot stream: {REASONS[family]}")
    assert (refusal.value.exit_status, bool(refusal.value.hint)) == (ExitStatus.MODEL, True)


@pytest.mark.parametrize("family", [family for family in REFUSED if family != "hunyuan_v1"])
def test_where_a_configuration_is_certain_no_weights_are_needed(family):
    config = tiny_model(family).config
    with pytest.raises(CannotStream, match="tiny cannot stream"):
        refuse_unmovable(config, name="tiny")


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "deepseek_v3", "hunyuan_v1"])
def test_what_a_configuration_does_not_say_is_left_to_the_probe(family):
    refuse_unmovable(tiny_model(family).config, name="tiny")


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neo", "gpt_bigcode", "hunyuan_v1"])
def test_what_cannot_move_may_chat_densely(family):
    session = session_for(loaded(family), memory=MemoryOptions(policy="dense"), chat=QUICK)
    assert isinstance(list(session.send("hi"))[-1], TurnEnded)


def test_queries_that_are_scaled_far_out_keep_positions_below():
    model = tiny_model("ministral3", 3)
    probe(model, position_limit=4096)
    shift_test(model, last_position=limits_of(model.config).positions(1024) - 1)
    with pytest.raises(CannotStream, match="the same text means something else to it at position 16,000 than at 0"):
        shift_test(model, last_position=16_000)


def test_a_later_layer_may_read_what_an_earlier_one_cached():
    assert len(probe(tiny_model("gemma3n", 3), position_limit=1024)) == 2
