"""Every word of `--quant` on this CPU: it takes what was foretold, says what plain numbers say, and streams."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import reference_logits
from streams import engine_for, logits_one_by_one, random_ids
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkchat.cache.policy import EvictTokens
from sinkchat.models.checkpoint import read_weights
from sinkchat.models.int4.packing import is_here
from sinkchat.models.loading import LoadedModel, LoadOptions, load_model
from sinkchat.models.placement import DTYPES
from sinkchat.models.quantization import METHODS

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
IDS = torch.arange(10, 40)[None]
FLOAT32 = ("none", "nf4", "nf4-dq", "fp4")
"""the methods that can compute in float32; int8 computes in float16, int4 in bfloat16"""

BELOW, ABOVE = (
    (1.0, 0.6961928, 0.52507305, 0.3949175, 0.28444138, 0.18477343, 0.09105004),
    ((0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)),
)
NF4 = (*(-level for level in BELOW), *ABOVE)
"""QLoRA, arXiv 2305.14314, appendix E"""
FP4 = tuple(sign * level / 12 for sign in (1, -1) for level in (0, 0.0625, 2, 3, 4, 6, 8, 12))
"""a sign, two bits of exponent and one of mantissa, the largest as 1"""

each_method = pytest.mark.parametrize("quant", METHODS)


def saved(folder: Path, family: str = "llama", **changed: Any) -> Path:
    tiny_model(family, **SHAPE | changed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("methods") / "tiny")


def loaded_as(folder: Path | str, quant: str, dtype: str = "auto") -> LoadedModel:
    if quant == "int4" and not is_here():
        pytest.skip("this torch has no 4-bit kernel for CPUs")
    return load_model(str(folder), LoadOptions(device="cpu", quant=quant, dtype=dtype))


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """All that the model keeps in memory for its weights; the frequencies of rotary positions are no weights."""
    for name, held in [*model.named_parameters(), *model.named_buffers()]:
        if not name.endswith("inv_freq"):
            yield held
            yield from _beside(held)


def _beside(held: Tensor) -> Iterator[Tensor]:
    """What bitsandbytes hangs on a weight: the scales of 8 bits, or the state of 4 bits and that of its scales."""
    if getattr(held, "SCB", None) is not None:
        yield held.SCB
    state = getattr(held, "quant_state", None)
    while state is not None:
        yield from (one for one in (state.absmax, state.code, state.offset) if one is not None)
        state = state.state2


def bytes_of(model: nn.Module) -> int:
    return sum(one.nbytes for one in {one.data_ptr(): one for one in tensors_of(model)}.values())


@each_method
@pytest.mark.parametrize(
    "changed",
    [{}, {"hidden_size": 80, "intermediate_size": 100, "head_dim": 20}, {"tie_word_embeddings": True}],
    ids=["whole-blocks", "broken-blocks", "tied"],
)
def test_the_bytes_foretold_are_the_bytes_taken(tmp_path: Path, changed: dict[str, Any], quant: str) -> None:
    """To the byte, with biases; before the first forward, in which bitsandbytes may repack."""
    loaded = loaded_as(saved(tmp_path, "qwen2", **changed), quant)
    foretold = METHODS[quant].nbytes(read_weights(tmp_path, name="tiny"), DTYPES[loaded.dtype])
    assert bytes_of(loaded.model) == foretold


def nearest_in_blocks(weight: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Each weight the nearest level times the largest of its 64."""
    blocks = weight.reshape(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    table = torch.tensor(levels)
    return (table[(blocks / largest).unsqueeze(-1).sub(table).abs().argmin(-1)] * largest).view_as(weight)


def nearest_of_256_in_rows(weight: Tensor) -> Tensor:
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


def nearest_of_16_in_groups(weight: Tensor) -> Tensor:
    """Evenly spaced between the least and the greatest of each 32; step and middle are kept in bfloat16."""
    groups = weight.bfloat16().float().reshape(-1, 32)
    least = groups.amin(1, keepdim=True)
    step = ((groups.amax(1, keepdim=True) - least) / 15).bfloat16().float()
    middle = (least + 8 * step).bfloat16().float()
    return (middle + ((groups - middle) / step).round().clamp(-8, 7) * step).view_as(weight)


BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda weight: weight,
    "nf4": lambda weight: nearest_in_blocks(weight, NF4),
    "nf4-dq": lambda weight: nearest_in_blocks(weight, NF4),
    "fp4": lambda weight: nearest_in_blocks(weight, FP4),
    "int8": nearest_of_256_in_rows,
    "int4": nearest_of_16_in_groups,
}


def by_hand(quant: str, rounded: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """The tiny model in float32, its matrices quantised and opened again here."""
    model = tiny_model(**SHAPE)
    for name, module in model.named_modules():
        if type(module) is nn.Linear and ".layers." in name:
            module.weight.copy_(rounded(module.weight))
    if quant == "int4":
        model.lm_head.weight.copy_(nearest_of_256_in_rows(model.lm_head.weight))
    return model


def logits_by_hand(quant: str, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    return by_hand(quant, rounded)(IDS).logits


def off(one: Tensor, other: Tensor) -> float:
    """The error's standard deviation in units of that of the logits."""
    return float((one.float() - other).std() / other.std())


@each_method
def test_the_logits_are_those_of_weights_opened_by_hand(folder: Path, quant: str) -> None:
    """In int8 the inputs are rounded to 8 bits too, which is most of what is left there."""
    found = loaded_as(folder, quant, "float32" if quant in FLOAT32 else "auto").model(IDS).logits
    rounded = BY_HAND[quant]
    error = off(found, logits_by_hand(quant, rounded))
    assert error < 0.04
    if quant != "none":
        assert error < 0.8 * off(found, tiny_model(**SHAPE)(IDS).logits)
    assert off(found, logits_by_hand(quant, lambda weight: rounded(weight).roll(1, dims=0))) > 1


@pytest.mark.parametrize("quant", [quant for quant in METHODS if quant != "none"])
def test_a_stream_goes_on_past_evictions(folder: Path, quant: str) -> None:
    """Its logits are those of keys that are rotated anew, each by its rank among the twelve that are kept."""
    model = loaded_as(folder, quant, "float32" if quant in FLOAT32 else "auto").model
    ids = random_ids(30)
    expected = reference_logits(model, ids, EvictTokens(), capacity=12, pinned=4)
    engine = engine_for(model, capacity=12)
    assert off(logits_one_by_one(engine, ids), expected) < 0.05
    assert (engine.state.seen, engine.state.evicted, engine.state.occupied) == (30, 18, 12)
    unmoved = engine_for(model, capacity=12, moves_sinks=False)
    assert off(logits_one_by_one(unmoved, ids), expected) > 0.2
