"""What `show` says a model takes is what loading it takes, for each way that it can be loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_gguf
from streams import held_by
from test_models_methods import bytes_of, loaded_as, saved
from test_models_shipped import in_fp8

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.errors import UsageError
from sinkchat.models.description import Description, Way, describe
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.quantization import METHODS
from sinkchat.models.speeds import speed_of
from sinkchat.parallel.ranks import Ranks

CPU = torch.device("cpu")


def described(folder: Path, cache_size: int = 64, **options: Any) -> Description:
    model, _ = describe(str(folder), LoadOptions(**{"device": "cpu"} | options), cache_size=cache_size)
    return model


def ways(folder: Path, **options: Any) -> dict[str, Way]:
    return {way.choice: way for way in described(folder, **options).weights}


@pytest.mark.parametrize("quant", METHODS)
@pytest.mark.parametrize("changed", [{}, {"tie_word_embeddings": True}], ids=["", "tied"])
def test_what_is_shown_is_what_is_taken(tmp_path: Path, changed: dict[str, Any], quant: str) -> None:
    """To the byte: the weights as they are loaded, and the cache that is built for them."""
    way = ways(saved(tmp_path, **changed))[quant]
    loaded = loaded_as(tmp_path, quant)
    assert way.nbytes == bytes_of(loaded.model)
    engine = build_engine(loaded, MemoryOptions(cache_size=64, evict="token"))
    engine.feed(range(10, 74))
    assert way.kv_nbytes == sum(held.keys.nbytes + held.values.nbytes for held in held_by(engine))


@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_a_checkpoint_that_comes_quantised_is_shown_as_the_one_way_it_has(tmp_path: Path, quant: str) -> None:
    first = loaded_as(saved(tmp_path / "whole"), quant)
    first.model.save_pretrained(tmp_path / "shipped")
    first.tokenizer.save_pretrained(tmp_path / "shipped")
    found = ways(tmp_path / "shipped")
    assert list(found) == [quant]
    assert (found[quant].nbytes, found[quant].is_auto) == (bytes_of(first.model), True)
    assert described(tmp_path / "whole").processes == (1, 2)
    assert described(tmp_path / "shipped").processes == (1,)
    with pytest.raises(UsageError):
        load_model(str(tmp_path / "shipped"), LoadOptions(device="cpu", ranks=Ranks(0, 2, "none")))


def test_fp8_is_shown_with_the_bytes_it_is_opened_to(tmp_path: Path) -> None:
    in_fp8(saved(tmp_path))
    way = ways(tmp_path)["fp8"]
    assert way.nbytes == bytes_of(load_model(str(tmp_path), LoadOptions(device="cpu")).model)


def test_the_blocks_of_a_file_are_shown_as_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "tiny.Q4_1.gguf", blocks="Q4_1")
    way = ways(path)["int4"]
    assert way.nbytes == bytes_of(loaded_as(path, "int4").model)


def test_the_cache_is_counted_in_what_the_method_computes_in(tmp_path: Path) -> None:
    saved(tmp_path)
    found = ways(tmp_path, dtype="float32")
    whole = found["none"].kv_nbytes
    assert whole == 64 * 2 * 2 * 2 * 64 * 4  # tokens, keys and values, layers, KV heads, their width, bytes
    assert found["nf4"].kv_nbytes == whole
    assert found["int8"].kv_nbytes == found["int4"].kv_nbytes == whole // 2


def test_no_more_tokens_are_counted_than_the_model_was_trained_on(tmp_path: Path) -> None:
    saved(tmp_path, max_position_embeddings=128)
    assert described(tmp_path, cache_size=2048).cache_size == 128
    assert described(tmp_path, cache_size=100).cache_size == 100


def test_what_cannot_be_had_is_shown_with_the_reason(tmp_path: Path) -> None:
    saved(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("{", '{"quantization_config": {"quant_method": "vptq"},', 1))
    way = ways(tmp_path)["vptq"]
    assert (way.obstacle, way.is_auto) == (
        "the checkpoint is quantised already (vptq), which works on CUDA alone, not on cpu",
        False,
    )


def test_speeds_are_those_of_bfloat16_on_such_a_device_or_not_known() -> None:
    for method in METHODS:
        assert speed_of(method, torch.bfloat16, CPU) is not None
        assert speed_of(method, torch.bfloat16, torch.device("cuda", 0)) is None
    plain = speed_of("none", torch.bfloat16, CPU)
    assert plain is not None
    assert (plain.writes, plain.reads) == (1.0, 1.0)
    assert speed_of("none", torch.float16, CPU) is None
