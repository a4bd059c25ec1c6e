"""From a folder to a model: what is applied, and what is refused before the weights are touched."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from tiny import CHATML, tiny_model, tiny_tokenizer
from transformers.utils import logging as transformers_logging

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.errors import (
    CannotStream,
    DeviceUnavailable,
    ExitStatus,
    ModelError,
    NoChatTemplate,
    OutOfMemory,
    SinkchatError,
    UsageError,
)
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.placement import choose_device, choose_dtype, cpu_has_bfloat16
from sinkchat.models.progress import downloading, file_size, memory_size

CPU = LoadOptions(device="cpu", dtype="float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny Llama as save_pretrained leaves it."""
    return _saved(tmp_path / "tiny-llama")


def _saved(folder: Path, family: str = "llama", **config: Any) -> Path:
    tiny_model(family, **config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _configure(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    written = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({name: value for name, value in written.items() if value is not None}))


def _refusal(folder: Path, options: LoadOptions = CPU) -> SinkchatError:
    with pytest.raises(SinkchatError) as caught:
        load_model(str(folder), options)
    return caught.value


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi", "stablelm", "gpt2", "opt"]
)
def test_a_folder_loads_to_the_model_that_was_saved(tmp_path: Path, family: str) -> None:
    loaded = load_model(str(_saved(tmp_path / family, family)), CPU)
    ids = torch.tensor([[7, 8, 9, 10]])
    assert torch.equal(loaded.model(ids).logits, tiny_model(family)(ids).logits)
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert {weight.device.type for weight in loaded.model.parameters()} == {"cpu"}


def test_a_model_that_also_takes_images_is_loaded_whole_and_streams_text(tmp_path: Path) -> None:
    loaded = load_model(str(_saved(tmp_path / "tiny-vl", "qwen2_vl")), CPU)
    assert type(loaded.model).__name__ == "Qwen2VLForConditionalGeneration"
    ids = torch.tensor([[7, 8, 9, 10]])
    assert torch.equal(loaded.model(ids).logits, tiny_model("qwen2_vl")(ids).logits)
    engine = build_engine(loaded, MemoryOptions(cache_size=32))
    assert engine.feed(range(4, 104)).evicted > 60


def test_what_cannot_forget_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "tiny-gpt2", "gpt2")
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(CannotStream, match="tiny-gpt2 cannot stream: it learns absolute positions"):
        load_model(str(folder), replace(CPU, must_stream=True))
    assert "damaged" in _refusal(folder).message  # where it may stay dense, its weights are asked for


def test_what_is_loaded_is_described(folder: Path) -> None:
    said: list[str] = []
    loaded = load_model(str(folder), CPU, progress=said.append)
    facts = {name: getattr(loaded, name) for name in LoadedModel.__slots__}
    assert facts | {"model": ..., "tokenizer": ...} == {
        "model": ...,
        "tokenizer": ...,
        "name": "tiny-llama",
        "quant": "none",
        "dtype": "float32",
        "device": "cpu",
        "max_length": 4096,
        "notes": (),
        "compiles": False,
    }
    assert loaded.tokenizer.chat_template == CHATML
    assert said == ["loading tiny-llama"]


@pytest.mark.parametrize(
    ("family", "config", "length"),
    [
        ("llama", {"max_position_embeddings": 512}, 512),
        ("gpt2", {}, 1024),
        ("opt", {}, 4096),
    ],
)
def test_the_trained_length_comes_from_the_configuration(
    tmp_path: Path, family: str, config: dict[str, Any], length: int
) -> None:
    assert load_model(str(_saved(tmp_path / family, family, **config)), CPU).max_length == length


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_asked_for_is_the_dtype_of_the_weights(folder: Path, dtype: str) -> None:
    loaded = load_model(str(folder), replace(CPU, dtype=dtype))
    assert {weight.dtype for weight in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert loaded.dtype == dtype


def test_a_model_computes_with_as_many_threads_as_were_asked_for(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        load_model(str(folder), replace(CPU, threads=before + 1))
        assert torch.get_num_threads() == before + 1
        load_model(str(folder), CPU)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_auto_dtype_on_a_cpu_is_what_it_multiplies_natively(folder: Path) -> None:
    expected = "bfloat16" if cpu_has_bfloat16() else "float32"
    assert load_model(str(folder), LoadOptions(device="cpu")).dtype == expected


def test_auto_dtype_on_an_accelerator_keeps_half_precision_as_stored() -> None:
    cuda = torch.device("cuda", 0)
    assert choose_dtype("auto", cuda, stored=torch.float16) == torch.float16
    assert choose_dtype("float32", cuda, stored=torch.float16) == torch.float32


def test_loading_draws_nothing_and_leaves_the_libraries_as_they_were(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
        are_progress_bars_disabled(),
        logging.root.level,
    )
    load_model(str(folder), CPU)
    assert capfd.readouterr() == ("", "")
    assert before == (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
        are_progress_bars_disabled(),
        logging.root.level,
    )


def test_a_base_model_is_named_as_such_and_a_template_is_offered(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    error = _refusal(folder)
    assert isinstance(error, NoChatTemplate)
    assert error.message == (
        "tiny-llama has no chat template: it is a base model, which continues text and does not answer"
    )
    assert error.hint == "its instruction-tuned version, or --chat-template FILE"
    assert load_model(str(folder), replace(CPU, needs_template=False)).tokenizer.chat_template is None


def test_a_template_from_a_file_goes_before_the_models_own(folder: Path) -> None:
    given = folder / "mine.jinja"
    given.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    loaded = load_model(str(folder), replace(CPU, chat_template=given))
    said = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "[hi]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"line\n{% for %}", "is no Jinja template: line 2: "),
        (b"{{ raise_exception('only in Latin') }}", "fails on a first user message: only in Latin"),
    ],
)
def test_a_template_file_that_cannot_be_meant_is_a_usage_error(
    folder: Path, content: bytes | None, message: str
) -> None:
    given = folder / "mine.jinja"
    if content is not None:
        given.write_bytes(content)
    error = _refusal(folder, replace(CPU, chat_template=given))
    assert isinstance(error, UsageError)
    assert error.message.startswith(f"--chat-template {given} {message}")


def test_a_model_without_tokenizer_is_refused(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert _refusal(folder).message == (
        "tiny-llama has no tokenizer: no tokenizer.json or the like lies beside its weights"
    )


def test_a_tokenizer_that_cannot_be_parsed_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    assert _refusal(folder).message.startswith("the tokenizer of tiny-llama cannot be read: ")


@pytest.mark.parametrize("kept", [0, 5, 200, 5000, -1])
def test_weights_cut_short_are_called_damaged(folder: Path, kept: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    error = _refusal(folder)
    assert isinstance(error, ModelError)
    assert error.message.startswith("model.safetensors of tiny-llama is damaged or cut short: ")
    assert error.hint == f"delete {weights}, then the same command fetches it again"


@pytest.mark.parametrize("kept", [-1, 1000])
def test_pickled_weights_load_and_are_called_damaged_when_cut_short(folder: Path, kept: int) -> None:
    pickled = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), pickled)
    (folder / "model.safetensors").unlink()
    assert load_model(str(folder), CPU).model.num_parameters() > 0
    pickled.write_bytes(pickled.read_bytes()[:kept])
    assert _refusal(folder).message.startswith("pytorch_model.bin of tiny-llama is damaged or cut short: ")


def test_weights_that_lack_a_layer_are_refused_rather_than_filled_with_chance(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert _refusal(folder).message == (
        "the weights of tiny-llama lack 1 of the tensors that the model needs, "
        "model.layers.1.mlp.up_proj.weight for one"
    )


def test_weights_of_another_shape_than_the_configuration_are_refused(folder: Path) -> None:
    _configure(folder, intermediate_size=128)
    assert _refusal(folder).message.startswith("the weights of tiny-llama do not fit its config.json: ")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            "tiny-llama is BertForMaskedLM, not a causal language model: it cannot write an answer",
        ),
        (
            {"model_type": "clip", "architectures": ["CLIPModel"]},
            "tiny-llama is CLIPModel, not a causal language model: it cannot write an answer",
        ),
        (
            {"model_type": "t5", "architectures": None},
            "tiny-llama is a t5, not a causal language model: it cannot write an answer",
        ),
        (
            {"model_type": "tomorrow"},
            "tiny-llama is a tomorrow, which transformers {version} does not know",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}},
            "tiny-llama runs only with Python code of its own, and that is not trusted yet",
        ),
        (
            {"num_attention_heads": "four"},
            "config.json of tiny-llama cannot be used: ",
        ),
    ],
)
def test_what_is_no_causal_language_model_is_refused_by_its_configuration(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    import transformers

    _configure(folder, **changed)
    (folder / "model.safetensors").write_bytes(b"never read")
    error = _refusal(folder)
    assert isinstance(error, ModelError)
    assert error.message.startswith(message.format(version=transformers.__version__))


def test_a_damaged_configuration_is_told_with_its_place(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')
    error = _refusal(folder)
    assert error.message.startswith("config.json of tiny-llama is damaged: ")
    assert error.hint == f"fetch {folder / 'config.json'} again"


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class Config(LlamaConfig):
    model_type = "own"

class Own(LlamaForCausalLM):
    config_class = Config
"""


def test_code_of_a_repository_runs_only_when_trusted(folder: Path) -> None:
    (folder / "own.py").write_text(OWN_CODE)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}
    _configure(folder, model_type="own", architectures=["Own"], auto_map=names)
    assert _refusal(folder).hint == f"read the .py files in {folder}, then --trust-remote-code"
    loaded = load_model(str(folder), replace(CPU, trust_remote_code=True))
    assert type(loaded.model).__name__ == "Own"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_a_resource_error(folder: Path) -> None:
    error = _refusal(folder, replace(CPU, device="cuda"))
    assert isinstance(error, DeviceUnavailable)
    assert error.exit_status == ExitStatus.RESOURCE
    assert error.message.startswith("--device cuda needs ")
    assert choose_device("auto").type in ("cpu", "mps")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_beyond_the_last_is_named() -> None:
    last = torch.cuda.device_count() - 1
    with pytest.raises(DeviceUnavailable) as caught:
        choose_device(f"cuda:{last + 1}")
    assert caught.value.hint == f"--device cuda:{last}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": "gpu"}, "--device gpu is not a device"),
        ({"device": "cuda:"}, "--device cuda: is not a device"),
        ({"dtype": "int3"}, "--dtype int3 is not known"),
        ({"quant": "int3"}, "--quant int3 is not known"),
    ],
)
def test_a_word_that_is_no_option_is_told_before_the_model_is_looked_for(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    error = _refusal(tmp_path / "nowhere", replace(CPU, **changed))
    assert isinstance(error, UsageError)
    assert error.message == message


def test_code_that_needs_a_missing_package_says_which(folder: Path) -> None:
    (folder / "own.py").write_text("import einops_of_tomorrow\n" + OWN_CODE)
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}
    _configure(folder, model_type="own", architectures=["Own"], auto_map=names)
    error = _refusal(folder, replace(CPU, trust_remote_code=True))
    assert error.message.startswith("tiny-llama needs a package that is missing: ")
    assert "einops_of_tomorrow" in error.message


def _claim(path: Path, rows: int) -> None:
    """A safetensors file whose header speaks of `rows` times 4096 numbers, nearly all of them a hole."""
    size = rows * 4096 * 4
    header = json.dumps({"model.layers.0.w": {"dtype": "F32", "shape": [rows, 4096], "data_offsets": [0, size]}})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + size)


def test_weights_that_cannot_fit_are_refused_with_the_numbers(folder: Path) -> None:
    _claim(folder / "model.safetensors", rows=2**28)  # 4 TiB in float32
    error = _refusal(folder)
    assert isinstance(error, OutOfMemory)
    assert error.message.startswith("out of memory loading weights: 4,096.0 GiB needed in float32, ")
    assert error.message.endswith("iB free on cpu")
    assert error.hint == "a smaller model"


def test_weights_that_would_fit_in_four_bits_are_told_so(folder: Path) -> None:
    from sinkchat.models.placement import free_memory

    free = free_memory(torch.device("cpu"))
    assert free is not None
    rows = int(free * 1.5) // (4096 * 4)
    _claim(folder / "model.safetensors", rows=rows)
    error = _refusal(folder)
    about = memory_size(rows * 4096 * 0.5625)
    assert (type(error), error.hint) == (OutOfMemory, f"--quant nf4 (about {about}), or a smaller model")


def test_sizes_are_written_as_people_read_them() -> None:
    assert [file_size(count) for count in (0, 381_696, 92_871_040, 13.5e9)] == [
        "0 kB",
        "382 kB",
        "93 MB",
        "13.5 GB",
    ]
    assert [memory_size(count) for count in (257 * 2**20, 13.5 * 2**30)] == ["257 MiB", "13.5 GiB"]
    assert downloading("SmolLM2", 95e6, 93e6) == "downloading SmolLM2, 93 MB of 93 MB"
