"""How weights are held: what is chosen, what is said about it, and what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from sinkchat.errors import OutOfMemory, UsageError
from sinkchat.models.budget import Budget
from sinkchat.models.checkpoint import Weight, read_weights
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.quantization import METHODS, choose_quantization
from sinkchat.terminal.asked.request import QuantName

CPU = LoadOptions(device="cpu", dtype="float32")
CUDA = torch.device("cuda", 0)
COSTS_TIME = "on a CPU saves memory and costs time: it reads three to five times as slowly"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama whose rows are a whole number of blocks of 64."""
    tiny_model(intermediate_size=128).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def _kinds(model: PreTrainedModel) -> set[str]:
    return {type(model.model.layers[0].mlp.up_proj).__name__, type(model.lm_head).__name__}


@pytest.mark.parametrize(
    ("quant", "kind", "tolerance"),
    [("nf4", "Linear4bit", 0.5), ("fp4", "Linear4bit", 0.8), ("int8", "Linear8bitLt", 0.1)],
)
def test_layers_are_quantised_and_the_head_is_not(folder: Path, quant: str, kind: str, tolerance: float) -> None:
    loaded = load_model(str(folder), LoadOptions(device="cpu", quant=quant))
    assert loaded.quant == quant
    assert _kinds(loaded.model) == {kind, "Linear"}
    assert loaded.notes == (f"{quant} {COSTS_TIME}",)
    ids = torch.arange(10, 40)[None]
    exact = tiny_model(intermediate_size=128)(ids).logits
    error = (loaded.model(ids).logits.float() - exact).std() / exact.std()
    assert 0 < error < tolerance


def test_int8_computes_in_float16_as_bitsandbytes_does(folder: Path) -> None:
    assert load_model(str(folder), LoadOptions(device="cpu", quant="int8")).dtype == "float16"
    with pytest.raises(UsageError) as caught:
        load_model(str(folder), LoadOptions(device="cpu", quant="int8", dtype="bfloat16"))
    assert caught.value.message == "--quant int8 computes in float16, not in bfloat16"


def test_auto_is_nf4_on_cuda_and_none_elsewhere() -> None:
    method, notes = choose_quantization("auto", CUDA, shipped=None)
    assert method.name == "nf4"
    assert notes == ("weights in 4 bits (nf4), as always on CUDA; --quant none holds them whole",)
    for elsewhere in ("cpu", "mps"):
        assert choose_quantization("auto", torch.device(elsewhere), shipped=None) == (METHODS["none"], ())


def test_a_checkpoint_that_is_quantised_already_is_loaded_as_shipped(folder: Path) -> None:
    loaded = load_model(str(folder), replace(CPU, quant="nf4"))
    shipped = folder.parent / "shipped"
    loaded.model.save_pretrained(shipped)
    loaded.tokenizer.save_pretrained(shipped)
    again = load_model(str(shipped), CPU)
    assert (again.quant, again.notes) == (
        "nf4",
        ("the checkpoint is quantised already (nf4) and is loaded as shipped",),
    )
    ids = torch.arange(10, 40)[None]
    assert torch.equal(again.model(ids).logits, loaded.model(ids).logits)
    for asked in ("none", "fp4"):
        with pytest.raises(UsageError) as caught:
            load_model(str(shipped), replace(CPU, quant=asked))
        assert caught.value.message == f"--quant {asked} cannot be: the checkpoint is quantised already (nf4)"


def _llama_2_7b() -> tuple[Weight, ...]:
    layer = [(4096, 4096)] * 4 + [(11008, 4096)] * 3 + [(4096,)] * 2
    shapes = {f"model.layers.{i}.{j}": shape for i in range(32) for j, shape in enumerate(layer)}
    shapes |= {"model.embed_tokens.weight": (32000, 4096), "lm_head.weight": (32000, 4096)}
    return tuple(Weight(name, shape, 0) for name, shape in shapes.items())


def test_the_bytes_of_a_seven_billion_model_are_known_beforehand() -> None:
    gibibytes = {name: method.nbytes(_llama_2_7b(), torch.bfloat16) / 2**30 for name, method in METHODS.items()}
    assert {name: round(size, 1) for name, size in gibibytes.items()} == {
        "none": 12.6,
        "nf4": 3.9,
        "nf4-dq": 3.6,
        "fp4": 3.9,
        "int8": 6.5,
        "int4": 4.1,
    }


@pytest.mark.parametrize(
    ("quant", "free", "message", "hint"),
    [
        (
            "none",
            8 * 2**30,
            "out of GPU memory loading weights: 12.6 GiB needed in bfloat16, 8.0 GiB free on cuda:0",
            "--quant nf4 (about 3.9 GiB), or --device cpu",
        ),
        (
            "none",
            3 * 2**30,
            "out of GPU memory loading weights: 12.6 GiB needed in bfloat16, 3.0 GiB free on cuda:0",
            "--device cpu",
        ),
        (
            "nf4",
            3 * 2**30,
            "out of GPU memory loading weights: 3.9 GiB needed in nf4, 3.0 GiB free on cuda:0",
            "--device cpu",
        ),
    ],
)
def test_weights_that_cannot_fit_on_a_gpu_are_told_with_what_would(
    quant: str, free: int, message: str, hint: str
) -> None:
    budget = Budget(METHODS[quant], _llama_2_7b(), torch.bfloat16, CUDA, free)
    with pytest.raises(OutOfMemory) as caught:
        budget.check()
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_weights_that_fit_or_of_unknown_size_are_let_through() -> None:
    Budget(METHODS["none"], _llama_2_7b(), torch.bfloat16, CUDA, 16 * 2**30).check()
    Budget(METHODS["none"], (), torch.bfloat16, CUDA, 1).check()
    Budget(METHODS["none"], _llama_2_7b(), torch.bfloat16, CUDA, None).check()


@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_the_estimate_is_what_the_model_then_takes(folder: Path, quant: str) -> None:
    estimate = METHODS[quant].nbytes(read_weights(folder, name="tiny"), torch.float32)
    taken = load_model(str(folder), replace(CPU, quant=quant)).model.get_memory_footprint()
    assert taken == pytest.approx(estimate, rel=0.15)


def test_the_command_line_knows_every_method() -> None:
    assert get_args(QuantName) == ("auto", *METHODS)
