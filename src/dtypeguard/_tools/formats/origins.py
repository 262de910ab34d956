"""Where tensors come from, while a program runs: from parameters alone, from the products of modules, from choices."""

import weakref
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ..._engine.operands import native, operands
from ..._engine.ops import Operator

_CHOOSE = frozenset("topk argmax argmin sort argsort multinomial max min".split())  # they give places
_PICK = frozenset("index index_select gather".split())  # some of a parameter's values, by places
Names = frozenset[str]
M = TypeVar("M")


class Marks(Generic[M]):
    """What is known of storages, as long as they live."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], M]] = {}  # by address, which another storage may take over

    def get(self, tensor: Tensor) -> M | None:
        storage = tensor.untyped_storage()
        known = self._of.get(storage._cdata)
        return known[1] if known is not None and known[0]() is storage else None

    def set(self, tensor: Tensor, mark: M) -> None:
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = weakref.ref(storage), mark


def names_of(marks: Marks[Names], tensors: list[Tensor]) -> Names:
    """The names of several tensors."""
    return Names().union(*(marks.get(tensor) or () for tensor in tensors))


class Origins:
    """Where the tensors of one run come from."""

    def __init__(self, model: nn.Module) -> None:
        self.state = Marks[Names]()  # the parameters of what is computed from these, buffers and constants alone
        self.products = Marks[Names]()  # the modules of the products with a weight, up to the next, that it comes from
        self.places = Marks[Names]()  # of indices, those of what was chosen from
        self.choosers: set[str] = set()  # modules whose products something has chosen by
        for buffer in model.buffers():
            if native(buffer):
                self.state.set(buffer, Names())
        for name, parameter in model.named_parameters():
            if native(parameter):
                self.state.set(parameter, Names([name]))

    def weight(self, tensor: Tensor) -> Names | None:
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
                self.state.set(tensor, Names().union(*(state or () for state in states)))
            return
        if chosen := names_of(self.places, given):
            if op.cast or op.name == "clone":
                for tensor in made:
                    self.places.set(tensor, chosen)
                return
            self.choosers |= chosen
        if names := names_of(self.products, given):
            for tensor in made:
                if not _is_place(tensor):
                    self.products.set(tensor, names)
                elif op.name in _CHOOSE:
                    self.places.set(tensor, names)


def _is_place(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype is not torch.bool
