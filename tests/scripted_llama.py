"""A module that stands in for `llama_cpp`: the same functions, over a model that adds up what it read."""

import ctypes
from types import SimpleNamespace
from typing import Any

VOCABULARY = 300


class ScriptedLlama:
    """The likeliest token is a sum over all that the context holds, so one that is lost or read twice shows."""

    def __init__(self, *, loads: bool = True) -> None:
        self._loads = loads
        self.loaded: list[str] = []
        self.gpu_layers: list[int] = []
        self.contexts: list[Any] = []
        """those that are not freed"""
        self.batches: list[int] = []

    @staticmethod
    def continued(ids: list[int], count: int) -> list[int]:
        """What a context that holds `ids` draws."""
        held = list(ids)
        for _ in range(count):
            held.append(sum((place + 1) * token for place, token in enumerate(held)) % VOCABULARY)
        return held[len(ids) :]

    def llama_backend_init(self) -> None:
        pass

    def llama_supports_gpu_offload(self) -> bool:
        return True

    def llama_model_default_params(self) -> Any:
        return SimpleNamespace(n_gpu_layers=-1)

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace(n_ctx=512, n_batch=2048, n_ubatch=512, n_threads=4, n_threads_batch=4)

    def llama_model_load_from_file(self, path: bytes, parameters: Any, /) -> Any:
        self.loaded.append(path.decode())
        self.gpu_layers.append(parameters.n_gpu_layers)
        return "model" if self._loads else None

    def llama_model_get_vocab(self, model: str, /) -> str:
        return "vocabulary"

    def llama_vocab_n_tokens(self, vocabulary: str, /) -> int:
        return VOCABULARY

    def llama_init_from_model(self, model: str, parameters: Any, /) -> Any:
        self.contexts.append(SimpleNamespace(held=[], **vars(parameters)))
        return self.contexts[-1]

    def llama_free(self, context: Any, /) -> None:
        self.contexts.remove(context)

    def llama_get_memory(self, context: Any, /) -> Any:
        return context

    def llama_memory_clear(self, memory: Any, data: bool, /) -> None:
        memory.held.clear()

    def llama_memory_seq_rm(self, memory: Any, sequence: int, start: int, stop: int, /) -> bool:
        assert (sequence, stop) == (0, -1)
        del memory.held[start:]
        return True

    def llama_batch_get_one(self, tokens: Any, count: int, /) -> list[int]:
        return list(tokens[:count])

    def llama_decode(self, context: Any, batch: list[int], /) -> int:
        if len(context.held) + len(batch) > context.n_ctx or len(batch) > context.n_batch:
            return 1
        context.held.extend(batch)
        self.batches.append(len(batch))
        return 0

    def llama_get_logits_ith(self, context: Any, index: int, /) -> Any:
        assert index == -1
        row = (ctypes.c_float * VOCABULARY)()
        row[self.continued(context.held, 1)[0]] = 1.0
        context.row = row
        return ctypes.cast(row, ctypes.POINTER(ctypes.c_float))
