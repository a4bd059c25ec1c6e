"""llama.cpp on the same GGUF file, through the functions of llama-cpp-python that are llama.cpp's own.

No sampler, no chat, no Python between two tokens but an argmax, as on our side. Documented in llama.cpp's `llama.h`.
"""

import ctypes
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sinkchat.errors import ModelError, ResourceError

BATCH = 512
"""tokens read at once: llama.cpp's own choice"""
ALL_LAYERS = 1_000_000


class LlamaCppModel:
    """A GGUF file as llama.cpp holds it. `llama` is the module `llama_cpp`."""

    def __init__(self, llama: Any, gguf: Path, *, on_gpu: bool) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)  # else it tells its whole loading on stderr
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = ALL_LAYERS if on_gpu else 0
        self.llama = llama
        self.model = llama.llama_model_load_from_file(str(gguf).encode(), parameters)
        if not self.model:
            raise ModelError(f"llama.cpp cannot load {gguf.name}", hint="a newer llama-cpp-python")
        self.vocabulary_size = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model)))

    def close(self) -> None:
        self.llama.llama_model_free(self.model)


@dataclass(frozen=True, slots=True)
class Moment:
    """A context that nobody else writes to, and how much of it was read."""

    context: Any
    seen: int
    token: int
    """the likeliest after those"""


class LlamaCppStream:
    """One stream of at most `length` tokens, on `threads` threads. Nothing is forgotten."""

    name = "llama.cpp"

    def __init__(self, model: LlamaCppModel, *, length: int, threads: int) -> None:
        self._llama, self._model = model.llama, model
        self._parameters = self._llama.llama_context_default_params()
        self._parameters.n_ctx = length
        self._parameters.n_batch = self._parameters.n_ubatch = BATCH
        self._parameters.n_threads = self._parameters.n_threads_batch = threads
        self._contexts: list[Any] = []
        self._free: Any = None
        self.begin()

    def close(self) -> None:
        while self._contexts:
            self._llama.llama_free(self._contexts.pop())
        self._free = None

    def begin(self) -> None:
        if self._free is None:
            self._free = self._llama.llama_init_from_model(self._model.model, self._parameters)
            if not self._free:
                raise ResourceError(
                    f"llama.cpp has no memory for {self._parameters.n_ctx:,} tokens", hint="no --peers"
                )
            self._contexts.append(self._free)
        self._context, self._seen, self._token = self._free, 0, 0
        self._llama.llama_memory_clear(self._memory, True)

    def read(self, ids: Sequence[int]) -> None:
        for first in range(0, len(ids), BATCH):
            self._decode(ids[first : first + BATCH])
        self._token = self._likeliest()

    def draw(self, count: int) -> Iterator[int]:
        """`count` tokens; the last is not read."""
        for left in range(count, 0, -1):
            yield self._token
            if left > 1:
                self.read([self._token])

    def moment(self) -> Moment:
        """This moment; its context is kept for it, and a new stream begins in another."""
        if self._context is self._free:
            self._free = None
        return Moment(self._context, self._seen, self._token)

    def back_to(self, moment: Moment) -> None:
        self._context, self._seen, self._token = moment.context, moment.seen, moment.token
        self._llama.llama_memory_seq_rm(self._memory, 0, moment.seen, -1)

    @property
    def _memory(self) -> Any:
        return self._llama.llama_get_memory(self._context)

    def _decode(self, ids: Sequence[int]) -> None:
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        failed = self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(tokens, len(ids)))
        if failed:
            raise ResourceError(
                f"llama.cpp fails after {self._seen:,} tokens, with status {failed}", hint="no --peers"
            )
        self._seen += len(ids)

    def _likeliest(self) -> int:
        logits = self._llama.llama_get_logits_ith(self._context, -1)
        width = self._model.vocabulary_size
        row = (ctypes.c_float * width).from_address(ctypes.addressof(logits.contents))
        return int(torch.frombuffer(row, dtype=torch.float32).argmax())
