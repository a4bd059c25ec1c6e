"""From options to a session: limits, policies and the values that a model's own settings give."""

import pytest
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoConfig

from sinkchat.cache.policy import EvictMessages, EvictNothing, EvictTokens
from sinkchat.chat.events import TurnEnded
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import eviction_policy, session_for
from sinkchat.errors import CacheFull, CannotStream, UsageError
from sinkchat.models.families import Limits, limits_of
from sinkchat.models.loading import LoadedModel

QUICK = {"temperature": 0, "max_tokens": 6}


def loaded(family: str = "llama", **config) -> LoadedModel:
    model = tiny_model(family, 2, **config)
    length = limits_of(model.config).trained
    return LoadedModel(model, tiny_tokenizer(), "tiny", "none", "float32", "cpu", length, notes=())


def test_a_session_answers_and_forgets():
    session = session_for(loaded(), memory=MemoryOptions(cache_size=64), chat=QUICK)
    for index in range(6):
        turn = list(session.send(f"message {index}"))[-1]
        assert isinstance(turn, TurnEnded)
    assert session.state.evicted > 0
    assert session.state.capacity == 64


@pytest.mark.parametrize(
    ("memory", "policy"),
    [
        (MemoryOptions(), EvictMessages()),
        (MemoryOptions(evict="token"), EvictTokens(1)),
        (MemoryOptions(evict="64"), EvictTokens(64)),
        (MemoryOptions(policy="window", evict="token"), EvictTokens(1)),
        (MemoryOptions(policy="dense"), EvictNothing()),
    ],
)
def test_options_name_a_policy(memory, policy):
    assert eviction_policy(memory) == policy


@pytest.mark.parametrize("memory", [MemoryOptions(evict="sometimes"), MemoryOptions(policy="both")])
def test_other_words_name_none(memory):
    with pytest.raises(UsageError, match="is not known"):
        eviction_policy(memory)


def test_the_window_policy_pins_nothing():
    assert session_for(loaded(), memory=MemoryOptions(cache_size=64, policy="window"), chat=QUICK).pinned == 0


def test_a_cache_beyond_the_trained_length_is_refused_with_the_size_that_fits():
    with pytest.raises(
        UsageError, match="--cache-size 8192 is more than the 4,096 positions tiny was trained on"
    ) as e:
        session_for(loaded(), memory=MemoryOptions(cache_size=8192), chat=QUICK)
    assert e.value.hint == "--cache-size 4096 (0.00 GiB of KV)"


def test_the_default_cache_is_no_larger_than_the_trained_length():
    assert session_for(loaded(max_position_embeddings=512), chat=QUICK).state.capacity == 512
    assert session_for(loaded(), chat=QUICK).state.capacity == 2048


def test_gpt2_is_refused_but_may_chat_densely_until_it_is_full():
    with pytest.raises(CannotStream, match="tiny cannot stream: it learns absolute positions"):
        session_for(loaded("gpt2"), chat=QUICK)
    session = session_for(loaded("gpt2"), memory=MemoryOptions(cache_size=64, policy="dense"), chat=QUICK)
    assert isinstance(list(session.send("hi"))[-1], TurnEnded)
    held = session.state
    with pytest.raises(CacheFull):
        list(session.send("x" * 80))
    assert session.state == held


def test_a_value_comes_from_the_person_then_the_model_then_the_defaults():
    one = loaded()
    one.model.generation_config.top_k = 7
    one.model.generation_config.temperature = 0.3
    session = session_for(one, chat={"temperature": 0.9}, sources={"temperature": "SINKCHAT_TEMPERATURE"})
    options, sources = session.options, session.sources
    assert (options.temperature, sources["temperature"]) == (0.9, "SINKCHAT_TEMPERATURE")
    assert (options.top_k, sources["top_k"]) == (7, "model")
    assert (options.top_p, sources["top_p"]) == (0.95, "built-in")


def test_every_id_that_the_model_ends_with_is_a_stop_id():
    one = loaded()
    one.model.generation_config.eos_token_id = [9, 11]
    assert session_for(one, chat=QUICK).stop_ids == {9, 11, one.tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("llama", {"max_position_embeddings": 4096}, Limits(4096, None, None)),
        ("mistral", {"max_position_embeddings": 4096, "sliding_window": 512}, Limits(4096, 512, None)),
        ("mistral", {"max_position_embeddings": 4096, "sliding_window": None}, Limits(4096, None, None)),
        ("qwen2", {"max_position_embeddings": 4096, "sliding_window": 512}, Limits(4096, None, None)),
        ("gpt2", {"n_positions": 1024}, Limits(1024, None, None)),
        (
            "llama",
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            },
            Limits(4096, None, 4096),
        ),
    ],
)
def test_limits_are_read_from_the_configuration(family, settings, expected):
    assert limits_of(AutoConfig.for_model(family, **settings)) == expected


def test_positions_stay_below_a_switch_and_else_where_float32_is_fine():
    assert Limits(4096, None, 4096).positions(512) == 4096
    assert Limits(4096, None, None).positions(512) == 16_384
    assert Limits(131_072, None, None).positions(32_768) == 65_536
