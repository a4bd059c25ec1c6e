"""What all tests share: the real model, loaded once, and the tiny one.

Imports stand inside the fixtures, so that tests without a model do not wait for torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as in the program: tests run beside one another's processes
os.environ["SINKCHAT_NO_COMPILE"] = "1"  # programs that a test starts; those that compile say so

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from sinkchat.models.loading import LoadedModel


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU; fetched once, then read from the cache folder."""
    from sinkchat.errors import HubUnreachable
    from sinkchat.models.loading import LoadOptions, load_model

    try:
        return load_model("smollm2", LoadOptions(dtype="float32", device="cpu", quant="none"))
    except HubUnreachable as error:
        pytest.skip(f"SmolLM2 cannot be had: {error.message}")


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    """The tiny random Llama: read it, change nothing in it."""
    from tiny import tiny_model

    return tiny_model("llama")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The byte tokenizer with ChatML."""
    from tiny import tiny_tokenizer

    return tiny_tokenizer()
