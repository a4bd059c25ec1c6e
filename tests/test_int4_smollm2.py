"""What 4 bits cost the real model: hardly anything, as long as the head keeps 8."""

import math
from pydoc_data.topics import topics

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from sinkchat.cache.forward import Forward
from sinkchat.models.int4.blocks import quantized
from sinkchat.models.int4.linear import Int4Linear
from sinkchat.models.int4.packing import is_here
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not is_here(), reason="this torch has no 4-bit kernel for CPUs"),
]


@pytest.fixture(scope="module")
def int4(smollm2: LoadedModel) -> PreTrainedModel:
    return load_model("smollm2", LoadOptions(device="cpu", quant="int4")).model


@pytest.fixture(scope="module")
def text_ids(smollm2: LoadedModel) -> torch.Tensor:
    text = topics["assignment"] + topics["class"] + topics["import"]
    return smollm2.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids


@torch.inference_mode()
def perplexity(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Of `ids` (1, T), read at once."""
    losses = torch.nn.functional.cross_entropy(model(ids, use_cache=False).logits[0, :-1].float(), ids[0, 1:])
    return math.exp(losses.item())


@torch.inference_mode()
def perplexity_one_by_one(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """The same, token by token, as an answer is written."""
    forward, cache, rows = Forward(model), DynamicCache(), []
    for i in range(ids.shape[1] - 1):
        rows.append(forward(ids[:, i : i + 1], torch.tensor([[i]]), cache)[0, -1])
    return math.exp(torch.nn.functional.cross_entropy(torch.stack(rows).float(), ids[0, 1:]).item())


def test_it_knows_the_capital_of_japan(smollm2: LoadedModel, int4: PreTrainedModel) -> None:
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    ids = smollm2.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    answer = int4.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Tokyo" in smollm2.tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])


@pytest.mark.slow
def test_the_blocks_of_the_file_cost_little(
    smollm2: LoadedModel, int4: PreTrainedModel, text_ids: torch.Tensor
) -> None:
    """Measured: 12.76 read at once in place of 12.69; over a hundred tokens rounding alone moves it by 2 percent."""
    ids = text_ids[:, :1024]
    assert perplexity(int4, ids) == pytest.approx(perplexity(smollm2.model, ids), rel=0.015)
    few = ids[:, :256]
    assert perplexity_one_by_one(int4, few) == pytest.approx(perplexity(smollm2.model, few), rel=0.03)


@pytest.mark.slow
def test_a_head_of_four_bits_would_cost_more(int4: PreTrainedModel, text_ids: torch.Tensor) -> None:
    """The control: why the head has 8."""
    ids = text_ids[:, :1024]
    before, head = perplexity(int4, ids), int4.lm_head
    try:
        int4.lm_head = Int4Linear.of(quantized(int4.model.embed_tokens.weight), bias=None)
        assert perplexity(int4, ids) > 1.015 * before
    finally:
        int4.lm_head = head
