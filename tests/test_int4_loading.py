"""`--quant int4`: from a GGUF's own blocks, from any weights, and from what was packed before."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf_files import write_gguf
from tiny import tiny_model, tiny_tokenizer

from sinkchat.errors import DeviceUnavailable, ModelError, UsageError
from sinkchat.models.checkpoint import Weight, read_weights
from sinkchat.models.conversion import kept_conversion, packed
from sinkchat.models.description import describe
from sinkchat.models.int4.gguf import GgufBlocks
from sinkchat.models.int4.linear import Int4Linear, Int8Linear
from sinkchat.models.int4.packing import is_fast_here, is_here
from sinkchat.models.int4.sharing import FirstOfShared, PartOfShared
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.placement import cpu_has_bfloat16
from sinkchat.models.quantization import METHODS, choose_quantization, methods_on

pytestmark = pytest.mark.skipif(not is_here(), reason="this torch has no 4-bit kernel for CPUs")

INT4 = LoadOptions(device="cpu", quant="int4")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
IDS = torch.arange(10, 50)[None]


@pytest.fixture
def tiny_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.Q4_1.gguf", blocks="Q4_1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model(tie_word_embeddings=True, vocab_size=272).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def weight_in(model, name: str) -> torch.Tensor:
    """What the linear called `name` multiplies by, whichever it shares its matmul with: shown by one-hot inputs."""
    linear = model.get_submodule(name)
    inputs = torch.eye(linear.in_features, dtype=torch.bfloat16)
    return linear(inputs).T.float()


@pytest.mark.parametrize("blocks", ["Q4_0", "Q4_1"])
def test_the_blocks_of_a_file_are_the_weights(tiny_gguf: Path, blocks: str) -> None:
    """Equal to what transformers opens the same file to, but for bfloat16: of the weights, and of scale and zero.

    To quantise what was opened would show with Q4_0, whose blocks do not use all codes.
    """
    write_gguf(tiny_gguf, blocks=blocks)
    whole = load_model(str(tiny_gguf), LoadOptions(device="cpu", quant="none", dtype="float32")).model
    loaded = load_model(str(tiny_gguf), INT4)
    assert (loaded.quant, loaded.dtype) == ("int4", "bfloat16")
    for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"model.layers.1.{part}"
        weight = whole.get_submodule(name).weight
        largest = weight.abs().amax().item()
        error = (weight_in(loaded.model, name) - weight).abs().max().item()
        assert error < 3 * largest / 2**9, name
        shifted = (weight_in(loaded.model, name) - weight.roll(1, dims=0)).abs().max().item()
        assert shifted > 0.5 * largest, name


def test_the_blocks_of_a_weight_are_found_by_its_rows_in_any_order(tiny_gguf: Path) -> None:
    blocks = GgufBlocks(tiny_gguf, torch.float32)
    model = load_model(str(tiny_gguf), LoadOptions(device="cpu", quant="none", dtype="float32")).model
    layer = model.model.layers[1]
    for weight in (layer.self_attn.k_proj.weight, layer.mlp.down_proj.weight):
        for wanted in (weight, weight.flip(0)):
            found = blocks.of(wanted)
            assert found is not None
            torch.testing.assert_close(found.dequantized(), wanted, rtol=1e-5, atol=1e-5)
        assert blocks.of(weight + 0.01) is None
        assert blocks.of(weight.flip(1)) is None


def test_other_kinds_of_blocks_are_opened_and_quantised(tiny_gguf: Path) -> None:
    write_gguf(tiny_gguf, blocks="Q8_0")
    exact = tiny_model()(IDS).logits
    error = (load_model(str(tiny_gguf), INT4).model(IDS).logits - exact).std() / exact.std()
    assert 0 < error < 0.3


def test_packed_weights_are_kept_and_say_the_same_again(tiny_gguf: Path) -> None:
    said: list[str] = []
    first = load_model(str(tiny_gguf), INT4, progress=said.append)
    again = load_model(str(tiny_gguf), INT4, progress=said.append)
    assert said == ["converting tiny.Q4_1.gguf, once", "loading tiny.Q4_1", "loading tiny.Q4_1"]
    assert torch.equal(first.model(IDS).logits, again.model(IDS).logits)
    assert not any(tensor.is_meta for tensor in again.model.state_dict().values())
    folder = packed(tiny_gguf)
    assert kept_conversion(tiny_gguf) == folder
    stored = sum(weight.stored_bytes for weight in read_weights(folder, name="tiny"))
    assert METHODS["int4"].nbytes(read_weights(folder, name="tiny"), torch.bfloat16) == stored
    assert again.model.get_memory_footprint() == pytest.approx(stored, rel=0.01)


def test_weights_packed_for_another_processor_are_refused(tiny_gguf: Path) -> None:
    folder = packed(tiny_gguf)
    config = folder / "config.json"
    written = json.loads(config.read_text())
    assert load_model(str(folder), LoadOptions(device="cpu")).quant == "int4"
    written["quantization_config"]["layout"] = "another"
    config.write_text(json.dumps(written))
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), LoadOptions(device="cpu"))
    assert caught.value.message == "these 4-bit weights were packed for a processor of another kind"


def test_a_file_is_described_as_itself_after_it_was_packed(tiny_gguf: Path) -> None:
    before, _ = describe(str(tiny_gguf), LoadOptions(device="cpu"), cache_size=256)
    packed(tiny_gguf)
    after, _ = describe(str(tiny_gguf), LoadOptions(device="cpu"), cache_size=256)
    assert replace(after, free=None, weights=(), caches=()) == replace(before, free=None, weights=(), caches=())
    assert [cost.choice for cost in after.weights] == ["none", "nf4", "nf4-dq", "fp4", "int8", "int4"]
    assert [cost.nbytes for cost in after.weights] == [cost.nbytes for cost in before.weights]


def test_any_weights_are_quantised_as_they_are_loaded(folder: Path) -> None:
    exact = load_model(str(folder), LoadOptions(device="cpu", dtype="bfloat16", quant="none")).model
    loaded = load_model(str(folder), INT4)
    attention = loaded.model.model.layers[0].self_attn
    kinds = [type(one) for one in (attention.q_proj, attention.v_proj, attention.o_proj, loaded.model.lm_head)]
    assert kinds == [FirstOfShared, PartOfShared, Int4Linear, Int8Linear]
    assert type(loaded.model.model.embed_tokens) is torch.nn.Embedding
    assert torch.equal(loaded.model.model.embed_tokens.weight, exact.model.embed_tokens.weight)
    logits = exact(IDS).logits.float()
    error = (loaded.model(IDS).logits.float() - logits).std() / logits.std()
    assert 0 < error < 0.3
    assert loaded.notes == ()


def test_the_estimate_is_what_the_model_then_takes(folder: Path) -> None:
    estimate = METHODS["int4"].nbytes(read_weights(folder, name="tiny"), torch.bfloat16)
    assert load_model(str(folder), INT4).model.get_memory_footprint() == pytest.approx(estimate, rel=0.05)


def test_auto_keeps_the_blocks_of_a_file_where_the_kernel_is_fast() -> None:
    fast = "int4" if cpu_has_bfloat16() and is_fast_here() else "none"
    for blocks, dtype, expected in (
        ("Q4_1", "auto", fast),
        ("Q4_0", "bfloat16", fast),
        ("Q4_1", "float32", "none"),
        ("Q8_0", "auto", "none"),
        ("none", "auto", "none"),
    ):
        assert choose_quantization("auto", CPU, shipped=None, blocks=blocks, dtype=dtype) == (METHODS[expected], ())


def test_it_computes_in_bfloat16_and_says_so_before_a_file_is_converted(tiny_gguf: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(str(tiny_gguf), replace(INT4, dtype="float32"))
    assert caught.value.message == "--quant int4 computes in bfloat16, not in float32"
    assert not (tiny_gguf.parent / "cache").exists()


def test_where_it_cannot_be_had_is_told() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose_quantization("int4", torch.device("mps"), shipped=None)
    assert caught.value.message == f"torch {torch.__version__} has no int4 for mps"
    try:
        import torchao
    except ImportError:
        with pytest.raises(UsageError) as missing:
            choose_quantization("int4", CUDA, shipped=None)
        assert missing.value.message == "--quant int4 on cuda needs the package torchao, which is not installed"
        assert missing.value.hint == "pip install torchao, or --quant nf4"
    else:
        settings = methods_on(CUDA)["int4"].apply(torch.bfloat16, CUDA)["quantization_config"].quant_type
        assert (settings.group_size, settings.int4_packing_format) == (128, "tile_packed_to_4d")
        assert torchao.__version__
    assert METHODS["int4"].apply(torch.bfloat16, CPU) == {}


def test_a_gguf_writer_makes_what_these_tests_are_about(tiny_gguf: Path) -> None:
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tiny_gguf).tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["token_embd.weight"]) == ("Q4_1", "F32")


def test_on_cuda_tiles_are_filled_up_and_odd_rows_stay_whole() -> None:
    """Two codes a byte in 8 x 1,024 tiles, a scale and a zero of 16 bits for each 128."""
    on_cuda = methods_on(CUDA)["int4"]
    for shape, nbytes in (
        ((4096, 4096), 4096 * 4096 // 2 + 4096 * 32 * 4),
        ((576, 1536), 576 * 2048 // 2 + 576 * 16 * 4),
        ((100, 128), 104 * 1024 // 2 + 104 * 8 * 4),
        ((576, 576), 2 * 576 * 576),
    ):
        assert on_cuda.nbytes([Weight("model.layers.0.mlp.up_proj.weight", shape, 0)], torch.bfloat16) == nbytes
    head = [Weight("lm_head.weight", (100, 128), 0), Weight("model.norm.weight", (128,), 0)]
    assert on_cuda.nbytes(head, torch.bfloat16) == 2 * (100 * 128 + 128)
    assert on_cuda.dtype(torch.float16) == torch.bfloat16
