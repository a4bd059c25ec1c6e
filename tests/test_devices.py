"""A model on more than one device: the same numbers as in one piece, keys where their layer computes, all said."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Forward
from sinkchat.cache.policy import EvictTokens
from sinkchat.cache.probe import probe
from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.snapshot import SavedMemory, identity_of
from sinkchat.chat.start import build_engine, session_for
from sinkchat.engine.engine import Engine
from sinkchat.errors import OutOfMemory
from sinkchat.models.budget import Budget
from sinkchat.models.checkpoint import read_config, read_weights
from sinkchat.models.loading import LoadOptions, load_model
from sinkchat.models.quantization import METHODS
from sinkchat.models.spread import Cut, DeviceMap, Placement, Spread, Whole, place, places, whereabouts
from sinkchat.parallel.ranks import Ranks

CPU = LoadOptions(device="cpu", dtype="float32")
LAYERS = 4
OUTSIDE = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}


def layers_on(*places: str | int) -> dict[str, str | int]:
    return OUTSIDE | {f"model.layers.{number}": where for number, where in enumerate(places)}


MAPS: dict[str, DeviceMap] = {
    "two layers on disk": layers_on("cpu", "disk", "cpu", "disk"),
    "the first layer, the embedding and the head on disk": layers_on("disk", "cpu", "cpu", "cpu")
    | {"model.embed_tokens": "disk", "lm_head": "disk"},
    "all on disk": dict.fromkeys(layers_on(*["disk"] * LAYERS), "disk"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "model"
    tiny_model("llama", LAYERS).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def streamed(engine: Engine) -> Tensor:
    """Logits (40, V): what comes after each of forty tokens, through sixteen slots."""
    engine.cache.pinned = 4
    engine.reset()
    logits = []
    for number in range(40):
        engine.feed([10 + number])
        assert engine.logits is not None
        logits.append(engine.logits.clone())
    assert engine.state.evicted == 24
    return torch.stack(logits)


def built(folder: Path, options: LoadOptions = CPU) -> Engine:
    return build_engine(load_model(str(folder), options), MemoryOptions(cache_size=16, evict="token"))


@pytest.mark.parametrize("where", MAPS)
def test_a_model_with_layers_on_disk_streams_as_in_one_piece(folder: Path, where: str) -> None:
    spread = streamed(built(folder, replace(CPU, device_map=MAPS[where])))
    assert torch.equal(spread, streamed(built(folder)))


def test_a_model_with_layers_in_memory_streams_as_in_one_piece(folder: Path) -> None:
    model = load_model(str(folder), CPU).model
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    cache = SinkCache(probe(model, position_limit=4096), EvictTokens(1), capacity=16)
    assert torch.equal(streamed(Engine(model, cache)), streamed(built(folder)))


def test_the_comparison_sees_a_layer_that_is_another(folder: Path, tmp_path: Path) -> None:
    model = tiny_model("llama", LAYERS)
    model.model.layers[3].self_attn.k_proj.weight *= 1.01
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    spread = streamed(built(tmp_path, replace(CPU, device_map=MAPS["two layers on disk"])))
    assert not torch.allclose(spread, streamed(built(folder)), atol=1e-3)


def test_keys_lie_where_a_layer_computes_not_where_its_weights_lie(folder: Path) -> None:
    engine = built(folder, replace(CPU, device_map=MAPS["all on disk"]))
    assert {weight.device.type for weight in engine.model.parameters()} == {"meta"}
    assert {layout.device.type for layout in engine.cache.layouts} == {"cpu"}
    assert engine.device == Forward(engine.model).device == torch.device("cpu")


def test_what_a_model_on_disk_remembers_can_be_saved_and_put_back(folder: Path) -> None:
    loaded = load_model(str(folder), replace(CPU, device_map=MAPS["all on disk"]))
    session = session_for(loaded, memory=MemoryOptions(cache_size=64), chat={"max_tokens": 4, "temperature": 0})
    for _ in session.send("hello"):
        pass
    saved, logits = SavedMemory.of(session.engine), session.engine.logits
    identity = identity_of(session.engine, session.card)
    session.engine.reset()
    session.engine.restore(saved.image)
    assert identity == identity_of(session.engine, session.card)
    assert logits is not None
    assert session.engine.logits is not None
    assert torch.equal(session.engine.logits, logits)


def test_what_is_spread_says_so_and_is_not_compiled(folder: Path) -> None:
    loaded = load_model(str(folder), replace(CPU, device_map=MAPS["two layers on disk"], compile=True))
    assert loaded.device == "memory + disk"
    assert loaded.notes == (
        "the model is spread: layers 0 in memory, 1 on disk, 2 in memory, 3 on disk",
        "what lies on disk is read again for each token; a smaller model answers much faster",
    )
    assert not loaded.compiles
    assert load_model(str(folder), replace(CPU, compile=True)).compiles


@pytest.mark.parametrize(
    ("device_map", "words"),
    [
        (layers_on(0, 0, 1, 1), "layers 0 to 1 on cuda:0, 2 to 3 on cuda:1"),
        (layers_on(0, "cpu", "disk", "disk"), "layers 0 on cuda:0, 1 in memory, 2 to 3 on disk"),
        ({f"h.{number}": number // 6 for number in range(12)}, "layers 0 to 5 on cuda:0, 6 to 11 on cuda:1"),
        ({"": "cpu"}, "all in memory"),
        ({"model.embed_tokens": "cpu", "model.layers": "disk"}, "model.embed_tokens in memory, model.layers on disk"),
    ],
)
def test_where_layers_lie_is_said_in_words(device_map: dict[str, Any], words: str) -> None:
    assert whereabouts(device_map) == words


def placed(
    folder: Path, *, share: float, quant: str = "none", asked: str = "auto", ranks: Ranks | None = None
) -> Placement:
    """Where a model is put if memory has room for `share` of its weights."""
    weights = read_weights(folder, name="model")
    budget = Budget(METHODS[quant], weights, torch.float32, torch.device("cpu"), free=None)
    budget = replace(budget, free=int(share * budget.needed))
    config = read_config(folder, name="model", trust_remote_code=False)
    return place(budget, config, name="model", asked=asked, ranks=ranks)


def test_a_model_that_fits_lies_on_one_device(folder: Path) -> None:
    assert placed(folder, share=1.0) == Whole(torch.device("cpu"))


def test_a_model_that_does_not_fit_memory_is_read_from_disk_in_part(
    folder: Path, loads: Callable[[Placement], Any]
) -> None:
    placement = placed(folder, share=0.8)
    assert isinstance(placement, Spread)
    model = loads(placement)
    assert set(model.hf_device_map.values()) == {"cpu", "disk"}
    ids = torch.arange(5, 12)[None]
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, tiny_model("llama", LAYERS)(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("device", "share", "quant", "asked", "expected"),
    [
        ("cpu", 1.0, "none", "auto", ("cpu",)),
        ("cpu", 0.8, "none", "auto", ("memory", "disk")),
        ("cpu", 0.8, "none", "cpu", ()),
        ("cpu", 0.8, "int4", "auto", ()),
        ("cuda:0", 1.0, "none", "auto", ("cuda:0",)),
        ("cuda:0", 0.2, "none", "auto", ("cuda:0", "cuda:1")),
        ("cuda:0", 0.1, "none", "auto", ("cuda:0", "cuda:1", "memory", "disk")),
        ("cuda:0", 0.2, "nf4", "auto", ("cuda:0", "cuda:1")),
        ("cuda:0", 0.1, "nf4", "auto", ()),
    ],
)
def test_the_places_that_show_names_are_those_of_the_placement(
    folder: Path, device: str, share: float, quant: str, asked: str, expected: tuple[str, ...]
) -> None:
    """The second CUDA device has five times as much free as the first, memory three times as much."""
    weights = read_weights(folder, name="model")
    budget = Budget(METHODS[quant], weights, torch.float32, torch.device(device), free=None)
    budget = replace(budget, free=int(share * budget.needed))
    first = budget.free or 0
    free: dict[str | int, int] = {0: first, 1: 5 * first, "cpu": 3 * first}
    assert places(budget, asked, free=lambda: free) == expected


def test_what_is_said_to_fill_memory_then_disk_lies_in_both(folder: Path, loads: Callable[[Placement], Any]) -> None:
    weights = read_weights(folder, name="model")
    budget = Budget(METHODS["none"], weights, torch.float32, torch.device("cpu"), free=None)
    budget = replace(budget, free=int(0.8 * budget.needed))
    placement = place(budget, read_config(folder, name="model", trust_remote_code=False), name="model", asked="auto")
    assert isinstance(placement, Spread)
    assert set(placement.device(loads(placement)).split(" + ")) == set(places(budget, "auto"))


@pytest.fixture
def loads(folder: Path) -> Callable[[Placement], Any]:
    from transformers import AutoModelForCausalLM

    return lambda placement: AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **placement.arguments()
    ).eval()


@pytest.mark.parametrize("chosen", [{"asked": "cpu"}, {"quant": "int4"}])
def test_only_whole_weights_under_device_auto_are_spread(folder: Path, chosen: dict[str, str]) -> None:
    with pytest.raises(OutOfMemory, match="out of memory loading weights"):
        placed(folder, share=0.8, **chosen)


def test_parts_for_which_there_is_no_room_together_are_refused(folder: Path) -> None:
    ranks = Ranks(0, 2, "none")
    assert placed(folder, share=1.0, ranks=ranks) == Cut(ranks, torch.device("cpu"))
    with pytest.raises(OutOfMemory) as caught:
        placed(folder, share=0.5, ranks=ranks)
    assert caught.value.message == ("out of memory loading weights: 1 MiB in 2 parts, 0 MiB free for all")


@pytest.mark.gpu
def test_keys_lie_on_the_device_of_their_layer(folder: Path) -> None:
    device_map = (
        dict.fromkeys(OUTSIDE, 0)
        | {"model.layers.0": 0}
        | dict.fromkeys([f"model.layers.{number}" for number in range(1, LAYERS)], "cpu")
    )
    engine = built(folder, LoadOptions(dtype="float32", quant="none", device_map=device_map))
    assert {layout.device.type for layout in engine.cache.layouts} == {"cuda"}
    assert torch.allclose(streamed(engine).cpu(), streamed(built(folder)), atol=1e-3)
