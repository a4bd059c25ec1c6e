"""A GGUF file of the tiny Llama, made with the writer of llama.cpp."""

from pathlib import Path

import gguf
import torch
from tiny import CHATML, SPECIAL_TOKENS, VOCABULARY_SIZE, tiny_model, tiny_tokenizer

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
    model, tokenizer = tiny_model(), tiny_tokenizer()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
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
    kind = gguf.GGMLQuantizationType[blocks]
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if blocks == "F32" else f"MOSTLY_{blocks}"])
    for name, weight in model.state_dict().items():
        if name == without:
            continue
        numbers = _interleaved(name, weight).numpy()
        if ".layers." in name and weight.ndim == 2:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), numbers)
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


def _interleaved(name: str, weight: torch.Tensor) -> torch.Tensor:
    """GGUF holds the two halves of a rotated head as pairs."""
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if heads is None:
        return weight
    return weight.view(heads, 2, 8, 64).transpose(1, 2).reshape(weight.shape)
