"""The families that are shown to stream, and those that are refused: each as settings of a tiny model.

Plain values. A layer may differ from the next one, so settings are a function of how many layers there are; a single
layer is always one that sees everything, since nothing else shows where the sinks are.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

Settings: TypeAlias = Callable[[int], dict[str, Any]]

OWN_WINDOW = 12
"""what layers with a window of their own see; less than the cache of the checks holds"""

_WIDTH: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
_SHORT, _LONG = ([base + step * i for i in range(8)] for base, step in ((1.0, 0.1), (2.0, 0.5)))


def _wide(*without: str, **settings: Any) -> Settings:
    """A model 64 wide, with 4 heads of 16 and 2 of keys and values, unless `settings` say otherwise."""
    shared = {name: value for name, value in _WIDTH.items() if name not in without} | settings
    return lambda layers: shared | {"num_hidden_layers": layers}


def _windowed(**settings: Any) -> Settings:
    """The second of three layers has a window of its own."""
    wide = _wide(sliding_window=OWN_WINDOW, **settings)
    types = ("full_attention", "sliding_attention", "full_attention")
    return lambda layers: wide(layers) | {"layer_types": list(types[:layers])}


def _rope(kind: str, **parameters: Any) -> Settings:
    return _wide(rope_parameters={"rope_theta": 10_000.0, "rope_type": kind, **parameters})


def _gpt(**settings: Any) -> Settings:
    """The words of GPT-2 and what came from it."""
    return lambda layers: {"n_embd": 64, "n_layer": layers, "n_head": 4, **settings}


def _gemma4(*, shared: bool) -> Settings:
    windowed = _windowed(global_head_dim=32, hidden_size_per_layer_input=8, vocab_size_per_layer_input=260)
    return lambda layers: windowed(layers) | {"num_kv_shared_layers": 1 if shared and layers > 1 else 0}


def _gemma3n(layers: int) -> dict[str, Any]:
    """The last of three layers reads what the first one cached."""
    return _windowed(
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=260,
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * layers,
    )(layers) | {"num_kv_shared_layers": 1 if layers > 1 else 0, "intermediate_size": [96] * layers}


def _qwen2_vl(layers: int) -> dict[str, Any]:
    text = _wide(
        "head_dim", rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    )(layers)
    ids = {"vocab_size": 260, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    return {"text_config": text | ids, "vision_config": vision}


STREAMING: dict[str, tuple[str, Settings]] = {
    "llama": ("llama", _wide()),
    "llama, linear": ("llama", _rope("linear", factor=4.0)),
    "llama, llama3": (
        "llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama, yarn": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama, dynamic": ("llama", _rope("dynamic", factor=2.0)),
    "llama, longrope": (
        "llama",
        _rope("longrope", factor=4.0, original_max_position_embeddings=4096, short_factor=_SHORT, long_factor=_LONG),
    ),
    "mpt": (
        "mpt",
        lambda layers: {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": layers,
            "expansion_ratio": 2,
            "max_seq_len": 512,
            "attn_config": {"alibi": True, "alibi_bias_max": 8},
        },
    ),
    "falcon": (
        "falcon",
        _wide("head_dim", "num_key_value_heads", alibi=False, multi_query=True, new_decoder_architecture=False),
    ),
    "falcon, new": (
        "falcon",
        _wide("head_dim", "num_key_value_heads", alibi=False, num_kv_heads=2, new_decoder_architecture=True),
    ),
    "falcon, alibi": (
        "falcon",
        _wide(
            "head_dim",
            "num_key_value_heads",
            alibi=True,
            multi_query=False,
            num_kv_heads=4,
            new_decoder_architecture=False,
        ),
    ),
    "gpt_neox": ("gpt_neox", _wide()),
    "mistral": ("mistral", _wide(sliding_window=None)),
    "mistral, window": ("mistral", _wide(sliding_window=256)),
    "ministral": ("ministral", _windowed()),
    "ministral3": (
        "ministral3",
        _wide(
            sliding_window=None,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 2048,
                "llama_4_scaling_beta": 0.1,
            },
        ),
    ),
    "mixtral": ("mixtral", _wide(sliding_window=None, **_EXPERTS)),
    "qwen2": ("qwen2", _wide()),
    "qwen2, window": ("qwen2", _windowed(use_sliding_window=True)),
    "qwen2_vl": ("qwen2_vl", _qwen2_vl),
    "qwen3": ("qwen3", _wide()),
    "qwen3_moe": ("qwen3_moe", _wide(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)),
    "gemma": ("gemma", _wide()),
    "gemma2": ("gemma2", _windowed(query_pre_attn_scalar=16)),
    "gemma3": ("gemma3_text", _windowed(query_pre_attn_scalar=16)),
    "gemma3n": ("gemma3n_text", _gemma3n),
    "gemma4": ("gemma4_text", _gemma4(shared=False)),
    "gemma4, shared": ("gemma4_text", _gemma4(shared=True)),
    "phi": ("phi", _wide(num_key_value_heads=4)),
    "phi3": ("phi3", _wide(sliding_window=None)),
    "phi3, longrope": (
        "phi3",
        _wide(
            sliding_window=None,
            original_max_position_embeddings=2048,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": _SHORT,
                "long_factor": _LONG,
                "original_max_position_embeddings": 2048,
            },
        ),
    ),
    "phi4, partial": (
        "phi3",
        _wide(
            sliding_window=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75},
        ),
    ),
    "stablelm": ("stablelm", _wide()),
    "olmo": ("olmo", _wide()),
    "olmo2": ("olmo2", _wide()),
    "olmo3": (
        "olmo3",
        _windowed(
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 10_000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            }
        ),
    ),
    "granite": ("granite", _wide()),
    "cohere": ("cohere", _wide()),
    "cohere2": ("cohere2", _windowed()),
    "glm4": ("glm4", _wide()),
    "smollm3": ("smollm3", lambda layers: _wide()(layers) | {"no_rope_layers": [1, 0, 1][:layers]}),
    "nanochat": ("nanochat", _wide()),
    "gptj": ("gptj", _gpt(rotary_dim=8, n_positions=2048)),
    "codegen": ("codegen", _gpt(rotary_dim=8, n_positions=2048)),
    "bloom": ("bloom", lambda layers: {"hidden_size": 64, "n_layer": layers, "n_head": 4}),
    "gpt_oss": ("gpt_oss", _windowed(**_EXPERTS)),
    "deepseek_v2": ("deepseek_v2", _wide("head_dim", **_MLA)),
    "deepseek_v3": ("deepseek_v3", _wide("head_dim", **_MLA)),
}
"""By the name of the row: `model_type` and settings of models that must stream."""

REFUSED: dict[str, tuple[str, Settings]] = {
    "gpt2": ("gpt2", _gpt(n_positions=1024)),
    "opt": ("opt", _wide("head_dim", "num_key_value_heads", "intermediate_size", ffn_dim=96, word_embed_proj_dim=64)),
    "gpt_neo": (
        "gpt_neo",
        lambda layers: {
            "hidden_size": 64,
            "num_layers": layers,
            "num_heads": 4,
            "attention_types": [[["global"], layers]],
        },
    ),
    "gpt_bigcode": ("gpt_bigcode", _gpt(n_positions=1024)),
    "mamba": ("mamba", lambda layers: {"hidden_size": 64, "num_hidden_layers": layers, "state_size": 8}),
    "jamba": (
        "jamba",
        lambda layers: _wide(
            attn_layer_period=4,
            attn_layer_offset=1,
            expert_layer_period=4,
            num_experts=2,
            num_experts_per_tok=1,
            mamba_d_state=8,
            mamba_dt_rank=8,
            use_mamba_kernels=False,
        )(4),
    ),
    "qwen3_next": (
        "qwen3_next",
        lambda layers: _wide(
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        )(4),
    ),
    "lfm2": ("lfm2", lambda layers: _wide(layer_types=["conv", "full_attention", "conv"])(3)),
    "hunyuan_v1": ("hunyuan_v1_dense", _wide()),
}
"""By the name of the row: `model_type` and settings of models that cannot."""
