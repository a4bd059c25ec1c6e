"""The same facts on a CUDA device: `pytest -m gpu`; with `-s` the speeds are printed."""

import time
from collections.abc import Callable

import pytest
import torch
from captured import CAPTURED, Captured, random_model, without_weights_of_16_bits
from streams import TRAINED, distance, engine_for, logits_one_by_one, random_ids
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor, nn

from sinkchat.cache.ring import RingStorage
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.engine.acceleration import difference
from sinkchat.engine.graph import CudaGraphs, without_waiting
from sinkchat.models.loading import LoadedModel

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


CUDA = torch.device("cuda")
OF_7B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def on_cuda(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    return tiny_model("llama", 3, dtype=dtype).to(CUDA)


def captured(model: nn.Module, *, capacity: int = 64) -> Captured:
    return Captured(model, CudaGraphs(CUDA), capacity=capacity)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_recording_says_what_the_plain_forward_says(dtype: torch.dtype, bound: float) -> None:
    model, ids = on_cuda(dtype), random_ids(300)
    recorded = captured(model)
    assert recorded.source.state == CAPTURED
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    assert difference(logits_one_by_one(recorded.engine, ids), plain) < bound
    assert recorded.source.state == CAPTURED  # still: the first tokens were computed both ways


def test_the_device_allocates_nothing_anew_over_500_tokens() -> None:
    names = ("allocated_bytes.all.current", "segment.all.allocated", "num_alloc_retries")
    recorded = captured(on_cuda())
    recorded.engine.feed(random_ids(100))
    logits_one_by_one(recorded.engine, random_ids(20))
    seen = []
    for token in random_ids(500):
        recorded.engine.feed([token])
        stats = torch.cuda.memory_stats()
        seen.append(tuple(stats[name] for name in names))
    assert set(seen[50:]) == {seen[50]}


def test_a_captured_token_waits_for_nothing() -> None:
    recorded = captured(on_cuda())
    engine, step = recorded.engine, recorded.source.step
    engine.feed(random_ids(40))
    given = torch.tensor([[7]], device=CUDA), engine.cache.positions(1)
    assert step is not None
    with torch.inference_mode(), without_waiting():
        _, new = step(*given)
        recorded.ring.write(recorded.ring.held, new)
        engine.cache.commit(1)
    with pytest.raises(RuntimeError), without_waiting():  # the control
        given[0].item()


def goes_on_plainly(hook: Callable[..., None]) -> nn.Module:
    """Checks that a model with `hook` before its head cannot be captured, and streams; gives it without the hook."""
    model, ids, stream = on_cuda(torch.float32), random_ids(100), torch.cuda.current_stream()
    handle = model.get_output_embeddings().register_forward_pre_hook(hook)
    refused = captured(model)
    assert refused.source.state.startswith("not captured: ")
    assert torch.cuda.current_stream() == stream
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    assert distance(logits_one_by_one(refused.engine, ids), plain) < 1e-4
    handle.remove()
    return model


def test_a_model_that_waits_for_the_device_is_not_begun_to_be_recorded() -> None:
    def waits(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert not torch.cuda.is_current_stream_capturing()
        given[0].sum().item()

    model = goes_on_plainly(waits)
    assert captured(model).source.state == CAPTURED


def test_weights_in_nf4_decode_alike_captured_or_not() -> None:
    wide = tiny_model("llama", 3, hidden_size=256, intermediate_size=512, dtype=torch.bfloat16)
    model, ids = without_weights_of_16_bits(wide.to(CUDA)), random_ids(200)
    recorded = captured(model)
    plain = logits_one_by_one(engine_for(model, capacity=64), ids)
    assert difference(logits_one_by_one(recorded.engine, ids), plain) < 0.1
    print(f"\nnf4: {recorded.source.state}")


def test_a_chat_on_the_device_keeps_its_tokens_in_a_ring() -> None:
    model = on_cuda()
    for compiles, kept in ((True, True), (False, False)):
        loaded = LoadedModel(
            model, tiny_tokenizer(), "tiny", "none", "bfloat16", "cuda", TRAINED, notes=(), compiles=compiles
        )
        engine = build_engine(loaded, MemoryOptions(cache_size=64, evict="token"))
        logits_one_by_one(engine, random_ids(100))
        assert isinstance(engine.cache.storage, RingStorage) is kept


def seconds(work: Callable[[], object], *, times: int) -> float:
    """For one `work`, the device's part included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def bytes_a_second() -> float:
    """Read and written by a copy of 2 GiB."""
    source = torch.empty(2**31, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), times=10)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["bfloat16", "nf4"])
def test_a_7b_model_decodes_through_its_recording(weights: str) -> None:
    model = random_model(**OF_7B)
    if weights == "nf4":
        model = without_weights_of_16_bits(model)
    recorded, ids = captured(model, capacity=4096), random_ids(4200)
    recorded.engine.feed(ids)
    logits_one_by_one(recorded.engine, ids[:10])
    assert recorded.source.state == CAPTURED
    step, given = recorded.source.step, (torch.tensor([[7]], device=CUDA), torch.tensor([[4096]], device=CUDA))
    assert step is not None
    with torch.inference_mode():
        of_step = seconds(lambda: step(*given), times=50)
    of_token = seconds(lambda: recorded.engine.feed([7]), times=50)
    plain = engine_for(model, capacity=4096)
    plain.feed(ids)
    of_plain = seconds(lambda: plain.feed([7]), times=20)
    moved = sum(weight.nbytes for weight in model.parameters()) + recorded.engine.state.nbytes
    moved -= model.get_input_embeddings().weight.nbytes
    share = moved / of_step / bytes_a_second()
    print(
        f"\n7B, {weights}, 4,096 tokens held: {1 / of_token:.0f} tok/s captured ({of_step * 1e3:.2f} ms a step, "
        f"{share:.0%} of the copy bandwidth), {1 / of_plain:.0f} tok/s plain, {of_plain / of_token:.1f} times"
    )
    assert of_token < of_plain


def test_a_recording_that_is_broken_off_leaves_the_device_usable() -> None:  # the last: torch may not clean up
    def waits(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if torch.cuda.is_current_stream_capturing():
            given[0].sum().item()

    goes_on_plainly(waits)
