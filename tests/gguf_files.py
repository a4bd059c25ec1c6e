"""GGUF files of tiny Llamas, made with the writer of llama.cpp."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf_blocks import drawn
from tiny import CHATML, SPECIAL_TOKENS, VOCABULARY_SIZE, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, *, without: str = "", blocks: str = "F32") -> Path:
    """The tiny Llama with its tokenizer, as llama.cpp's converter would write it; layers' matrices in `blocks`."""
    model = tiny_model()
    kind = gguf.GGMLQuantizationType[blocks]
    writer = _writer(path, model, "ALL_F32" if blocks == "F32" else f"MOSTLY_{blocks}")
    for name, weight in model.state_dict().items():
        if name == without:
            continue
        numbers = interleaved(name, weight, model.config).numpy()
        if ".layers." in name and weight.ndim == 2:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), numbers)
    return _written(writer, path)


def write_drawn(path: Path, kind_of: Callable[[str], str], *, file_type: str, seed: int = 0) -> PreTrainedModel:
    """A file of random blocks, and the model of the weights that they stand for.

    `kind_of` names the kind of each matrix, embedding and head included. Rows are of 256, one block of the K kinds.
    """
    model = tiny_model(hidden_size=256, intermediate_size=256, head_dim=64)
    writer, weights = _writer(path, model, file_type), {}
    for place, (name, weight) in enumerate(model.state_dict().items()):
        if weight.ndim == 1:
            writer.add_tensor(_gguf_name(name), weight.numpy())
            continue
        stored, numbers = drawn(kind_of(name), tuple(weight.shape), seed=100 * seed + place)
        weights[name] = torch.from_numpy(numbers)
        rows = interleaved(name, torch.arange(len(stored)), model.config).numpy()
        writer.add_tensor(_gguf_name(name), stored[rows], raw_dtype=gguf.GGMLQuantizationType[kind_of(name)])
    _written(writer, path)
    model.load_state_dict(model.state_dict() | weights)
    return model


def _writer(path: Path, model: PreTrainedModel, file_type: str) -> gguf.GGUFWriter:
    """With all that a file says before its tensors."""
    config, tokenizer = model.config, tiny_tokenizer()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [tokenizer.convert_ids_to_tokens(number) for number in range(VOCABULARY_SIZE)]
    # Readers want merges, two at least; their tokens take the places of two bytes that no test uses.
    tokens[-2:] = ["xy", "xz"]
    writer.add_token_list(tokens)
    special = gguf.TokenType.CONTROL
    writer.add_token_types([special if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(["x y", "x z"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHATML)
    writer.add_file_type(gguf.LlamaFileType[file_type])
    return writer


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    outside = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outside:
        return outside[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def interleaved(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """GGUF holds the two halves of a rotated head as pairs: of rows, or of their numbers."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    return weight.view(heads, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(weight.shape)
