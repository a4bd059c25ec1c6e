"""GGUF files of each usual kind of block say what the same weights say from a safetensors folder."""

import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from gguf_files import write_drawn
from tiny import tiny_tokenizer
from worlds import sinkchat

from sinkchat.chat.options import MemoryOptions
from sinkchat.chat.start import build_engine
from sinkchat.engine.sampling import Greedy
from sinkchat.errors import ModelError
from sinkchat.models.gguf_header import read_gguf_header
from sinkchat.models.loading import LoadOptions, load_model

CPU = LoadOptions(device="cpu", dtype="float32", quant="none")
QUESTION = "<|im_start|>user\nWhat is a sink?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKCHAT_CACHE_DIR", str(tmp_path / "cache"))


def answer_of(model: Path) -> str:
    """Forty tokens, drawn greedily from a cache of sixteen; a file's own tokenizer calls two bytes otherwise."""
    loaded, tokenizer = load_model(str(model), CPU), tiny_tokenizer()
    engine = build_engine(loaded, MemoryOptions(cache_size=16, evict="token"))
    engine.feed(tokenizer(QUESTION, add_special_tokens=False).input_ids)
    steps = engine.generate(Greedy(), stop_ids=frozenset(), max_tokens=40)
    text: str = tokenizer.decode([step.token for step in steps if step.token is not None])
    return text


def as_in_a_mix(name: str) -> str:
    """As llama.cpp mixes kinds: a better one for the head, for values and for what comes after the gate."""
    if "lm_head" in name or "v_proj" in name or "down_proj" in name:
        return "Q6_K"
    return "Q5_0" if "o_proj" in name else "Q4_K"


MIXES: dict[str, Callable[[str], str]] = {
    kind: lambda name, kind=kind: kind  # type: ignore[misc]
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
} | {"Q4_K_M": as_in_a_mix}


@pytest.mark.parametrize("kind", MIXES)
def test_a_file_and_a_folder_of_the_same_weights_answer_alike(tmp_path: Path, kind: str) -> None:
    """The folder holds the weights by the formula of the blocks; the control is a file of other codes."""
    file_type = {"F32": "ALL_F32", "Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M"}.get(kind, f"MOSTLY_{kind}")
    model = write_drawn(tmp_path / "drawn.gguf", MIXES[kind], file_type=file_type)
    model.save_pretrained(tmp_path / "folder")
    tiny_tokenizer().save_pretrained(tmp_path / "folder")
    answer = answer_of(tmp_path / "folder")
    assert answer_of(tmp_path / "drawn.gguf") == answer
    loaded = load_model(str(tmp_path / "drawn.gguf"), CPU).model.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.state_dict().items())
    write_drawn(tmp_path / "other.gguf", MIXES[kind], file_type=file_type, seed=1)
    assert answer_of(tmp_path / "other.gguf") != answer


def relabelled(path: Path, tensor: bytes, kind: int) -> Path:
    """The file with another number where the kind of `tensor`, a matrix, is said."""
    content = path.read_bytes()
    place = content.index(tensor) + len(tensor) + struct.calcsize("<IQQ")
    path.write_bytes(content[:place] + struct.pack("<I", kind) + content[place + 4 :])
    return path


@pytest.mark.parametrize(("number", "name"), [(200, "200"), (15, "Q8_K"), (41, "Q1_0")])
@pytest.mark.parametrize("quant", ["none", "int4"])
def test_blocks_that_cannot_be_opened_are_named_before_the_file_is_read(
    tmp_path: Path, quant: str, number: int, name: str
) -> None:
    write_drawn(tmp_path / "a.gguf", lambda _: "Q8_0", file_type="MOSTLY_Q8_0")
    path = relabelled(tmp_path / "a.gguf", b"blk.1.ffn_up.weight", number)
    said: list[str] = []
    with pytest.raises(ModelError) as caught:
        load_model(str(path), LoadOptions(device="cpu", quant=quant), progress=said.append)
    assert (caught.value.message, caught.value.hint, said) == (
        f"a.gguf holds weights in blocks of kind {name}, which gguf {version('gguf')} cannot open",
        "a file in another kind, such as Q8_0 or Q4_K_M; or pip install --upgrade gguf",
        [],
    )
    shown = sinkchat(f"show {path} --device cpu")
    assert (shown.status, shown.stdout) == (3, "")
    assert caught.value.message in shown.stderr


def test_the_header_says_the_kind_of_each_tensor(tmp_path: Path) -> None:
    write_drawn(tmp_path / "a.gguf", as_in_a_mix, file_type="MOSTLY_Q4_K_M")
    header = read_gguf_header(tmp_path / "a.gguf")
    kinds = {name: header.kinds[name] for name in ("output.weight", "blk.0.attn_q.weight", "output_norm.weight")}
    assert kinds == {"output.weight": 14, "blk.0.attn_q.weight": 12, "output_norm.weight": 0}
    assert header.quantization == "Q4_K_M"
