"""Checkpoints that come quantised: loaded as they were shipped, or refused with what is missing."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_models_methods import SHAPE, bytes_of, off, saved
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, TorchAoConfig

from sinkchat.errors import DeviceUnavailable, ExitStatus, ModelError, SinkchatError, UsageError
from sinkchat.models.checkpoint import read_weights
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.placement import DTYPES
from sinkchat.models.quantization import METHODS, choose_quantization
from sinkchat.models.shipped import Opened, Shipped, shipped_method

CPU = LoadOptions(device="cpu")
CUDA = torch.device("cuda", 0)
IDS = torch.arange(10, 40)[None]

PACKAGES = {
    "gptq": "gptqmodel optimum",
    "awq": "gptqmodel",
    "compressed-tensors": "compressed-tensors",
    "torchao": "torchao",
    "aqlm": "aqlm",
    "auto-round": "auto-round",
    "quanto": "optimum-quanto",
    "vptq": "vptq",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": 128},
    "awq": {"bits": 4, "group_size": 128, "zero_point": True},
    "compressed-tensors": {
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 128,
                },
            }
        },
    },
    "fp8": {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "tomorrow": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "tiny")


def described_as(folder: Path, method: str) -> Path:
    """`folder`, whose config.json now says that its weights are quantised by `method`."""
    path = folder / "config.json"
    settings = {"quant_method": method} | SETTINGS.get(method, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    return folder


def refusal(folder: Path, options: LoadOptions = CPU) -> SinkchatError:
    with pytest.raises(SinkchatError) as caught:
        load_model(str(folder), options)
    return caught.value


def is_here(package: str) -> bool:
    try:
        return (
            importlib.util.find_spec(package.replace("-", "_").replace("optimum_quanto", "optimum.quanto"))
            is not None
        )
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_a_checkpoint_that_needs_a_package_says_which(folder: Path, method: str) -> None:
    packages = PACKAGES[method].split()
    if any(is_here(package) for package in packages):
        pytest.skip(f"one of {packages} is installed")
    error = refusal(described_as(folder, method))
    assert isinstance(error, ModelError)
    assert (error.exit_status, error.message, error.hint) == (
        ExitStatus.MODEL,
        f"the checkpoint is quantised already ({method}), and that needs "
        f"{' and '.join(packages)}, not installed here",
        f"pip install {' '.join(packages)}",
    )


@pytest.mark.parametrize("method", PACKAGES)
def test_each_form_names_what_pip_installs_for_it(method: str) -> None:
    if any(is_here(package) for package in PACKAGES[method].split()):
        pytest.skip(f"one of {PACKAGES[method]} is installed")
    with pytest.raises(ModelError) as caught:
        choose_quantization("auto", CUDA, shipped=method)
    assert caught.value.hint == f"pip install {PACKAGES[method]}"


@pytest.mark.parametrize("method", ["hqq", "eetq", "fbgemm_fp8", "higgs", "vptq"])
def test_a_form_that_works_on_cuda_alone_is_refused_elsewhere(method: str) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        choose_quantization("auto", torch.device("cpu"), shipped=method)
    assert caught.value.message == (
        f"the checkpoint is quantised already ({method}), which works on CUDA alone, not on cpu"
    )


def test_a_form_that_transformers_does_not_know_is_refused(folder: Path) -> None:
    """transformers itself would skip it, and take the codes for weights."""
    from transformers import __version__

    error = refusal(described_as(folder, "tomorrow"))
    assert isinstance(error, ModelError)
    assert error.message == (
        f"the checkpoint is quantised already (tomorrow), which transformers {__version__} does not know"
    )


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "fp8"])
@pytest.mark.parametrize("quant", [word for word in METHODS if word != "nf4"])
def test_weights_are_not_quantised_a_second_time(method: str, quant: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_quantization(quant, torch.device("cpu"), shipped=method)
    assert (caught.value.message, caught.value.hint) == (
        f"--quant {quant} cannot be: the checkpoint is quantised already ({method})",
        "--quant auto, which loads it as shipped",
    )


@pytest.mark.parametrize("quant", ["nf4", "nf4-dq", "fp4", "int8"])
def test_what_bitsandbytes_saved_is_the_same_model_again(folder: Path, quant: str) -> None:
    first = load_model(str(folder), LoadOptions(device="cpu", quant=quant))
    again_in = folder.parent / "again"
    first.model.save_pretrained(again_in)
    first.tokenizer.save_pretrained(again_in)
    again = load_model(str(again_in), CPU)
    form = quant.removesuffix("-dq")
    assert (again.quant, again.dtype) == (form, first.dtype)
    assert again.notes == (f"the checkpoint is quantised already ({form}) and is loaded as shipped",)
    foretold = Shipped(form).nbytes(read_weights(again_in, name="again"), DTYPES[again.dtype])
    assert bytes_of(again.model) == bytes_of(first.model) == foretold
    logits = first.model(IDS).logits
    assert torch.equal(again.model(IDS).logits, logits)
    assert off(logits, tiny_model(**SHAPE)(IDS).logits) > 0.02  # the control: it was quantised


def in_fp8(folder: Path) -> dict[str, Tensor]:
    """Makes of the layers' matrices 8-bit floats with a scale for each 128 x 128; gives what they then stand for."""
    weights = load_file(folder / "model.safetensors")
    opened: dict[str, Tensor] = {}
    for name, weight in list(weights.items()):
        if weight.ndim == 2 and ".layers." in name:
            blocks = weight.view(weight.shape[0] // 128, 128, weight.shape[1] // 128, 128)
            scales = blocks.abs().amax((1, 3)) / 448
            spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
            weights[name] = (weight / spread).to(torch.float8_e4m3fn)
            weights[name.replace(".weight", ".weight_scale_inv")] = scales
            opened[name] = weights[name].float() * spread
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described_as(folder, "fp8")
    return opened


def test_fp8_is_opened_to_plain_numbers_where_nothing_multiplies_it(folder: Path) -> None:
    opened = in_fp8(folder)
    loaded = load_model(str(folder), LoadOptions(device="cpu", dtype="float32"))
    assert (loaded.quant, loaded.notes) == (
        "fp8",
        ("the checkpoint is quantised already (fp8), and is opened to plain numbers on cpu",),
    )
    exact = tiny_model(**SHAPE)
    plain = exact(IDS).logits
    exact.load_state_dict(exact.state_dict() | opened)
    assert off(loaded.model(IDS).logits, exact(IDS).logits) < 1e-3 < 0.01 < off(loaded.model(IDS).logits, plain)
    weights = read_weights(folder, name="tiny")
    assert bytes_of(loaded.model) == Opened("fp8").nbytes(weights, torch.float32)
    assert bytes_of(loaded.model) > 2 * sum(weight.stored_bytes for weight in weights)


def test_fp8_and_mxfp4_are_kept_only_on_cuda_with_kernels() -> None:
    for form in ("fp8", "mxfp8", "mxfp4"):
        assert shipped_method(form, torch.device("cpu")) == Opened(form)
        assert shipped_method(form, CUDA) == (Shipped(form) if is_here("kernels") else Opened(form))
    assert shipped_method("gptq", torch.device("cpu")) == Shipped("gptq")
    assert shipped_method("compressed-tensors", CUDA) == Opened("compressed-tensors")


def by_compressed_tensors(folder: Path) -> dict[str, Tensor]:
    """As `in_fp8`: 4-bit integers with a scale for each 128, eight of them in an int32."""
    weights = load_file(folder / "model.safetensors")
    opened: dict[str, Tensor] = {}
    for name, weight in list(weights.items()):
        if weight.ndim == 2 and ".layers." in name:
            groups = weights.pop(name).view(weight.shape[0], -1, 128)
            scales = groups.abs().amax(-1, keepdim=True) / 7
            codes = (groups / scales).round().clamp(-8, 7)
            opened[name] = (codes * scales).view_as(weight)
            nibbles = (codes.to(torch.int64).view(weight.shape[0], -1, 8) + 8) << torch.arange(0, 32, 4)
            packed = nibbles.sum(-1)
            weights[f"{name}_packed"] = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
            weights[f"{name}_scale"] = scales.squeeze(-1).contiguous()
            weights[f"{name}_shape"] = torch.tensor(weight.shape)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    described_as(folder, "compressed-tensors")
    return opened


def test_compressed_tensors_are_the_weights_that_they_stand_for(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("compressed_tensors")
    opened = by_compressed_tensors(folder)
    capfd.readouterr()
    loaded = load_model(str(folder), LoadOptions(device="cpu", dtype="float32"))
    logits = loaded.model(IDS).logits
    assert (loaded.quant, capfd.readouterr()) == ("compressed-tensors", ("", ""))
    exact = tiny_model(**SHAPE)
    plain = exact(IDS).logits
    exact.load_state_dict(exact.state_dict() | opened)
    assert off(logits, exact(IDS).logits) < 1e-4 < 0.1 < off(logits, plain)
    foretold = Opened("compressed-tensors").nbytes(read_weights(folder, name="tiny"), torch.float32)
    assert bytes_of(loaded.model) == foretold


def test_what_torchao_saved_is_the_same_model_again(folder: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    settings = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    first = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=settings)
    again_in = folder.parent / "again"
    first.save_pretrained(again_in)
    tiny_tokenizer().save_pretrained(again_in)
    again = load_model(str(again_in), LoadOptions(device="cpu", dtype="float32"))
    assert again.quant == "torchao"
    with torch.inference_mode():
        logits = first(IDS).logits
        assert torch.equal(again.model(IDS).logits, logits)
        assert off(logits, tiny_model(**SHAPE)(IDS).logits) > 0.001  # the control: it was quantised
