"""Weights in fewer bits on a CUDA device: `pytest -m gpu`; with `-s` the bytes are printed."""

from pathlib import Path

import pytest
import torch
from streams import engine_for, logits_one_by_one, random_ids
from test_models_methods import BY_HAND, IDS, by_hand, bytes_of, logits_by_hand, off, saved
from test_models_shipped import in_fp8
from tiny import tiny_model
from torch import nn

from sinkchat.models.checkpoint import read_weights
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.packages import is_installed
from sinkchat.models.placement import DTYPES
from sinkchat.models.quantization import methods_on

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CUDA = torch.device("cuda", 0)


def loaded_as(folder: Path, quant: str) -> LoadedModel:
    if quant == "int4" and not is_installed("torchao"):
        pytest.skip("torchao is not installed")
    return load_model(str(folder), LoadOptions(device="cuda", quant=quant))


@pytest.mark.parametrize("quant", ["none", "nf4", "nf4-dq", "fp4", "int8"])
def test_the_bytes_foretold_are_the_bytes_taken(tmp_path: Path, quant: str) -> None:
    loaded = loaded_as(saved(tmp_path), quant)
    foretold = methods_on(CUDA)[quant].nbytes(read_weights(tmp_path, name="tiny"), DTYPES[loaded.dtype])
    assert bytes_of(loaded.model) == foretold


def test_int4_takes_what_was_foretold_on_the_device(tmp_path: Path) -> None:
    """torchao's tensors hide what they hold: the device is asked, which gives out 512 bytes at a time."""
    folder = saved(tmp_path, intermediate_size=1024)
    loaded_as(folder, "int4")  # the kernels' own memory comes with the first
    before = torch.cuda.memory_allocated(CUDA)
    loaded = loaded_as(folder, "int4")
    taken = torch.cuda.memory_allocated(CUDA) - before
    foretold = methods_on(CUDA)["int4"].nbytes(read_weights(folder, name="tiny"), DTYPES[loaded.dtype])
    tensors = 2 * len(list(loaded.model.parameters())) + len(list(loaded.model.buffers()))
    assert foretold <= taken <= foretold + 512 * tensors


@pytest.mark.parametrize("quant", ["none", "nf4", "nf4-dq", "fp4", "int8"])
def test_the_logits_are_those_of_weights_opened_by_hand(tmp_path: Path, quant: str) -> None:
    found = loaded_as(saved(tmp_path), quant).model(IDS.to(CUDA)).logits.cpu()
    rounded = BY_HAND[quant]
    assert off(found, logits_by_hand(quant, rounded)) < 0.06
    assert off(found, logits_by_hand(quant, lambda weight: rounded(weight).roll(1, dims=0))) > 1


def test_int4_multiplies_by_the_nearest_of_sixteen_in_groups_of_128(tmp_path: Path) -> None:
    """One-hot inputs show the weights; the control are those of another matrix."""
    model = loaded_as(saved(tmp_path, intermediate_size=1024), "int4").model
    one_hot = torch.eye(256, dtype=torch.bfloat16, device=CUDA)
    shown = model.model.layers[0].mlp.up_proj(one_hot).T.float().cpu()
    plain = tiny_model(hidden_size=256, intermediate_size=1024, head_dim=64).model.layers[0].mlp
    groups = plain.up_proj.weight.reshape(-1, 128)
    step = (groups.amax(1, keepdim=True) - groups.amin(1, keepdim=True)) / 15
    worst = ((shown.reshape(-1, 128) - groups).abs() / step).amax()
    assert 0.3 < worst < 0.6
    assert ((shown.reshape(-1, 128) - plain.gate_proj.weight.reshape(-1, 128)).abs() / step).amax() > 2
    assert type(model.lm_head) is nn.Linear


@pytest.mark.parametrize("quant", ["nf4", "nf4-dq", "fp4", "int8"])
def test_a_stream_goes_on_past_evictions_as_on_the_cpu(tmp_path: Path, quant: str) -> None:
    model, ids = loaded_as(saved(tmp_path), quant).model, random_ids(100)
    plain = by_hand(quant, BY_HAND[quant])
    expected = logits_one_by_one(engine_for(plain), ids)
    assert off(logits_one_by_one(engine_for(model), ids).cpu(), expected) < 0.1
    unmoved = engine_for(model, moves_sinks=False)
    assert off(logits_one_by_one(unmoved, ids).cpu(), expected) > 0.2


def test_int4_streams_a_thousand_tokens(tmp_path: Path) -> None:
    engine = engine_for(loaded_as(saved(tmp_path, intermediate_size=1024), "int4").model, capacity=64)
    assert logits_one_by_one(engine, random_ids(1000)).isfinite().all()
    assert (engine.state.seen, engine.state.occupied) == (1000, 64)


def test_fp8_weights_stay_so_or_are_opened(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    opened = in_fp8(folder)
    loaded = load_model(str(folder), LoadOptions(device="cuda"))
    exact = tiny_model(hidden_size=256, intermediate_size=512, head_dim=64)
    exact.load_state_dict(exact.state_dict() | opened)
    assert loaded.quant == "fp8"
    assert off(loaded.model(IDS.to(CUDA)).logits.cpu(), exact(IDS).logits) < 0.1
    print(f"\nfp8: {loaded.notes[0]}, {bytes_of(loaded.model):,} bytes")
