"""Drawing a token, against transformers' own processors, which compute the same in another way."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from sinkchat.engine.reading import reading
from sinkchat.engine.sampling import Greedy, Sampling
from sinkchat.errors import UsageError

VOCABULARY = 2_000


def logits_of(seed: int, spread: float) -> torch.Tensor:
    return spread * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))


def dense(sampling: Sampling, logits: torch.Tensor, held: list[int]) -> torch.Tensor:
    probabilities, ids = sampling.distribution(logits, held)
    return torch.zeros(VOCABULARY).index_copy(0, ids, probabilities)


def by_transformers(sampling: Sampling, logits: torch.Tensor, held: list[int]) -> torch.Tensor:
    processors = [RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)] if held else []
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    processors += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    processors += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    processors += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []
    scores = logits.clone().unsqueeze(0)
    for processor in processors:
        scores = processor(torch.tensor([held], dtype=torch.long), scores)
    return scores.softmax(-1)[0]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 50),
    spread=st.sampled_from([0.1, 1.0, 3.0, 8.0]),
    temperature=st.floats(0.2, 2),
    top_k=st.sampled_from([0, 1, 5, 300, 5_000]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_the_distribution_is_that_of_transformers(seed, spread, temperature, top_k, top_p, min_p, penalty):
    sampling = Sampling(temperature, top_k, top_p, min_p, penalty)
    logits, held = logits_of(seed, spread), [1, 7, 7, 1_999]
    difference = (dense(sampling, logits, held) - by_transformers(sampling, logits, held)).abs()
    # Where two sums cross a threshold within rounding, one more token may be kept: it is the least likely one.
    assert difference.max() < 1e-5 or (difference > 1e-6).sum() <= 1 + (dense(sampling, logits, held) > 0).sum()
    assert difference.sum() < 2e-3


def test_the_comparison_sees_another_top_p():
    logits = logits_of(0, 3.0)
    difference = dense(Sampling(top_p=0.8), logits, []) - by_transformers(Sampling(top_p=0.9), logits, [])
    assert difference.abs().sum() > 0.05


def test_greedy_takes_the_most_likely_token():
    assert Greedy().draw(logits_of(3, 1.0), [], torch.Generator()) == int(logits_of(3, 1.0).argmax())


def test_a_penalty_makes_greedy_avoid_what_is_in_memory():
    logits = logits_of(3, 1.0)
    top, second = logits.topk(2).indices.tolist()
    assert Greedy(repetition_penalty=10.0).draw(logits, [top], torch.Generator()) == second


def test_equal_seeds_draw_equal_tokens():
    draws = [
        [int(Sampling().draw(logits_of(0, 1.0), [], generator)) for _ in range(20)]
        for generator in (torch.Generator().manual_seed(5), torch.Generator().manual_seed(5))
    ]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=1.0, top_p=1.0)
    counts = torch.bincount(torch.tensor([sampling.draw(logits, [], generator) for _ in range(4_000)]), minlength=3)
    assert (counts / 4_000 - torch.tensor([0.5, 0.3, 0.2])).abs().max() < 0.03


@pytest.mark.parametrize(
    "sampler",
    [Greedy(1.2), Sampling(), Sampling(0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1)],
    ids=["greedy", "all", "filtered"],
)
def test_drawing_waits_for_no_device(sampler):
    elsewhere = logits_of(0, 1.0).to("meta")  # whoever asks for a number of this device is told that it has none
    drawn = sampler.draw(elsewhere, [3, 4], torch.Generator())
    assert (drawn.shape, drawn.device.type) == ((), "meta")
    with pytest.raises(RuntimeError):
        reading(drawn)()


def test_the_likeliest_tokens_alone_are_enough_to_draw_what_sorting_all_would_draw():
    drawn = []
    for top_k in (0, VOCABULARY - 1):  # a top-k that is nearly all has them all sorted
        generator = torch.Generator().manual_seed(3)
        filtered = Sampling(0.8, top_k=top_k, top_p=0.9, min_p=0.01)
        drawn.append([int(filtered.draw(logits_of(seed, 3.0), [], generator)) for seed in range(200)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 100


def test_the_last_chance_draws_the_last_token_that_can_be(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(1.0))  # more than a generator gives
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert int(Sampling(top_p=0.9).draw(logits, [], torch.Generator())) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
    ],
)
def test_what_cannot_be_drawn_from_is_refused(options):
    with pytest.raises(UsageError):
        Sampling(**options)
