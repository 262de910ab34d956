"""What is no tensor where one is wanted, a NumPy array or numbers, and how a tensor is made of it."""

from typing import Any

import torch
from torch import Tensor

from ..base.dtypes import BY_NAME, FLOATING, Casting, lowest_rung
from ..contract.spec import TensorSpec
from .family import prefer, within
from .state import CallState

_NUMBERS = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
_AXES = 64  # torch has no more; a list may be in itself


def from_numpy(value: Any) -> Tensor | None:
    """A tensor over a NumPy array's memory, or over a copy where torch cannot share it."""
    if type(value).__module__ != "numpy" or not hasattr(value, "__array__"):
        return None
    try:
        return torch.from_numpy(_ready(value)[0])
    except TypeError:  # strings, objects, and other dtypes that torch has no word for
        return None


def numpy_fix(value: Any) -> tuple[str, str]:
    """What to write around a value of which `from_numpy` makes a tensor."""
    import numpy as np

    return "torch.tensor(" if isinstance(value, np.generic) else "torch.from_numpy(", f"{_ready(value)[1]})"


def _ready(value: Any) -> tuple[Any, str]:
    """An array that torch can share, and the method that makes it of the value."""
    import numpy as np

    array = np.asarray(value)
    native = array.dtype.newbyteorder("=")
    if native != array.dtype:
        return array.astype(native), f".astype({native.name!r})"
    # strides are no multiples in a column of a structured array
    shares = array.flags.writeable and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return (array, "") if shares else (array.copy(), ".copy()")


def numbers_fix(spec: TensorSpec, value: Any, call: CallState) -> tuple[str, ...]:
    """What to write around numbers to make a tensor of them for an annotation; nothing where a number would change."""
    source = _numbers_dtype(value) if spec.torch_only and not torch.compiler.is_compiling() else None
    axes = spec.dims and spec.variadic is None and isinstance(value, int | float | complex)  # one number has none
    if source is None or axes:
        return ()
    wanted = call.anchor.dtype if call.anchor is not None else None
    fits = within(source, spec) and not (source in FLOATING and wanted is not None and within(wanted, spec))
    target = source if fits else spec.concrete or prefer(spec, source, wanted, call)
    if target is None or lowest_rung(source, target) > Casting.PROMOTE:
        return ()
    return "torch.tensor(", f"{'' if target is source else f', dtype={target}'})"


def _numbers_dtype(value: Any) -> torch.dtype | None:
    """The dtype of a number, or of nested lists of them that are not ragged; None for anything else."""
    kinds: set[type] = set()
    if _lengths(value, kinds) is None or not kinds:
        return None
    kind = next(one for one in reversed(_NUMBERS) if one in kinds)
    return torch.get_default_dtype() if kind is float else BY_NAME[_NUMBERS[kind]]


def _lengths(value: Any, kinds: set[type], most: int = _AXES) -> tuple[int, ...] | None:
    if type(value) in _NUMBERS:
        kinds.add(type(value))
        return ()
    nested = type(value) in (list, tuple) and most > 0
    inner = {_lengths(one, kinds, most - 1) for one in value} if nested else {None}
    (lengths,) = inner if len(inner) == 1 else (None,)
    return None if lengths is None else (len(value), *lengths)
