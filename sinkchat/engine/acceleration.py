"""A faster way to compute one token, where there is one: it can be left out, and nothing but time changes.

The plain forward is always there, and answers until something faster is ready; nobody waits for a compiler. The
first tokens are computed both ways and compared, and a step that differs, or fails, is not used.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from sinkchat.cache.cache import SinkCache
from sinkchat.cache.forward import Begun, Forward
from sinkchat.cache.ring import RingStorage
from sinkchat.cache.storage import KeysValues
from sinkchat.engine.sections import decoder_layers, group_size, tensors_of

PROOFS = 4
"""Tokens that are computed both ways before the faster one is trusted."""

Run = Callable[[list[Tensor]], Sequence[Tensor]]
"""A section as a compiler leaves it: all tensors in one row, as `Sections` names them."""


class Step(Protocol):
    """Computes one token without changing anything."""

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Logits (V,), and the token's keys and values by group of the storage. Both arguments are (1, 1)."""


class Source(Protocol):
    """Where a step comes from, some time."""

    @property
    def state(self) -> str:
        """How far it is, in words."""

    @property
    def step(self) -> Step | None:
        """The step, once it can be used."""

    @property
    def runs_ahead(self) -> bool:
        """Whether a step comes back before it is done, so that the next one can be asked for early."""

    def wait(self) -> bool:
        """Comes back when it is settled whether there is a step."""

    def working(self) -> AbstractContextManager[None]:
        """Within it the model works without a step, and wants the machine for itself."""

    def refuse(self, reason: str) -> None:
        """The step cannot be used after all."""


class SectionedStep:
    """A step through compiled sections, over a ring that holds all layers as one group.

    Weights are those of `model`, wherever it keeps them: nothing is copied. Of the ring it reads the first `reach()`
    blocks: those that are filled, or all of them where the same addresses are to be read every time.
    """

    def __init__(
        self, model: nn.Module, ring: RingStorage, *, before: Run, layers: Run, after: Run, reach: Callable[[], int]
    ) -> None:
        self._ring = ring
        self._asked_reach = reach
        self._before, self._layers, self._after = before, layers, after
        owner, name = decoder_layers(model)
        stack = list(getattr(owner, name))
        self._group = group_size(stack)
        weights = [list(tensors_of(layer).values()) for layer in stack]
        of_layers = {id(tensor) for tensors in weights for tensor in tensors}
        self._outer = [tensor for tensor in tensors_of(model).values() if id(tensor) not in of_layers]
        self._weights = [
            [tensor for tensors in weights[first : first + self._group] for tensor in tensors]
            for first in range(0, len(stack), self._group)
        ]
        self._reach = 0
        self._inputs: list[list[Tensor]] = []

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, list[KeysValues]]:
        hidden, *given = self._before([input_ids, position_ids, *self._outer])
        keys, values = [], []
        for inputs in self._filled():
            hidden, new_keys, new_values = self._layers([hidden, *given, *inputs])
            keys.append(new_keys)
            values.append(new_values)
        (logits,) = self._after([hidden, *self._outer])
        return logits, [KeysValues(torch.cat(keys).unsqueeze(2), torch.cat(values).unsqueeze(2))]

    def _filled(self) -> list[list[Tensor]]:
        """For each group: the bias, its weights, and of the ring the blocks that are read, two at least."""
        reach = max(self._asked_reach(), 2)
        if reach != self._reach:
            (blocks,) = self._ring.groups
            self._reach = reach
            self._inputs = [
                [
                    self._ring.bias[:reach],
                    *weights,
                    *(
                        buffer[layer, :reach]
                        for layer in range(index * self._group, (index + 1) * self._group)
                        for buffer in (blocks.keys, blocks.values)
                    ),
                ]
                for index, weights in enumerate(self._weights)
            ]
        return self._inputs


class AcceleratedForward(Forward):
    """The model's forward, and for single tokens the step of `source` as soon as it is there."""

    def __init__(self, model: nn.Module, ring: RingStorage, source: Source) -> None:
        super().__init__(model)
        self.source = source
        self._ring = ring
        self._in_question: Step | None = None
        self._unproven = PROOFS

    @property
    def state(self) -> str:
        return self.source.state

    def settle(self) -> None:
        self.source.wait()

    def begin(self, input_ids: Tensor, position_ids: Tensor) -> Begun | None:
        step = self._next_step() if self.source.runs_ahead else None
        if step is None or self._unproven:
            return None
        with torch.inference_mode():
            try:
                logits, new = step(input_ids, position_ids)
            except RuntimeError as error:
                self._refuse(error)
                return None

        def finish() -> Tensor:
            with torch.inference_mode():
                self._ring.write(self._ring.held, new)
            return logits

        return finish

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, cache: SinkCache, *, logits_to_keep: int = 1
    ) -> Tensor:
        step = self._next_step() if input_ids.shape[1] == logits_to_keep == 1 else None
        if step is None:
            with self.source.working():
                return super().__call__(input_ids, position_ids, cache, logits_to_keep=logits_to_keep)
        with torch.inference_mode():
            try:
                logits, new = step(input_ids, position_ids)
            except RuntimeError as error:
                self._refuse(error)
                return super().__call__(input_ids, position_ids, cache)
            if self._unproven:
                plain = super().__call__(input_ids, position_ids, cache)
                self._prove(logits, plain[0, -1])
                return plain
            self._ring.write(self._ring.held, new)
        return logits.view(1, 1, -1)

    def _next_step(self) -> Step | None:
        """The step that there is now. Another one than before has everything to prove."""
        step = self.source.step
        if step is not self._in_question:
            self._in_question, self._unproven = step, PROOFS
        return step

    def _refuse(self, error: RuntimeError) -> None:
        """Gives a step up that failed. It changes nothing, so the plain forward can take the same token.

        Where it was memory that is missing, that fails as well, and says so.
        """
        reason, _, _ = str(error).partition("\n")
        self.source.refuse(f"a compiled step failed: {reason}")

    def _prove(self, logits: Tensor, plain: Tensor) -> None:
        """Counts a token on which both ways agree; refuses the step where they do not."""
        apart = difference(logits, plain)
        bound = 1e-3 if plain.dtype == torch.float32 else 0.3
        if apart <= bound:
            self._unproven -= 1
        else:
            self.source.refuse(f"compiled logits are {apart:.2g} standard deviations off (bound {bound})")


def difference(logits: Tensor, plain: Tensor) -> float:
    """Root mean square of the difference, in standard deviations of `plain`."""
    plain = plain.float()
    return float((logits.float() - plain).square().mean().sqrt() / plain.std())
