"""Where tensors come from, while a program runs: from parameters alone, from the products of modules, from choices."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..._engine.operands import native, operands
from ..._engine.ops import Operator

_CHOOSE = frozenset("topk argmax argmin sort argsort multinomial max min".split())  # they give places
_PICK = frozenset("index index_select gather".split())  # some of a parameter's values, by places
_NOBODY: frozenset[str] = frozenset()


class Marks:
    """What is known of storages, as long as they live: names."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, frozenset[str]]] = {}

    def get(self, tensor: Tensor) -> frozenset[str] | None:
        storage = tensor.untyped_storage()
        ref, mark = self._of.get(storage._cdata, (None, _NOBODY))
        return mark if ref is not None and ref() is storage else None

    def set(self, tensor: Tensor, mark: frozenset[str] = _NOBODY) -> None:
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = weakref.ref(storage), mark

    def all(self, tensors: list[Tensor]) -> frozenset[str]:
        """The names of several."""
        return _NOBODY.union(*(self.get(tensor) or _NOBODY for tensor in tensors))


class Origins:
    """Where the tensors of one run come from.

    Attributes:
        state: of what is computed from parameters, buffers and constants alone: the names of the parameters.
        products: the modules whose products with a weight a tensor comes from, up to the next such product.
        places: of indices, those of what was chosen from.
        choosers: modules whose products something has chosen by.
    """

    def __init__(self, model: nn.Module) -> None:
        self.state, self.products, self.places = Marks(), Marks(), Marks()
        self.choosers: set[str] = set()
        for buffer in model.buffers():
            if native(buffer):
                self.state.set(buffer)
        for name, parameter in model.named_parameters():
            if native(parameter):
                self.state.set(parameter, frozenset([name]))

    def weight(self, tensor: Tensor) -> frozenset[str] | None:
        """The parameters that a weight is made of; None for what is no weight."""
        return self.state.get(tensor) or None

    def follow(self, op: Operator, given: list[Tensor], out: Any) -> None:
        """An operation that is no product has run."""
        if op.view:
            return
        made = operands((out,), {})
        states = [self.state.get(tensor) for tensor in given]
        picked = op.name in _PICK and bool(states) and bool(states[0]) and all(map(_is_place, given[1:]))
        if picked or all(state is not None for state in states):
            for tensor in made:
                self.state.set(tensor, _NOBODY.union(*(state or _NOBODY for state in states)))
            return
        if chosen := self.places.all(given):
            if op.cast or op.name == "clone":
                for tensor in made:
                    self.places.set(tensor, chosen)
                return
            self.choosers |= chosen
        if names := self.products.all(given):
            for tensor in made:
                if not _is_place(tensor):
                    self.products.set(tensor, names)
                elif op.name in _CHOOSE:
                    self.places.set(tensor, names)


def _is_place(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype is not torch.bool
