"""A model for one new token, cut into three pure functions: before the layers, a group of layers, after them.

Layers of a model are alike, so one function serves all groups when weights, keys and values are its arguments: a
compiler works for seconds where the whole stack would take minutes. The model's own code runs in each of them, with
the other sections taken out; nothing of a family is known here. What a layer is given besides the hidden state
(rotary angles, say) is taken as the model hands it out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sinkchat.cache.forward import Forward
from sinkchat.cache.step import IMPLEMENTATION, StepCache
from sinkchat.errors import CannotStream

_LARGEST_GROUP = 6
_ITS_OWN = ("layer_idx", "training")
"""attributes in which alike layers may differ"""


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def decoder_layers(model: nn.Module) -> tuple[nn.Module, str]:
    """The module that owns the list of layers, and the list's name there: of all lists the one that weighs most."""
    lists = [
        (sum(tensor.numel() for tensor in tensors_of(child).values()), f"{path}.{name}".strip("."))
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and len(child)
    ]
    if not lists:
        raise CannotStream(f"{type(model).__name__} has no list of layers")
    path, _, name = max(lists)[1].rpartition(".")
    return model.get_submodule(path), name


def group_size(layers: Sequence[nn.Module]) -> int:
    """How many layers make a group: the most, up to 6, that repeat all along the stack."""
    facts = [facts_of(layer) for layer in layers]
    for size in range(min(_LARGEST_GROUP, len(layers)), 0, -1):
        if len(layers) % size == 0 and all(fact == facts[index % size] for index, fact in enumerate(facts)):
            return size
    raise CannotStream("its layers differ from each other in more than their weights")


def facts_of(layer: nn.Module) -> list[Any]:
    """What a layer is, without its weights: classes, plain attributes, shapes."""
    plain = (bool, int, float, str, type(None))
    return [
        (
            name,
            type(module),
            {key: it for key, it in vars(module).items() if isinstance(it, plain) and key not in _ITS_OWN},
            [(key, tensor.shape, tensor.dtype) for key, tensor in tensors_of(module).items()],
        )
        for name, module in layer.named_modules()
    ]


class _Tap(nn.Module):
    """Stands where the layers were: keeps what they would be given, and gives a hidden state that was computed."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self.returns_tuple = False
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        if (kind := getattr(like, "attention_type", None)) is not None:
            self.attention_type = kind

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        self.given = arguments, keywords
        hidden = arguments[0] if self.hidden is None else self.hidden
        return (hidden,) if self.returns_tuple else hidden


class Sections:
    """The three functions, made of `model`, which is taken over: its layers are taken out of it.

    Raises CannotStream where the model cannot be cut so.
    """

    def __init__(self, model: nn.Module) -> None:
        owner, name = decoder_layers(model)
        layers = list(getattr(owner, name))
        self.group = group_size(layers)
        self._layers = layers[: self.group]
        self._names = list(tensors_of(layers[0]))
        self._tap = _Tap(layers[0])
        setattr(owner, name, nn.ModuleList([self._tap]))
        model.config._attn_implementation = IMPLEMENTATION  # type: ignore[union-attr]
        self._model = model
        self._call = Forward(model)
        self._outer_names = list(tensors_of(model))
        self._spec: TreeSpec | None = None
        self._leaves: list[Any] = []

    def before(self, input_ids: Tensor, position_ids: Tensor, outer: Sequence[Tensor]) -> list[Tensor]:
        """The hidden state (1, 1, E) and the other tensors that every layer is given. `outer`: all but the layers."""
        self._tap.hidden = None
        self._run(input_ids, position_ids, outer)
        self._leaves, self._spec = tree_flatten(self._tap.given)
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]

    def layers(
        self, given: Sequence[Tensor], bias: Tensor, weights: Sequence[Tensor], held: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A group: the hidden state behind it, new keys and values (group, H, D) of its layers.

        `given` is what `before` gave, its first tensor the hidden state; `weights` those of the group's layers one
        after the other; `held` each layer's keys and values in the ring. `before` has run once.
        """
        hidden, *others = given
        keys, values = [], []
        count = len(self._names)
        for index, layer in enumerate(self._layers):
            own = dict(zip(self._names, weights[index * count : (index + 1) * count], strict=True))
            cache = StepCache(held[2 * index], held[2 * index + 1], bias)
            arguments, keywords = self._arguments([hidden, *others], cache)
            output = functional_call(layer, own, arguments, keywords)
            self._tap.returns_tuple = isinstance(output, tuple)
            hidden = output[0] if isinstance(output, tuple) else output
            key, value = cache.new
            keys.append(key[0, :, 0])
            values.append(value[0, :, 0])
        return hidden, torch.stack(keys), torch.stack(values)

    def after(self, hidden: Tensor, outer: Sequence[Tensor]) -> Tensor:
        """Logits (V,). `layers` has run once."""
        nothing = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
        self._tap.hidden = hidden
        return self._run(nothing, nothing, outer)[0, -1]

    def _run(self, input_ids: Tensor, position_ids: Tensor, outer: Sequence[Tensor]) -> Tensor:
        nothing = outer[0].new_empty(0)
        arguments = self._call.arguments(position_ids, StepCache(nothing, nothing, nothing), logits_to_keep=1)
        own = dict(zip(self._outer_names, outer, strict=True))
        logits: Tensor = functional_call(self._model, own, (), {"input_ids": input_ids, **arguments}).logits
        return logits

    def _arguments(self, tensors: Sequence[Tensor], cache: StepCache) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A layer's arguments: `tensors` and `cache` in the places where the model put its own."""
        left = iter(tensors)
        leaves = [
            next(left) if isinstance(leaf, Tensor) else cache if isinstance(leaf, StepCache) else leaf
            for leaf in self._leaves
        ]
        if self._spec is None:
            raise ValueError("what the layers are given is known only after `before`")
        arguments, keywords = tree_unflatten(leaves, self._spec)
        return tuple(arguments), keywords
