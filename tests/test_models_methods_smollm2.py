"""What fewer bits cost the real model, and that it goes on past its window with each."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from streams import engine_for
from test_int4_smollm2 import perplexity
from test_models_methods import bytes_of, loaded_as

from sinkchat.cache.policy import EvictTokens
from sinkchat.engine.engine import Engine
from sinkchat.engine.sampling import Greedy
from sinkchat.models.description import describe
from sinkchat.models.loading import LoadedModel, LoadOptions
from sinkchat.models.quantization import METHODS

pytestmark = pytest.mark.model

BITS = ("int4", "nf4", "int8", "fp4", "nf4-dq")
LOSS = {"nf4": 1.4, "nf4-dq": 1.4, "fp4": 1.7, "int8": 1.1, "int4": 1.02}
"""perplexity as a multiple of that of bfloat16, at most"""


@pytest.fixture(scope="module")
def text(smollm2: LoadedModel) -> list[int]:
    """A thousand tokens of English."""
    from pydoc_data.topics import topics

    words = topics["assignment"] + topics["class"] + topics["import"]
    ids: list[int] = smollm2.tokenizer(words, add_special_tokens=False).input_ids
    return ids[:1024]


@pytest.mark.slow
@pytest.mark.parametrize("quant", METHODS)
def test_what_is_shown_is_what_is_taken(quant: str) -> None:
    model, _ = describe("smollm2", LoadOptions(device="cpu"), cache_size=2048)
    shown = {way.choice: way.nbytes for way in model.weights}
    assert bytes_of(loaded_as("smollm2", quant).model) == shown[quant]


@pytest.mark.slow
@pytest.mark.parametrize("quant", BITS)
def test_fewer_bits_cost_little(text: list[int], quant: str) -> None:
    """The control: that they cost something, but for int4, whose codes are those of the file."""
    ids = torch.tensor([text])
    whole = perplexity(loaded_as("smollm2", "none", "bfloat16").model, ids)
    found = perplexity(loaded_as("smollm2", quant).model, ids)
    print(f"\n{quant}: {found:.2f} in place of {whole:.2f}")
    assert found < LOSS[quant] * whole
    assert quant == "int4" or found > 1.001 * whole


def losses(engine: Engine, ids: list[int]) -> Iterator[float]:
    """Of each token but the first, as the engine foresees it."""
    for token, following in pairwise(ids):
        engine.feed([token])
        yield float(torch.nn.functional.cross_entropy(engine.logits.float()[None], torch.tensor([following])))


def mean(numbers: Iterator[float]) -> float:
    found = list(numbers)
    return math.fsum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("quant", BITS)
def test_after_a_thousand_tokens_past_its_window_it_reads_as_it_did(text: list[int], quant: str) -> None:
    """It draws as many as 32 evictions drop, with 128 remembered, then foresees a text as well as one that drew none.

    The control has no sinks.
    """
    model = loaded_as("smollm2", quant).model
    surprise = {}
    for pinned, drawn in ((4, 0), (4, 1024), (0, 64)):
        engine = engine_for(model, EvictTokens(32), capacity=128, pinned=pinned)
        engine.feed(text[:128])
        steps = list(engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=drawn)) if drawn else []
        assert len([step for step in steps if step.token is not None]) == drawn
        engine.feed(text[200:328])
        assert engine.state.seen == 128 + drawn + 128
        assert engine.state.occupied <= 128
        surprise[pinned, drawn] = mean(losses(engine, text[328:368]))
    print(f"\n{quant}: {surprise}")
    assert surprise[4, 1024] < surprise[4, 0] + 0.1
    assert surprise[0, 64] > surprise[4, 0] + 0.3
