"""The same facts on a CUDA device: `pytest -m gpu`."""

import pytest
import torch
from streams import distance, engine_for, logits_one_by_one, random_ids
from tiny import tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_streaming_on_the_gpu_equals_streaming_on_the_cpu():
    ids = random_ids(100)
    on_cpu = logits_one_by_one(engine_for(tiny_model("llama", 2)), ids)
    on_gpu = logits_one_by_one(engine_for(tiny_model("llama", 2).to("cuda")), ids)
    assert distance(on_gpu.cpu(), on_cpu) < 1e-2


def test_rewinding_on_the_gpu_puts_every_bit_back():
    engine = engine_for(tiny_model("llama", 2, dtype=torch.bfloat16).to("cuda"))
    engine.feed(random_ids(50))
    mark = engine.mark()
    logits = []
    for _ in range(2):
        engine.rewind(mark)
        engine.feed(random_ids(40, seed=1))
        logits.append(engine.logits)
    assert torch.equal(logits[0], logits[1])
