"""A model of any family, tiny and untrained: built from its configuration in a moment, downloaded from nowhere.

A freshly initialised transformer hardly attends to anything: its weights are so small that a wrong cache gives nearly
the right logits. These have weights of a healthy scale, so that a mistake shows.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY_SIZE = 260

_IDS: dict[str, Any] = {"vocab_size": VOCABULARY_SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def is_known(model_type: str) -> bool:
    """Whether the installed transformers has such a family."""
    return model_type in CONFIG_MAPPING


def untrained_model(
    model_type: str, settings: Mapping[str, Any], *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A random causal model, in eval mode; `settings` are those of its configuration.

    The frequencies of rotary embeddings stay float32, as they do when a checkpoint is loaded.
    Leaves torch's global generator as it was.
    """
    config = AutoConfig.for_model(model_type, **_IDS | dict(settings))
    makes_text = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (AutoModelForCausalLM if makes_text else AutoModelForImageTextToText).from_config(config)
    _give_weights(model, torch.Generator().manual_seed(seed + 1))
    frequencies = {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    model = model.to(dtype).eval().requires_grad_(False)
    for name, buffer in frequencies.items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others want float32 or less
    return model


def _give_weights(model: PreTrainedModel, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(0.1 * noise)
            elif "embed" in name or "wte" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * 1.3 / weight.shape[-1] ** 0.5)
