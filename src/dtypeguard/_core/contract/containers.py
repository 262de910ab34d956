"""What containers hold, step by step: those that may be rebuilt, and those that can only be looked at."""

import collections.abc
import dataclasses
from collections import UserDict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..base import private
from .model import PathStep

# What may be iterated over at any time, by its own word; an iterator would be used up, a data loader set going.
_HELD = (collections.abc.Sequence, collections.abc.Set, collections.abc.Mapping, collections.abc.MappingView)
_INDEXED = (list, tuple, deque)

SCALARS = frozenset({int, float, bool, str, complex, bytes, type(None), torch.device, torch.dtype, torch.Size, slice})


def children(value: Any) -> list[tuple[PathStep, Any]] | None:
    """What a container that may be rebuilt holds; None for everything else."""
    if isinstance(value, (dict, UserDict)):  # a BatchEncoding is a UserDict, a ModelOutput a dataclass as well
        kind = "attr" if dataclasses.is_dataclass(value) else "item"
        return [((kind, key), item) for key, item in value.items()]
    if isinstance(value, PackedSequence):
        return [(("attr", "data"), value.data)]
    if isinstance(value, _INDEXED):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return [(("attr", name), getattr(value, name)) for name in fields]
        return [(("item", i), item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(("attr", f.name), getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    return None


def leaves(value: Any) -> Iterator[tuple[PathStep, Any]]:
    """The leaves of any other registered pytree, a Hugging Face cache for one: checked, never cast."""
    if type(value) in private.PYTREES:
        for i, leaf in enumerate(private.PYTREES[type(value)].flatten_fn(value)[0]):
            yield ("item", i), leaf


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, and in containers in it, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    for _, item in children(value) or ():
        yield from tensors_in(item)


def members(value: Any) -> tuple[list[tuple[PathStep, Any]], bool]:
    """What iterating over a collection gives, with the steps that lead there; whether it can be rebuilt with others."""
    held = children(value) if isinstance(value, _INDEXED) else None
    if held is not None and len(held) == len(value):
        return held, True
    if isinstance(value, Tensor):  # its rows are alike
        dense = value.layout is torch.strided and not value.is_nested
        return [(("item", 0), value[0])] if dense and len(value) else [], False
    items: Any = value if isinstance(value, (*_HELD, nn.ParameterList)) else ()
    if isinstance(value, _HELD[1:]):
        return [(("member", f"item {i}"), item) for i, item in enumerate(items)], False
    return [(("item", i), item) for i, item in enumerate(items)], False


def are_scalars(values: list[Any]) -> bool:
    """Whether a list holds numbers, strings and the like only: some 20 ns an item."""
    if not values or type(values[0]) not in SCALARS:
        return False
    if torch.compiler.is_compiling():
        return all([type(value) in SCALARS for value in values])  # noqa: C419  # not each Dynamo traces a generator
    return SCALARS.issuperset(map(type, values))
