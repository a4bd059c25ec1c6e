"""Packed 4-bit weights in a folder, loaded by transformers as it loads any other: no second copy, in a second.

`config.json` names which linears are one matmul, so that transformers can be handed empty layers of the right names
and sizes before it reads the tensors. The bytes are in the order of one kind of processor, and refused by another.
"""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sinkchat.errors import ModelError
from sinkchat.models.int4.packing import layout_name
from sinkchat.models.int4.replace import Plan, to_empty_int4

METHOD = "int4"
"""the `quant_method` of such a folder"""


@register_quantization_config(METHOD)
class Int4Config(QuantizationConfigMixin):
    """What `config.json` says of packed weights."""

    def __init__(
        self, *, groups: list[list[str]], head: str | None, tied: bool, layout: str, quant_method: str = METHOD
    ) -> None:
        self.quant_method = quant_method
        self.groups = groups
        self.head = head
        self.tied = tied
        """whether the head was the embedding before it got codes of its own"""
        self.layout = layout


@register_quantizer(METHOD)
class Int4Quantizer(HfQuantizer):
    """Gives transformers the empty layers to load packed weights into."""

    quantization_config: Int4Config

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if self.quantization_config.layout != layout_name():
            raise ModelError(
                "these 4-bit weights were packed for a processor of another kind",
                hint="the model that they were made from",
            )

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        settings = self.quantization_config
        to_empty_int4(model, Plan(tuple(tuple(group) for group in settings.groups), settings.head))
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def describe_in(config: PreTrainedConfig, plan: Plan, *, tied: bool) -> None:
    """Writes into `config` what loading the packed weights needs."""
    groups = [list(group) for group in plan.groups]
    config.quantization_config = Int4Config(groups=groups, head=plan.head, tied=tied, layout=layout_name())


def off_the_disk(model: PreTrainedModel) -> None:
    """Copies weights out of the mapped file, into memory of aligned, large pages: every token reads all of them.

    A tenth of a token's time on SmolLM2. The file's own pages are given back as the machine needs them.
    """
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.clone())


def unpacked_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """`config` as it was before the weights were packed; the same object."""
    settings = getattr(config, "quantization_config", None)
    if isinstance(settings, dict) and settings.get("quant_method") == METHOD:
        config.tie_word_embeddings = settings["tied"]
        del config.quantization_config
    return config
