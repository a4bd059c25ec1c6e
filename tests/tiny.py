"""Tiny random models and a byte tokenizer, built in a moment and downloaded from nowhere.

A freshly initialised transformer hardly attends to anything: its weights are so small that a wrong
cache gives nearly the right logits. These have weights of a healthy scale, so that a mistake shows.
"""

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sinkchat.lab.families.configs import REFUSED, STREAMING
from sinkchat.models.untrained import untrained_model

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL_TOKENS = ("<pad>", "<s>", "<|im_end|>", "<|im_start|>")
"""ids 0 to 3; the 256 bytes follow"""

VOCABULARY_SIZE = len(SPECIAL_TOKENS) + 256

FAMILIES = STREAMING | REFUSED
"""`model_type` and settings, by the name of the row in the table of `sinkchat families`"""


def tiny_model(
    family: str = "llama",
    layers: int = 2,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> PreTrainedModel:
    """A random causal model of `family`, in eval mode; `config` overrides single settings."""
    model_type, settings = FAMILIES[family]
    return untrained_model(model_type, settings(layers) | config, seed=seed, dtype=dtype)


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
