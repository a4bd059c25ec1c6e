"""The captured decode step, without a CUDA device: what is recorded, what a replay gives, what a failure leaves."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured import Broken, Captured, Rerun
from streams import distance, engine_for, logits_one_by_one, random_ids
from tiny import tiny_model
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.step import IMPLEMENTATION, StepStack
from sinkchat.engine.acceleration import PROOFS
from sinkchat.engine.graph import CapturedStep, CudaGraphs, Graphs
from sinkchat.engine.sampling import Greedy

BOUND = 3e-5
"""standard deviations of the logits, in float32"""


def in_two_groups(layouts: Sequence[LayerLayout]) -> Sequence[LayerLayout]:
    """Every other layer with a rotation of its own, though it turns like the others."""
    other = copy(layouts[0].rotation)
    return [replace(layout, rotation=other) if index % 2 else layout for index, layout in enumerate(layouts)]


def watched(model: nn.Module, see: Callable[[dict[str, Any]], None]) -> None:
    """Calls `see` with what the model is given for each captured token."""

    def hook(_: nn.Module, __: tuple[Any, ...], given: dict[str, Any]) -> None:
        if isinstance(given.get("cache", given.get("past_key_values")), StepStack):
            see(given)

    model.register_forward_pre_hook(hook, with_kwargs=True)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_captured_logits_equal_the_plain_ones_past_evictions(family: str) -> None:
    model, ids, graphs = tiny_model(family, 3), random_ids(200), Rerun()
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    captured = Captured(model, graphs)
    assert distance(logits_one_by_one(captured.engine, ids), plain) < BOUND
    assert captured.engine.state.evicted == 136
    assert graphs.replays == 200
    assert captured.source.state == "captured"


def test_layers_that_are_kept_in_two_groups_are_all_written() -> None:
    model, ids = tiny_model("llama", 4), random_ids(150)
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    captured = Captured(model, Rerun(), layouts=in_two_groups)
    assert len(captured.ring.groups) == 2
    assert distance(logits_one_by_one(captured.engine, ids), plain) < BOUND


@pytest.mark.parametrize("occupied", [0, 1, 31, 33, 64])
def test_a_step_reads_what_the_bias_says_is_held(occupied: int) -> None:
    captured, plain = Captured(tiny_model("llama", 3), Rerun()), engine_for(tiny_model("llama", 3), capacity=64)
    for engine in (captured.engine, plain):
        engine.feed(random_ids(occupied))
        engine.cache.make_room()
    given = torch.tensor([[7]]), captured.engine.cache.positions(1)
    plain.feed([7])
    with torch.inference_mode():
        logits, _ = captured.source.step(*given)
        assert distance(logits, plain.logits) < BOUND
        held = captured.ring.bias == 0
        captured.ring.bias.masked_fill_(held, -torch.inf).masked_fill_(~held, 0.0)  # the control: all but those
        assert distance(captured.source.step(*given)[0], plain.logits) > 0.1


def test_a_recording_that_reads_a_wrong_bias_is_not_used() -> None:
    class Blind(Rerun):
        """Reads every slot of the ring as held."""

        def replay(self) -> None:
            right = captured.ring.bias.clone()
            captured.ring.bias.zero_()
            super().replay()
            captured.ring.bias.copy_(right)

    model, ids, graphs = tiny_model("llama", 3), random_ids(100), Blind()
    captured = Captured(model, graphs)
    logits = logits_one_by_one(captured.engine, ids)
    assert distance(logits, logits_one_by_one(engine_for(model, capacity=64), ids)) < BOUND
    assert captured.source.state.startswith("not captured: ")
    assert graphs.replays < PROOFS


FAILURES = [
    pytest.param(
        "warm-up",
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nGPU 0 has"),
        "not captured: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.",
        id="memory",
    ),
    pytest.param(
        "capture",
        RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors"),
        "not captured: RuntimeError: CUDA error: operation not permitted when stream is capturing",
        id="waits",
    ),
    pytest.param("capture", NotImplementedError(), "not captured: NotImplementedError: ", id="wordless"),
]


@pytest.mark.parametrize(("stage", "error", "state"), FAILURES)
def test_what_cannot_be_captured_is_computed_plainly_and_the_reason_said(
    stage: str, error: Exception, state: str
) -> None:
    model, ids = tiny_model("llama", 2), random_ids(100)
    captured = Captured(model, Broken(stage, error))
    logits = logits_one_by_one(captured.engine, ids)
    assert distance(logits, logits_one_by_one(engine_for(model, capacity=64), ids)) < BOUND
    assert (captured.source.state, captured.source.step) == (state, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_without_a_device_nothing_is_captured(device: str) -> None:
    captured = Captured(tiny_model("llama", 1), CudaGraphs(torch.device(device)))
    assert captured.source.state.startswith("not captured: ")
    assert captured.engine.feed([5]).seen == 1


def test_an_attention_that_asks_for_more_is_refused_in_its_own_words() -> None:
    captured = Captured(tiny_model("mistral", 2, sliding_window=16), Rerun())
    assert captured.source.state == "not captured: its attention needs sliding_window"


@pytest.mark.parametrize(
    "graphs",
    [Rerun(), Broken("warm-up", RuntimeError("no")), Broken("capture", RuntimeError("no"))],
    ids=["captured", "not warmed up", "not captured"],
)
def test_the_models_own_attention_is_put_back(graphs: Graphs) -> None:
    model = tiny_model("llama", 2)
    meanwhile = []
    watched(model, lambda given: meanwhile.append(model.config._attn_implementation))
    captured = Captured(model, graphs)
    assert model.config._attn_implementation == "sdpa"
    captured.engine.feed([5])
    assert model.config._attn_implementation == "sdpa"
    assert set(meanwhile) == {IMPLEMENTATION}


def test_it_is_put_back_when_the_model_itself_fails() -> None:
    model = tiny_model("mistral", 2, sliding_window=16)
    assert Captured(model, Rerun()).source.step is None
    assert model.config._attn_implementation == "sdpa"


def test_every_address_stays_through_500_tokens() -> None:
    graphs, addresses = Rerun(), []

    def see(given: dict[str, Any]) -> None:
        cache = given.get("cache", given.get("past_key_values"))
        tensors = [given["input_ids"], given["position_ids"], captured.ring.bias, *graphs.outputs]
        tensors += [part for layer in cache.layers for part in (layer.keys, layer.values)]
        addresses.append(tuple(tensor.data_ptr() for tensor in tensors))

    model = tiny_model("llama", 2)
    captured = Captured(model, graphs)
    watched(model, see)
    logits_one_by_one(captured.engine, random_ids(500))
    assert len(addresses) == 500
    assert len(set(addresses)) == 1
    assert len(addresses[0]) == 2 + 1 + 3 + 4


def test_logits_that_a_mark_keeps_are_not_written_over() -> None:
    engine = Captured(tiny_model("llama", 2), Rerun()).engine
    logits_one_by_one(engine, random_ids(80))
    mark, kept = engine.mark(), engine.logits.clone()
    first = logits_one_by_one(engine, random_ids(30, seed=1))
    engine.rewind(mark)
    assert torch.equal(engine.logits, kept)
    assert distance(logits_one_by_one(engine, random_ids(30, seed=1)), first) < BOUND


def test_greedy_answers_are_the_same() -> None:
    model, answers = tiny_model("llama", 3), []
    for engine in (Captured(model, Rerun()).engine, engine_for(model, capacity=64)):
        engine.feed(random_ids(40))
        answers.append([step.token for step in engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=150)])
    assert answers[0] == answers[1]


def test_a_step_changes_nothing_that_is_held() -> None:
    captured = Captured(tiny_model("llama", 2), Rerun())
    captured.engine.feed(random_ids(70))
    before = [part.clone() for blocks in captured.ring.groups for part in (blocks.keys, blocks.values)]
    assert isinstance(captured.source.step, CapturedStep)
    with torch.inference_mode():
        captured.source.step(torch.tensor([[7]]), captured.engine.cache.positions(1))
    after = [part for blocks in captured.ring.groups for part in (blocks.keys, blocks.values)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def operations(work: Callable[[], object]) -> int:
    """How many of torch's operations `work` takes: on a device, at least as many launches."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return sum(event.count for event in seen.key_averages() if event.key.startswith("aten::"))


@pytest.mark.parametrize("is_marked", [False, True])
def test_forgetting_takes_as_many_operations_however_many_layers(is_marked: bool) -> None:
    forgetting, turning = [], []
    for layers in (2, 8):
        captured = Captured(tiny_model("llama", layers), Rerun())
        captured.engine.feed(random_ids(100))
        if is_marked:
            captured.engine.mark()
        forgetting.append(operations(captured.engine.cache.make_room))
        turning.append(operations(lambda ring=captured.ring: ring.turn(4, 60, -8)))
    assert forgetting[0] == forgetting[1] < 100
    assert turning[0] < turning[1]  # the control: what goes a layer at a time
