"""Batches as the caller gives them, and the tensors of what a model returns."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.contract.containers import children, tensors_in
from ..._core.repair.containers import rebuild
from ..calls import call_of, check_values

_OR_MORE = ", or a list of such batches"


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one call of the model, and the batch as the caller gave it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Any

    def to(self, dtype: torch.dtype | None, given: frozenset[int] = frozenset()) -> "Batch":
        """A copy, as a model may write to what it gets, with floating tensors in a dtype, but those in `given`."""
        floats = itertools.count()

        def copied(tensor: Tensor) -> Tensor:
            if tensor.is_complex() and dtype is torch.float64:
                return tensor.to(torch.complex128, copy=True)
            stays = not tensor.is_floating_point() or next(floats) in given
            return tensor.detach().clone() if dtype is None or stays else tensor.to(dtype, copy=True)

        return self.map(copied)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(tuple(mapped(arg, function) for arg in self.args), mapped(self.kwargs, function), self.given)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor with the name or the position of its argument."""
        for name, value in (*((str(n), arg) for n, arg in enumerate(self.args)), *self.kwargs.items()):
            for tensor in tensors_in(value):
                yield name, tensor


def batches_of(batch: Any) -> list[Batch]:
    """One batch: a tensor, a tuple of arguments, a dict of keyword arguments; or a list of such."""
    if isinstance(batch, list):
        if not batch:
            raise TypeError("compare: `batch` is an empty list: pass at least one batch")
        return [batch_of(one, "compare", f"batch[{n}]", _OR_MORE) for n, one in enumerate(batch)]
    return [batch_of(batch, "compare", more=_OR_MORE)]


def batch_of(value: Any, tool: str, name: str = "batch", more: str = "") -> Batch:
    """One batch; raises TypeError, which names it, for what is none, and DeviceError for one without values."""
    given = Batch(*call_of(value, tool, name, more), value)
    check_values(tool, given.tensors())
    return given


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A value with each of its tensors replaced; containers are rebuilt, objects with a state (a cache) copied."""
    if isinstance(value, Tensor):
        return function(value)
    held = children(value)
    if held is not None:
        return rebuild(value, {step: mapped(item, function) for step, item in held})
    if not hasattr(value, "__dict__") or isinstance(value, nn.Module | type) or callable(value):
        return value
    try:
        return copy.deepcopy(value, {id(tensor): function(tensor) for tensor in _tensors_in_attributes(value, set())})
    except Exception:
        return value


def _tensors_in_attributes(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors in the attributes of an object, and in those of what it holds."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        parts = children(value)
        for part in (
            vars(value).values() if parts is None and hasattr(value, "__dict__") else (p for _, p in parts or ())
        ):
            if isinstance(part, Tensor | list | tuple | dict) or hasattr(part, "__dict__"):
                yield from _tensors_in_attributes(part, seen)
