"""How the cache speaks to a model: one forward, in the words that its signature knows.

transformers renamed the cache argument (`past_key_values` until 5.17, `cache` since), some families take no
`position_ids`, some no `logits_to_keep`. The signature says which; nothing is guessed from versions or names.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkchat.errors import CannotStream

Begun: TypeAlias = Callable[[], Tensor]
"""Puts the token's keys and values into the cache; the logits (V,) behind it."""


class Forward:
    """Calls `model` on token ids with a cache. The model is left as it is. `reason`: why nothing faster is there."""

    def __init__(self, model: nn.Module, *, reason: str = "") -> None:
        parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        names = [name for name in ("cache", "past_key_values") if name in parameters]
        if not names:
            raise CannotStream(
                f"{type(model).__name__} keeps no keys and values: its forward takes no cache",
                hint="a model with attention layers",
            )
        self.model = model
        self._reason = reason
        self.takes_positions = "position_ids" in parameters
        self._cache_argument = names[0]
        self._keeps_last_logits = "logits_to_keep" in parameters

    @property
    def state(self) -> str:
        """How single tokens are computed, in words."""
        return f"by the model's own code{f': {self._reason}' if self._reason else ''}"

    def begin(self, input_ids: Tensor, position_ids: Tensor) -> Begun | None:
        """Begins the forward of one token whose id, (1, 1), only the device knows yet; None: wait until it is known.

        Nothing is changed before what comes back is called. The token may be dropped instead.
        """
        return None

    def settle(self) -> None:
        """Comes back when nothing faster is being made ready any more."""

    @property
    def device(self) -> torch.device:
        """Where input ids go: the device of the embedding, or where accelerate has it compute."""
        hook = getattr(self.model.get_input_embeddings(), "_hf_hook", None)  # type: ignore[operator]
        place = getattr(hook, "execution_device", None)
        return self._embedding.device if place is None else torch.device(place)

    @property
    def vocabulary_size(self) -> int:
        """How many ids the embedding knows."""
        return self._embedding.shape[0]

    @property
    def _embedding(self) -> Tensor:
        embedding: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
        return next(embedding.parameters())

    def __call__(self, input_ids: Tensor, position_ids: Tensor, cache: Cache, *, logits_to_keep: int = 1) -> Tensor:
        """Logits (B, `logits_to_keep`, V) of the last tokens; 0 keeps all. `input_ids` and `position_ids` are (B, T).

        No attention mask is passed: with all held tokens in one run before the new ones, causal attention is
        exact for every family.
        """
        arguments = self.arguments(position_ids.to(self.device), cache, logits_to_keep=logits_to_keep)
        with torch.inference_mode():
            logits: Tensor = self.model(input_ids=input_ids, **arguments).logits
        return logits if logits_to_keep == 0 else logits[:, -logits_to_keep:]

    def arguments(self, position_ids: Tensor, cache: Cache, *, logits_to_keep: int) -> dict[str, Any]:
        """What the forward is given besides the ids, as far as it takes it."""
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if self.takes_positions:
            arguments["position_ids"] = position_ids
        if self._keeps_last_logits:
            # As indices: of a slice of the tokens the head makes a product for which a CPU copies all its weights.
            count = position_ids.shape[1]
            chosen = torch.arange(count - logits_to_keep, count, device=position_ids.device)
            arguments["logits_to_keep"] = chosen if 0 < logits_to_keep < count else logits_to_keep
        return arguments
