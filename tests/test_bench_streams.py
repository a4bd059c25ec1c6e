"""The streams of a bench against plainer loops, and what they hold while they are timed."""

import mmap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from gguf_files import write_gguf
from scripted_llama import ScriptedLlama
from streams import engine_for, random_ids
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from sinkchat.cache.policy import CacheState, EvictMessages, EvictTokens
from sinkchat.errors import ModelError, ResourceError, UsageError
from sinkchat.lab.bench.bench import Field, Machine, Plan, bench
from sinkchat.lab.bench.peers import LlamaCppModel, LlamaCppStream
from sinkchat.lab.bench.roofline import CopyBandwidth, weight_bytes, weight_bytes_if
from sinkchat.lab.bench.start import expected, expected_elsewhere, resident_bytes, start_bench, subject_of
from sinkchat.lab.bench.streams import EngineStream
from sinkchat.models.int4.packing import is_here
from sinkchat.models.int4.replace import to_int4
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.plain import PlainStream, RecomputedWindow, dynamic_cache, static_cache
from sinkchat.models.quantization import METHODS

MODEL = tiny_model()
CPU = {"device": "cpu", "dtype": "float32"}


def drawn_afresh(ids: list[int], count: int, window: int | None = None) -> list[int]:
    """Greedy tokens, each by a forward over everything before it, or over the latest `window`."""
    held, tokens = list(ids), []
    for _ in range(count):
        read = held[-window:] if window else held
        with torch.inference_mode():
            tokens.append(int(MODEL(torch.tensor([read]), use_cache=False).logits[0, -1].argmax()))
        held.append(tokens[-1])
    return tokens


class Forwards:
    """Counts the forwards of a model, and the tokens that each of them brings."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.brought: list[int] = []
        embedding = model.get_input_embeddings()
        self._hook = embedding.register_forward_hook(lambda _, given, __: self.brought.append(given[0].shape[-1]))

    def stop(self) -> list[int]:
        self._hook.remove()
        return self.brought


@pytest.mark.parametrize("make_cache", [dynamic_cache(MODEL), static_cache(MODEL, 60)], ids=["dynamic", "static"])
def test_a_plain_stream_draws_what_forwards_without_a_cache_draw(make_cache) -> None:
    stream, ids = PlainStream("plain", MODEL, make_cache), random_ids(30)
    stream.read(ids[:7])
    stream.read(ids[7:])
    moment = stream.moment()
    expected_tokens = drawn_afresh(ids, 20)
    assert list(stream.draw(20)) == expected_tokens
    stream.back_to(moment)
    assert list(stream.draw(20)) == expected_tokens
    stream.begin()
    stream.read(ids[:9])
    assert list(stream.draw(5)) == drawn_afresh(ids[:9], 5) != expected_tokens[:5]


def test_a_recomputed_window_draws_what_a_fresh_forward_over_it_draws() -> None:
    stream, ids = RecomputedWindow(MODEL, 12), random_ids(40)
    stream.read(ids)
    assert list(stream.draw(15)) == drawn_afresh(ids, 15, window=12)
    assert drawn_afresh(ids, 15, window=12) != drawn_afresh(ids, 15)


def test_between_two_tokens_lies_one_forward_of_one_token_or_of_the_whole_window() -> None:
    engine = EngineStream(engine_for(MODEL, EvictTokens(1), capacity=16))
    streams = [(engine, 1), (PlainStream("plain", MODEL, dynamic_cache(MODEL)), 1), (RecomputedWindow(MODEL, 12), 12)]
    for stream, brings in streams:
        stream.begin()
        stream.read(random_ids(14))
        first, *others = (stream.draw(6), stream)
        next(first)
        forwards = Forwards(MODEL)
        assert len(list(first)) == 5
        assert forwards.stop() == [brings] * 5, others


def test_a_moment_of_the_engine_comes_back_after_evictions() -> None:
    stream = EngineStream(engine_for(MODEL, EvictTokens(1), capacity=24))
    stream.read(random_ids(20))
    moment = stream.moment()
    drawn = list(stream.draw(10))
    stream.read(random_ids(100))
    stream.back_to(moment)
    assert list(stream.draw(10)) == drawn


def test_full_is_before_the_first_eviction_and_late_is_windows_after_it() -> None:
    engine = engine_for(MODEL, EvictTokens(1), capacity=96)
    plan = Plan(cache_sizes=(96,), rounds=2, tokens=8, windows=3, turns=12)
    states: dict[str, list[CacheState]] = {}

    @contextmanager
    def field_of(size: int):
        yield Field(EngineStream(engine), (), RecomputedWindow(MODEL, size))

    for sample in bench(plan, field_of, Machine(lambda: 1.0, lambda: None)):
        if sample.of == "sinkchat":
            states.setdefault(sample.measure, []).append(engine.state)
    assert {(state.seen, state.evicted, state.pinned) for state in states["full"]} == {(95, 0, 4)}
    assert all(state.occupied == 96 and state.evicted >= 3 * 96 for state in states["late"])
    assert all(state.seen < 40 for state in states["empty"])
    assert [state.seen for state in states["prefill"]] == [48, 48]
    assert isinstance(engine.cache.policy, EvictMessages)
    assert all(state.evicted > 2 * 96 for state in states["last turn"])
    assert {(state.seen, state.evicted) for state in states["first turn"]} == {(32, 0)}


def test_what_a_step_reads_is_all_weights_and_one_row_of_an_embedding_that_is_no_head() -> None:
    by_hand = sum(weight.numel() for name, weight in MODEL.named_parameters() if "embed_tokens" not in name)
    by_hand += MODEL.config.hidden_size
    frequencies = MODEL.config.head_dim // 2 * 4
    copies = sum(1 for name, _ in MODEL.named_buffers())
    assert weight_bytes(MODEL) == 4 * by_hand + copies * frequencies
    everything = sum(weight.nbytes for weight in MODEL.parameters())
    assert everything - weight_bytes(MODEL) > 250 * MODEL.config.hidden_size * 4 - 1000
    tied = tiny_model(tie_word_embeddings=True)
    assert weight_bytes(tied) == sum(weight.nbytes for weight in tied.parameters()) + copies * frequencies
    assert weight_bytes(tied) == weight_bytes(MODEL) - 4 * MODEL.config.hidden_size


def test_of_experts_a_step_reads_those_that_a_token_is_sent_to() -> None:
    config = AutoConfig.for_model(
        "mixtral", vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    experts = 2 * 8 * 3 * 32 * 48
    others = sum(weight.numel() for weight in model.parameters()) - experts - 64 * 32 + 32
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert weight_bytes(model) == 4 * (others + experts // 4) + buffers
    assert weight_bytes_if(METHODS["none"], model, torch.float32) == weight_bytes(model)


def test_quantised_weights_are_counted_with_their_scales(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_model(str(tmp_path), LoadOptions(device="cpu", dtype="float32", quant="nf4")).model
    matrices = {name: weight for name, weight in MODEL.named_parameters() if weight.ndim == 2 and "layers" in name}
    packed = sum(weight.numel() / 2 for weight in matrices.values())
    scales = sum(-(-weight.numel() // 64) * 4 + 16 * 4 for weight in matrices.values())
    whole = weight_bytes(MODEL) - 4 * sum(weight.numel() for weight in matrices.values())
    assert weight_bytes(model) == packed + scales + whole
    unloaded = expected(str(tmp_path), CPU | {"quant": "nf4"}).subject
    assert unloaded.weight_bytes == pytest.approx(weight_bytes(model), rel=0.02)
    assert unloaded.weight_bytes < weight_bytes(MODEL) / 2


@pytest.mark.skipif(not is_here(), reason="this torch has no int4 for the CPU")
def test_weights_that_are_buffers_count_and_a_head_of_its_own_frees_the_embedding() -> None:
    model = tiny_model(dtype=torch.bfloat16, tie_word_embeddings=True)
    to_int4(model)
    embedding = model.get_input_embeddings().weight
    held = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    assert weight_bytes(model) == sum(held.values()) - embedding.nbytes + embedding[0].nbytes
    in_int4 = weight_bytes_if(METHODS["int4"], tiny_model(tie_word_embeddings=True), torch.bfloat16)
    assert in_int4 == pytest.approx(weight_bytes(model), rel=0.05)


@pytest.mark.model
def test_of_the_default_model_every_parameter_is_read(smollm2: LoadedModel) -> None:
    found = expected("smollm2", CPU | {"quant": "none"}).subject
    frequencies = 2 * 32 * 4  # the rotary ones, and their untouched copy
    assert found.weight_bytes == subject_of(smollm2).weight_bytes == 134_515_008 * 4 + frequencies
    assert found.kv_bytes_per_token == subject_of(smollm2).kv_bytes_per_token == 30 * 2 * 3 * 64 * 4


def test_a_copy_is_timed_after_one_that_is_not_and_counts_both_ways() -> None:
    ticks = iter([10.0, 12.5])
    assert CopyBandwidth(torch.device("cpu"), lambda: next(ticks), nbytes=1_000)() == 2 * 1_000 / 2.5


def test_what_is_expected_without_weights_is_what_the_loaded_model_reads(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    found = expected(str(tmp_path), CPU)
    started = start_bench(str(tmp_path), CPU, {"cache_sizes": (128,)})
    assert found.subject == started.subject
    assert found.cache_sizes == (256, 1024, 4096)
    by_hand = 2 * 2 * MODEL.config.num_key_value_heads * MODEL.config.head_dim * 4
    assert found.subject.kv_bytes_per_token == by_hand
    elsewhere = expected_elsewhere(str(tmp_path), {"device": "cuda:3", "quant": "none"}).subject
    assert (elsewhere.device, elsewhere.dtype, elsewhere.quant) == ("cuda:3", "bfloat16", "none")
    assert elsewhere.kv_bytes_per_token == by_hand // 2
    assert expected_elsewhere(str(tmp_path), {"device": "cuda"}).subject.quant == "nf4"


def test_a_slip_is_told_before_weights_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--cache-size 20 is too small"):
        start_bench(str(tmp_path / "nowhere"), {}, {"cache_sizes": (20,)})


def test_the_process_takes_more_where_more_is_held() -> None:
    before = resident_bytes()
    if before is None:
        pytest.skip("this system has no /proc")
    with mmap.mmap(-1, 1 << 26) as fresh:  # from the system: what the allocator keeps could already be resident
        untouched = resident_bytes()
        fresh.write(b"1" * len(fresh))
        after = resident_bytes()
    assert after is not None
    assert untouched is not None
    assert untouched - before < 1 << 23  # not what is mapped is counted
    assert after - untouched == pytest.approx(1 << 26, rel=0.1)


def llama_stream(llama: ScriptedLlama, **options: int) -> LlamaCppStream:
    model = LlamaCppModel(llama, Path("a.gguf"), on_gpu=False)
    return LlamaCppStream(model, **({"length": 700, "threads": 3} | options))


def test_llama_cpp_draws_what_it_would_draw_alone() -> None:
    llama = ScriptedLlama()
    stream, ids = llama_stream(llama), random_ids(600)
    stream.read(ids)
    moment = stream.moment()
    alone = llama.continued(ids, 20)
    assert list(stream.draw(20)) == alone
    stream.begin()
    stream.read(ids[:5])
    assert list(stream.draw(4)) == llama.continued(ids[:5], 4)
    stream.back_to(moment)
    assert list(stream.draw(20)) == alone
    assert llama.batches[:2] == [512, 88]
    assert len(llama.contexts) == 2
    stream.close()
    assert llama.contexts == []


def test_llama_cpp_runs_on_as_many_threads_and_as_much_memory_as_asked_for() -> None:
    llama = ScriptedLlama()
    llama_stream(llama, length=4_146, threads=7)
    (context,) = llama.contexts
    assert (context.n_ctx, context.n_batch, context.n_ubatch) == (4_146, 512, 512)
    assert (context.n_threads, context.n_threads_batch) == (7, 7)
    assert llama.gpu_layers == [0]
    LlamaCppModel(llama, Path("a.gguf"), on_gpu=True)
    assert llama.gpu_layers[1] >= 1_000


def test_what_llama_cpp_refuses_is_told() -> None:
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load a\.gguf"):
        llama_stream(ScriptedLlama(loads=False))
    stream = llama_stream(ScriptedLlama(), length=40)
    stream.read(random_ids(30))
    with pytest.raises(ResourceError, match=r"llama\.cpp fails after 30 tokens, with status 1"):
        stream.read(random_ids(11))


@pytest.mark.slow
def test_a_bench_beside_llama_cpp_on_the_model_s_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    gguf, llama = write_gguf(tmp_path / "tiny.F32.gguf"), ScriptedLlama()
    plan = {"cache_sizes": (64,), "rounds": 1, "tokens": 4, "windows": 1, "turns": 3}
    started = start_bench(str(gguf), CPU, plan, peers=True, llama_cpp=lambda: llama)
    samples = list(started.samples)
    assert llama.loaded == [str(gguf)]
    measured = {sample.of for sample in samples if sample.measure == "full"}
    assert measured == {"sinkchat", "dense", "static cache", "llama.cpp", "recomputed"}
    assert all(sample.value > 0 for sample in samples if not sample.measure.startswith("resident"))
    assert llama.contexts == []


@pytest.mark.parametrize(
    ("llama", "note"),
    [
        (None, "no llama.cpp beside it: pip install llama-cpp-python"),
        (ScriptedLlama(loads=False), "no llama.cpp beside it: llama.cpp cannot load tiny.F32.gguf"),
    ],
)
def test_a_peer_that_cannot_run_is_a_note(tmp_path, monkeypatch, llama, note) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    gguf = write_gguf(tmp_path / "tiny.F32.gguf")
    started = start_bench(str(gguf), CPU, {"cache_sizes": (128,)}, peers=True, llama_cpp=lambda: llama)
    assert started.notes == (note,)


def test_a_model_that_is_no_gguf_file_has_no_llama_cpp_beside_it(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    started = start_bench(str(tmp_path / "tiny"), CPU, {"cache_sizes": (128,)}, peers=True, llama_cpp=ScriptedLlama)
    assert started.notes == ("no llama.cpp beside it: tiny is no GGUF file",)
