"""Arithmetic of integers as it would be if nothing wrapped around: the same in float64."""

from typing import Any

import torch
from torch import Tensor

from .ops import NARROW, Operator
from .sample import LARGEST, thin

INTEGERS = NARROW | {torch.int64}
SHIFTS = frozenset("bitwise_left_shift __lshift__".split())
PRODUCTS = frozenset("mul mul_ prod cumprod pow mm bmm mv dot addmm baddbmm".split())
# Where results may leave the range of their dtype.
OUT_OF_PLACE = PRODUCTS - {"mul_"} | SHIFTS | frozenset("add sub rsub neg abs sum cumsum".split())
IN_PLACE = "add_ sub_ mul_ neg_ abs_ pow_ cumsum_ cumprod_ index_add_ scatter_add_".split()
_PLACES = frozenset(["index", "dim"])  # arguments that are no values
_HALF_OF_ALL = 2.0**62
_BY_ONE = frozenset("mul add sub rsub neg abs pow".split()) | SHIFTS  # each result is of one value of each argument


def exact(op: Operator, func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives in float64; a shift is a product."""
    names = op.names
    wide = [v if place < len(names) and names[place] in _PLACES else _wide(v) for place, v in enumerate(args)]
    if op.name in SHIFTS:
        return wide[0] * 2.0 ** wide[1]
    return func(*wide, **{key: v if key in _PLACES else _wide(v) for key, v in kwargs.items()})


def sampled(name: str, args: Any, out: Tensor) -> tuple[Any, Tensor] | None:
    """The arguments and the result, or those of some results, if there are many; None where each needs all values."""
    given = [value for value in args if isinstance(value, Tensor)]
    if max(map(Tensor.numel, (out, *given))) <= LARGEST:
        return args, out
    index = thin(out.shape)
    if name in _BY_ONE:
        return [v.expand(out.shape)[index] if isinstance(v, Tensor) else v for v in args], out[index]
    if name in ("mm", "bmm"):
        rows, columns = args[0][index[:-1]], args[1].mT[(*index[:-2], index[-1])]
        return ([rows, columns.mT], out[index]) if max(rows.numel(), columns.numel()) <= 2 * LARGEST else None
    return None


def outside(op: Operator, out: Tensor, wide: Tensor) -> Tensor:
    """Which results have wrapped around; of a shift those that have lost bits."""
    ends = torch.iinfo(out.dtype)
    if op.name in SHIFTS:
        return (wide >= 2.0**ends.bits) | (wide < ends.min)
    if out.dtype is torch.int64:  # the largest is no number of float64
        return (wide.abs() > _HALF_OF_ALL) & ((wide - out.double()).abs() > _HALF_OF_ALL)
    return (wide < ends.min) | (wide > ends.max)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype in INTEGERS else value
    return torch.float64 if isinstance(value, torch.dtype) and value in INTEGERS else value
