"""The real model: the cache's checks on real weights, and that what it says stays sense."""

import copy
import math
from collections.abc import Iterable
from pydoc_data.topics import topics

import pytest
import torch
from reference import reference_logits
from streams import distance, engine_for, held_after, logits_in_chunks, logits_one_by_one
from torch import Tensor
from transformers import DynamicCache

from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictMessages, EvictTokens
from sinkchat.chat.events import TurnEnded
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import session_for

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def text_ids(smollm2) -> list[int]:
    """English that every Python carries."""
    return smollm2.tokenizer.encode(
        topics["assignment"] + topics["class"] + topics["import"], add_special_tokens=False
    )


def first_layers(model, count: int):
    """The model with its first `count` layers only; the weights are shared."""
    shallow = copy.copy(model)
    shallow._modules = dict(model._modules)
    shallow.model = copy.copy(model.model)
    shallow.model._modules = dict(model.model._modules)
    shallow.model.layers = model.model.layers[:count]
    shallow.config = shallow.model.config = copy.deepcopy(model.config)
    shallow.config.num_hidden_layers = count
    return shallow


@pytest.mark.parametrize(("moves_sinks", "passes"), [(True, True), (False, False)], ids=["sinks move", "control"])
def test_one_layer_equals_a_fresh_forward_over_what_is_kept(smollm2, text_ids, moves_sinks, passes):
    model = first_layers(smollm2.model, 1)
    ids = text_ids[:200]
    engine = engine_for(model, capacity=32, pinned=4, moves_sinks=moves_sinks)
    streamed = logits_one_by_one(engine, ids)[40::10]
    with torch.inference_mode():
        expected = torch.stack(
            [
                model(torch.tensor([[ids[i] for i in held_after(count, 32, 4)]]), use_cache=False).logits[0, -1]
                for count in range(41, 201, 10)
            ]
        )
    assert (distance(streamed, expected) < 3e-5) is passes


@pytest.mark.parametrize(("moves_sinks", "passes"), [(True, True), (False, False)], ids=["sinks move", "control"])
def test_three_layers_equal_the_reference(smollm2, text_ids, moves_sinks, passes):
    model = first_layers(smollm2.model, 3)
    ids = text_ids[:120]
    engine = engine_for(model, capacity=32, pinned=4, moves_sinks=moves_sinks)
    expected = reference_logits(model, ids, EvictTokens(), capacity=32, pinned=4)
    assert (distance(logits_one_by_one(engine, ids), expected) < 1e-4) is passes


def test_how_text_was_handed_over_does_not_matter(smollm2, text_ids):
    ids, borders = text_ids[:200], [10, 31, 60, 64, 120, 150]
    one, seven, paste = (
        logits_in_chunks(engine_for(smollm2.model, EvictMessages(), capacity=64), ids, size, borders)
        for size in (1, 7, 200)
    )
    assert distance(seven, one) < 5e-4
    assert distance(paste, one) < 5e-4
    other = logits_in_chunks(engine_for(smollm2.model, EvictTokens(), capacity=64), ids, 7, borders)
    assert distance(other, one) > 0.01


def test_before_the_first_eviction_all_is_as_with_a_dynamic_cache(smollm2, text_ids):
    forward, cache = Forward(smollm2.model), DynamicCache()
    engine = engine_for(smollm2.model, capacity=64)
    for start in (0, 32):
        ids = text_ids[start : start + 32]
        positions = torch.arange(start, start + 32).unsqueeze(0)
        expected = forward(torch.tensor([ids]), positions, cache)[0, -1]
        engine.feed(ids)
        assert distance(engine.logits, expected) < 1e-6


def perplexity(logits: Iterable[Tensor], targets: Iterable[int]) -> float:
    """exp of the mean negative log-likelihood of each target under the logits (V,) before it."""
    losses = [-row.log_softmax(-1)[target].item() for row, target in zip(logits, targets, strict=True)]
    return math.exp(sum(losses) / len(losses))


def three_perplexities(model, ids: list[int], capacity: int, every: int) -> dict[str, float]:
    """Of every `every`-th token: with sinks, without, and with the last `capacity` tokens read afresh each time."""
    scored = range(capacity, len(ids) - 1, every)
    targets = [ids[index + 1] for index in scored]
    streamed = {}
    for name, pinned in (("sinks", 4), ("window", 0)):
        engine = engine_for(model, capacity=capacity, pinned=pinned)
        engine.feed(ids[: scored[0]])
        rows = []
        for index in range(scored[0], scored[-1] + 1):
            engine.feed([ids[index]])
            if index in scored:
                rows.append(engine.logits)
        streamed[name] = perplexity(rows, targets)
    with torch.inference_mode():
        afresh = (model(torch.tensor([ids[i - capacity + 1 : i + 1]]), use_cache=False).logits[0, -1] for i in scored)
        return streamed | {"recompute": perplexity(afresh, targets)}


def test_sinks_keep_the_perplexity_and_a_bare_window_loses_it(smollm2, text_ids):
    found = three_perplexities(smollm2.model, text_ids[:500], capacity=64, every=5)
    assert found["sinks"] < 1.10 * found["recompute"], found
    assert found["window"] > 1.5 * found["recompute"], found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_over_2500_tokens_sinks_stay_within_three_percent_of_recomputation(smollm2, text_ids):
    found = three_perplexities(smollm2.model, text_ids[:2500], capacity=256, every=6)
    print(found)
    assert found["sinks"] < 1.03 * found["recompute"], found
    assert found["window"] > 1.5 * found["recompute"], found


def chat(smollm2, memory: MemoryOptions, **options):
    return session_for(smollm2, memory=memory, chat={"temperature": 0, "max_tokens": 24} | options)


def say(session, text: str) -> TurnEnded:
    return list(session.send(text))[-1]


def test_the_capital_of_france_is_paris(smollm2):
    assert "Paris" in say(chat(smollm2, MemoryOptions()), "What is the capital of France?").text


def test_after_ten_windows_it_still_answers_and_the_system_prompt_is_there(smollm2, text_ids):
    session = session_for(
        smollm2,
        memory=MemoryOptions(cache_size=128),
        chat={"temperature": 0, "max_tokens": 24},
        system="You are a helpful assistant named Ishmael.",
    )
    words = smollm2.tokenizer.decode(text_ids[:1300])
    for start in range(0, len(words), 1200):
        say(session, words[start : start + 1200])
    assert session.state.evicted > 10 * 100
    assert "You are a helpful assistant named Ishmael." in session.pinned_text()
    assert "Ishmael" in say(session, "What is your name?").text
    assert "Paris" in say(session, "What is the capital of France?").text


def test_without_sinks_it_falls_silent_or_into_babble(smollm2, text_ids):
    """The control: the same chat under the `window` policy."""
    session = session_for(
        smollm2,
        memory=MemoryOptions(cache_size=128, policy="window"),
        chat={"temperature": 0, "max_tokens": 24},
        system="You are a helpful assistant named Ishmael.",
    )
    words = smollm2.tokenizer.decode(text_ids[:600])
    for start in range(0, len(words), 1200):
        say(session, words[start : start + 1200])
    assert "Ishmael" not in session.pinned_text() + session.window_text()
    assert "Ishmael" not in say(session, "What is your name?").text
