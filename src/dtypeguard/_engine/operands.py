"""The tensors that an operation takes, and what each of them is."""

from typing import Any

import torch
from torch import Tensor, dtype
from torch.nn import Parameter

from .._core.base import private
from .._core.base.dtypes import WIDER

_NO_DISPATCH, _transformed = private.NO_DISPATCH, private.is_transformed
_OWN = frozenset([Tensor, Parameter])
_OTHERS = frozenset([int, float, bool, complex, str, type(None), dtype, torch.device, torch.layout])
# float8 and complex32 have no sum.
_SUMMED = frozenset(
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)  # fmt: skip


def operands(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments of an operation, and in lists of them."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in _OWN:
            found.append(value)
        elif kind is list or kind is tuple:
            if value and type(value[0]) is not int:  # sizes
                found += [part for part in value if isinstance(part, Tensor)]
        elif kind not in _OTHERS and isinstance(value, Tensor):
            found.append(value)
    return found


def in_order(out: Any) -> list[Any]:
    """The results of an operation, those in lists too."""
    return [one for part in out for one in in_order(part)] if isinstance(out, (list, tuple)) else [out]


def native(tensor: Tensor) -> bool:
    """Whether torch's own kernels compute with a tensor: no subclass does, and no transform."""
    kind = type(tensor)
    return (
        (kind in _OWN or getattr(kind, "__torch_dispatch__", None) is _NO_DISPATCH)
        and not tensor.is_nested
        and not _transformed(tensor)
    )


def plain(tensor: Tensor) -> bool:
    """Whether a tensor is a block of memory that can be read: not sparse, nested, on meta or of a subclass."""
    kind = type(tensor)
    return (  # `native`, without its call: this is asked six times an operation
        (kind in _OWN or getattr(kind, "__torch_dispatch__", None) is _NO_DISPATCH)
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_nested
        and not _transformed(tensor)
    )


def summed(tensor: Tensor) -> bool:
    """Whether a tensor has values of floats that can be read and added."""
    return tensor.dtype in _SUMMED and plain(tensor)


def all_values(storage: Any, dtype: torch.dtype) -> Tensor:
    """What is in a storage, as numbers of a dtype."""
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (count,), (1,))


def shadowed(tensor: Tensor) -> bool:
    """Whether a tensor is of a dtype and a kind that has a shadow."""
    return tensor.dtype in WIDER and plain(tensor) and not _has_no_wider(tensor)


def _has_no_wider(tensor: Tensor) -> bool:
    """Whether the device has no wider dtype."""
    return tensor.is_mps and WIDER[tensor.dtype] in (torch.float64, torch.complex128)
