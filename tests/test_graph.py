"""The captured decode step, without a CUDA device: what is recorded, what a replay gives, what a failure leaves."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from captured import CAPTURED, Broken, Captured, Rerun
from stepping import Counted, Eager, Runs
from streams import distance, engine_for, logits_one_by_one, random_ids
from tiny import tiny_model
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from sinkchat.cache.probe import LayerLayout
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.step import IMPLEMENTATION, StepStack
from sinkchat.engine.acceleration import PROOFS, SectionedStep
from sinkchat.engine.engine import Engine
from sinkchat.engine.graph import CapturedStep, CudaGraphs, Graphs
from sinkchat.engine.sampling import Greedy, Sampler, Sampling

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
    assert captured.source.state == CAPTURED


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


# Ids that are read one step late.

SAMPLERS = [Greedy(), Greedy(repetition_penalty=1.3), Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1)]


def fed(engine: Engine, ids: list[int]) -> Engine:
    engine.feed(ids)
    return engine


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["greedy", "penalized", "drawn"])
@pytest.mark.parametrize("occupied", [10, 64])
def test_answers_and_what_is_forgotten_for_them_are_the_same(sampler: Sampler, occupied: int) -> None:
    model = tiny_model("llama", 3)
    captured = Captured(model, Rerun()).engine
    plain = engine_for(model, capacity=64)
    answers = [
        [
            (step.token, step.evicted, step.state.seen)
            for step in engine.generate(sampler, stop_ids=frozenset(), max_tokens=150)
        ]
        for engine in (fed(captured, random_ids(occupied)), fed(plain, random_ids(occupied)))
    ]
    assert answers[0] == answers[1]
    assert len({token for token, *_ in answers[0]}) > 5
    assert captured.held_ids == plain.held_ids


def test_the_next_token_is_under_way_before_the_last_one_is_known() -> None:
    graphs = Rerun()
    engine = Captured(tiny_model("llama", 2), graphs, capacity=256).engine
    logits_one_by_one(engine, random_ids(20))
    before = graphs.replays
    steps = engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=12)
    under_way = [graphs.replays - before - (step.state.seen - 20) for step in steps]
    assert under_way == [1] * 11 + [0]  # nothing comes after the last one


def test_in_a_full_cache_nothing_is_begun_for_a_token_that_may_end_it() -> None:
    graphs = Rerun()
    engine = Captured(tiny_model("llama", 2), graphs).engine
    logits_one_by_one(engine, random_ids(64))
    before = graphs.replays
    next(engine.generate(Greedy(), stop_ids=frozenset()))
    assert graphs.replays == before
    assert engine.state.evicted == 0


@pytest.mark.parametrize("leaves", [True, False], ids=["a person leaves", "a stop id"])
def test_a_token_that_was_under_way_and_is_not_wanted_leaves_nothing(leaves: bool) -> None:
    model = tiny_model("llama", 2)
    captured, plain = Captured(model, Rerun(), capacity=256).engine, engine_for(model, capacity=256)
    after = []
    for engine in (captured, plain):
        logits_one_by_one(engine, random_ids(20))
        first = int(engine.logits.argmax())
        steps = engine.generate(Greedy(), stop_ids=frozenset() if leaves else frozenset([first]))
        assert next(steps).token == first
        steps.close()
        assert engine.state.seen == 20
        assert engine.pending == ([first] if leaves else [])
        after.append(logits_one_by_one(engine, random_ids(30, seed=4)))
    assert distance(after[0], after[1]) < BOUND


def test_a_step_that_fails_ahead_is_refused_and_the_answer_goes_on() -> None:
    class Failing(Rerun):
        def replay(self) -> None:
            super().replay()
            if self.replays == 30:
                raise RuntimeError("CUDA error: an illegal memory access\nat")

    model = tiny_model("llama", 2)
    captured = Captured(model, Failing(), capacity=256)
    answers = [
        [step.token for step in engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=60)]
        for engine in (fed(captured.engine, random_ids(20)), fed(engine_for(model, capacity=256), random_ids(20)))
    ]
    assert answers[0] == answers[1]
    assert captured.source.state == "not captured: a compiled step failed: CUDA error: an illegal memory access"


# The step that a compiler made.


def whole_step(model: nn.Module, ring: RingStorage) -> SectionedStep:
    """As a compiler leaves it, over all blocks of the ring."""
    runs = Runs(model)
    return SectionedStep(
        model, ring, before=runs.before, layers=runs.layers, after=runs.after, reach=lambda: len(ring.bias)
    )


def test_what_is_compiled_takes_the_place_of_the_models_own_step() -> None:
    model, ids = tiny_model("llama", 2), random_ids(200)
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    own, compiled, source = Rerun(), Rerun(), Eager(None)
    captured = Captured(model, own, compiled, compiled=lambda _: source)
    assert distance(logits_one_by_one(captured.engine, ids[:40]), plain[:40]) < BOUND
    source.step = whole_step(model, captured.ring)
    assert distance(logits_one_by_one(captured.engine, ids[40:]), plain[40:]) < BOUND
    assert (own.replays, compiled.replays) == (40, 160)
    assert captured.source.state == "captured, compiled"


@pytest.mark.parametrize(
    ("graphs", "spoil", "told"),
    [
        (Broken("capture", RuntimeError("no")), lambda logits: logits, "it cannot be captured: RuntimeError: no"),
        (Rerun(), lambda logits: logits.roll(1), "compiled logits are"),
    ],
    ids=["cannot be captured", "wrong"],
)
def test_what_is_compiled_and_no_use_leaves_the_models_own_recording(
    graphs: Graphs, spoil: Callable[[Tensor], Tensor], told: str
) -> None:
    model, ids, own = tiny_model("llama", 2), random_ids(200), Rerun()
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    source = Eager(None)
    captured = Captured(model, own, graphs, compiled=lambda _: source)
    source.step = Counted(whole_step(model, captured.ring), spoil)
    assert distance(logits_one_by_one(captured.engine, ids), plain) < BOUND
    assert captured.source.state.startswith(f"captured, not compiled: {told}")
    assert own.replays >= 199


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
    assert forgetting[0] == forgetting[1] < 120  # torch 2.13: 85; 2.8: 110, with a slice for each whole dimension
    assert turning[0] < turning[1]  # the control: what goes a layer at a time
