"""GGUF files: opened once, kept as a folder, and the same model as before."""

import os
import shutil
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import write_gguf
from tiny import CHATML, tiny_model, tiny_tokenizer
from transformers import AutoConfig

from sinkchat.errors import ModelError
from sinkchat.models.cachedir import is_whole
from sinkchat.models.conversion import converted
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model

CPU = LoadOptions(device="cpu", dtype="float32")


@pytest.fixture
def tiny_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.F32.gguf")


def test_a_gguf_file_is_the_model_it_was_made_from(tiny_gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    loaded = load_model(str(tiny_gguf), CPU, progress=said.append)
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    torch.testing.assert_close(loaded.model(ids).logits, tiny_model()(ids).logits)
    assert (loaded.name, loaded.quant, loaded.max_length) == ("tiny.F32", "none", 4096)
    assert said == ["converting tiny.F32.gguf, once", "loading tiny.F32"]
    assert capfd.readouterr() == ("", "")


def test_the_tokenizer_of_a_gguf_file_is_the_one_written_in_it(tiny_gguf: Path) -> None:
    tokenizer, expected = load_model(str(tiny_gguf), CPU).tokenizer, tiny_tokenizer()
    text = "<|im_start|>user\nHéllo,  wörld 123<|im_end|>\n"
    assert tokenizer(text, add_special_tokens=False).input_ids == expected(text).input_ids
    assert tokenizer.decode(expected(text).input_ids) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "<|im_end|>", "<pad>")
    assert tokenizer.chat_template == CHATML


def test_a_conversion_is_made_once_and_is_a_plain_model(tiny_gguf: Path) -> None:
    folder = converted(tiny_gguf, torch.float32)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    said: list[str] = []
    assert converted(tiny_gguf, torch.float32, progress=said.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert said == []
    assert not hasattr(AutoConfig.from_pretrained(folder), "quantization_config")


def test_each_dtype_and_each_content_has_a_conversion_of_its_own(tiny_gguf: Path) -> None:
    folders = {converted(tiny_gguf, torch.float32), converted(tiny_gguf, torch.bfloat16)}
    os.utime(tiny_gguf, ns=(1, 1))
    folders.add(converted(tiny_gguf, torch.float32))
    assert len(folders) == 3
    copy = Path(shutil.copy(tiny_gguf, tiny_gguf.with_name("copy.gguf")))
    known = converted(tiny_gguf, torch.float32, identity="sha256 of the content")
    assert converted(tiny_gguf, torch.float32, identity="sha256 of the content") == known
    assert converted(copy, torch.float32) not in folders


def test_a_damaged_conversion_is_made_anew(tiny_gguf: Path) -> None:
    folder = converted(tiny_gguf, torch.float32)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert not is_whole(folder)
    assert converted(tiny_gguf, torch.float32) == folder
    assert weights.read_bytes() == whole
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("kept", [0, 3, 100, 20_000])
def test_a_gguf_file_cut_short_is_refused_and_leaves_nothing(tiny_gguf: Path, kept: int) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"tiny\.F32\.gguf cannot be read as a GGUF model: "):
        load_model(str(tiny_gguf), CPU)
    assert not (tiny_gguf.parent / "cache").exists()


def test_a_gguf_file_that_lacks_a_tensor_is_refused(tiny_gguf: Path) -> None:
    lacking = "model.layers.1.mlp.up_proj.weight"
    write_gguf(tiny_gguf, without=lacking)
    with pytest.raises(ModelError) as caught:
        load_model(str(tiny_gguf), CPU)
    assert caught.value.message == (
        f"the weights of tiny.F32.gguf lack 1 of the tensors that the model needs, {lacking} for one"
    )


def test_an_architecture_that_is_not_known_is_named(tiny_gguf: Path) -> None:
    writer = gguf.GGUFWriter(tiny_gguf, "tomorrow")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="tomorrow"):
        load_model(str(tiny_gguf), CPU)


@pytest.mark.model
def test_smollm2_is_what_its_package_holds(smollm2: LoadedModel) -> None:
    assert (smollm2.name, smollm2.max_length) == ("SmolLM2-135M-Instruct", 8192)
    assert smollm2.model.num_parameters() == 134_515_008
    tokenizer = smollm2.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.model.generation_config.eos_token_id == 2
    assert tokenizer("Hello  there 123\n<|im_end|>").input_ids == [19556, 216, 665, 216, 33, 34, 35, 198, 2]


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm2.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    answer = smollm2.model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in smollm2.tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])


@pytest.mark.model
def test_smollm2_loads_in_seconds_once_it_is_kept(smollm2: LoadedModel) -> None:
    began = time.monotonic()
    load_model("smollm2", CPU)
    assert time.monotonic() - began < 3
