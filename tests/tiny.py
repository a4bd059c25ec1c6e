"""Tiny random models and a byte tokenizer, built in a moment and downloaded from nowhere.

A freshly initialised transformer hardly attends to anything: its weights are so small that a wrong
cache gives nearly the right logits. These have weights of a healthy scale, so that a mistake shows.
"""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL_TOKENS = ("<pad>", "<s>", "<|im_end|>", "<|im_start|>")
"""ids 0 to 3; the 256 bytes follow"""

VOCABULARY_SIZE = len(SPECIAL_TOKENS) + 256

_IDS: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROTARY: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}


def _rotary(layers: int, **changed: Any) -> dict[str, Any]:
    return _ROTARY | {"num_hidden_layers": layers} | changed


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


FAMILIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "llama": _rotary,
    "mistral": lambda layers: _rotary(layers, sliding_window=None),
    "qwen2": _rotary,
    "qwen3": _rotary,
    "gpt_neox": _rotary,
    "phi": lambda layers: _rotary(layers, num_key_value_heads=4),
    "stablelm": _rotary,
    "gpt2": lambda layers: {"n_embd": 64, "n_layer": layers, "n_head": 4, "n_positions": 1024},
    "opt": lambda layers: (
        _without(_rotary(layers), "head_dim", "num_key_value_heads", "intermediate_size")
        | {"ffn_dim": 96, "word_embed_proj_dim": 64}
    ),
}


def tiny_model(
    family: str = "llama",
    layers: int = 2,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> PreTrainedModel:
    """A random causal model of `family`, in eval mode; `config` overrides single settings.

    The frequencies of rotary embeddings stay float32, as they do when a checkpoint is loaded.
    Leaves torch's global generator as it was.
    """
    settings = FAMILIES[family](layers) | _IDS | config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(0.1 * noise)
            elif "embed" in name or "wte" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * 1.3 / weight.shape[-1] ** 0.5)
    frequencies = {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    model = model.to(dtype).eval().requires_grad_(False)
    for name, buffer in frequencies.items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer)
    return model


def tiny_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """One token a byte, four special ones, and ChatML as its template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=chat_template,
    )
