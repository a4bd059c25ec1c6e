"""What a model's folder says about itself before its weights are loaded.

Reads `config.json` and the headers of the safetensors files: kilobytes, where the weights are
gigabytes. What cannot become a chat is refused here, in a second.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    __version__,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from sinkchat.errors import ModelError
from sinkchat.models.hub import weight_files
from sinkchat.models.progress import quiet_libraries

_TRAINED_LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class Weight:
    """One stored tensor: its name, its shape, its bytes on disk and what safetensors calls its numbers, as "BF16"."""

    name: str
    shape: tuple[int, ...]
    stored_bytes: int
    dtype: str = ""

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def read_config(folder: Path, *, name: str, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration of a causal language model. Raises ModelError where it is none."""
    written = _config_json(folder, name)
    known = written.get("model_type") in CONFIG_MAPPING
    brings_code = "AutoConfig" in written.get("auto_map", {})
    if not known and not brings_code:
        raise ModelError(
            f"{name} is a {written.get('model_type', 'model without a model_type')}, "
            f"which transformers {__version__} does not know",
            hint="pip install --upgrade transformers",
        )
    if not known and not trust_remote_code:
        raise ModelError(
            f"{name} runs only with Python code of its own, and that is not trusted yet",
            hint=f"read the .py files in {folder}, then --trust-remote-code",
        )
    try:
        with quiet_libraries():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except ImportError as error:
        raise missing_package(name, error) from error
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelError(f"config.json of {name} cannot be used: {first_line(error)}") from error
    if auto_class(config) is None:
        made_for = (config.architectures or [f"a {config.model_type}"])[0]
        raise ModelError(
            f"{name} is {made_for}, not a causal language model: it cannot write an answer",
            hint="a model whose config.json names a ...ForCausalLM",
        )
    return config


def _config_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(
            f"config.json of {name} is damaged: {error}", hint=f"fetch {folder / 'config.json'} again"
        ) from error
    return written if isinstance(written, dict) else {}


def auto_class(config: PreTrainedConfig) -> Any:
    """By which of its two doors to models that write text transformers loads the checkpoint; None: by neither.

    What it was made for decides, not what could be made of it: an encoder has a causal class too (`BertLMHeadModel`).
    A model that also takes images has a causal class only where its text part is one; it is fed text all the same.
    """
    made_for = config.architectures or []
    causal = _classes(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, config)
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}) or (causal and not made_for):
        return AutoModelForCausalLM
    if causal and any(kind in causal or kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in made_for):
        return AutoModelForCausalLM
    if _classes(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, config) & set(made_for):
        return AutoModelForImageTextToText
    return None


def _classes(mapping: Mapping[str, Any], config: PreTrainedConfig) -> set[str]:
    classes = mapping.get(config.model_type, ())
    return {classes} if isinstance(classes, str) else set(classes)


def trained_length(config: PreTrainedConfig) -> int | None:
    """How many positions the model was trained on, where its configuration says so."""
    text = config.get_text_config(decoder=True)
    lengths = (getattr(text, name, None) for name in _TRAINED_LENGTH)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def shipped_quantization(config: PreTrainedConfig) -> str | None:
    """The method by which the weights are quantised on disk, e.g. "gptq"; None where they are not."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    if not isinstance(settings, dict):
        settings = settings.to_dict()
    if settings.get("load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", "fp4"))
    return "int8" if settings.get("load_in_8bit") else str(settings.get("quant_method", "unknown"))


def read_weights(folder: Path, *, name: str) -> tuple[Weight, ...]:
    """Every tensor of the safetensors files; none where the weights are pickles, which have no header.

    Raises ModelError for a file that is damaged or cut short.
    """
    weights: list[Weight] = []
    for file_name in weight_files(path.name for path in folder.iterdir()):
        if file_name.endswith(".safetensors"):
            weights += _header(folder / file_name, name)
    return tuple(weights)


def _header(path: Path, name: str) -> list[Weight]:
    try:
        with safe_open(path, framework="np"):  # checks that the file is as long as its header says
            pass
    except SafetensorError as error:
        raise damaged(path, name, error) from error
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return [
        Weight(tensor, tuple(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0], entry["dtype"])
        for tensor, entry in header.items()
    ]


def damaged(path: Path, name: str, error: Exception) -> ModelError:
    """The error of a weights file that cannot be read."""
    return ModelError(
        f"{path.name} of {name} is damaged or cut short: {first_line(error)}",
        hint=f"delete {path.resolve()}, then the same command fetches it again",
    )


def refuse_missing(missing: Iterable[str], *, name: str) -> None:
    """Raises ModelError if tensors are `missing`: transformers would fill them with random numbers."""
    names = sorted(missing)
    if names:
        raise ModelError(
            f"the weights of {name} lack {len(names)} of the tensors that the model needs, {names[0]} for one",
            hint="a complete checkpoint",
        )


def missing_package(name: str, error: ImportError) -> ModelError:
    """The error of a model whose own code, or whose quantisation, needs a package that is not there."""
    return ModelError(f"{name} needs a package that is missing: {first_line(error)}", hint="install it with pip")


def first_line(error: Exception) -> str:
    """The first line of what `error` says, else its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
