"""What a cast did to the values, looked at without changing anything or starting a collective."""

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..base import private
from ..base.dtypes import TABLE, Kind, survives
from .values import has_fraction, readable


def compact(tensor: Tensor, source: Tensor | None = None) -> Tensor:
    """The tensor with each axis that is expanded (stride 0), in it or in its source, narrowed to one element."""
    source = tensor if source is None else source
    if source.layout is torch.strided and not source.is_nested:
        for axis in range(source.dim()):
            if source.stride(axis) == 0 and source.size(axis) > 1:
                tensor = tensor.narrow(axis, 0, 1)
    return tensor


# Tensors that stand for a part of a larger one, and where their part is. Nothing here may start a collective.
_PARTS = {"DTensor": "_local_tensor", "AsyncCollectiveTensor": "elem"}


def part(tensor: Any) -> Any:
    """What of a tensor is on this rank."""
    name = _PARTS.get(type(tensor).__name__)
    return tensor if name is None else part(getattr(tensor, name))


def size(fresh: Any) -> int:
    """Bytes of a copy: of its storage if it has one, else its `nbytes`."""
    fresh = part(fresh)
    try:
        return int(fresh.untyped_storage().nbytes())
    except (AttributeError, NotImplementedError, RuntimeError):  # NumPy arrays, sparse tensors, some subclasses
        if isinstance(fresh, Tensor) and fresh.layout is not torch.strided:
            fresh = fresh._values() if fresh.layout is torch.sparse_coo else fresh.values()
        return int(fresh.nbytes)


def narrowing(source: Tensor, fresh: Tensor) -> tuple[float | None, bool]:
    """The largest relative error of a narrowing cast, if it can be computed; whether finite values became infinite."""
    source, fresh = part(source), part(fresh)
    if source.dtype is fresh.dtype or survives(source.dtype, fresh.dtype) or not readable(source):
        return None, False
    with torch.no_grad():
        exact, near = compact(source.detach()), compact(fresh.detach(), source)
        near = near if near.device == exact.device else exact.to(fresh.dtype)
        if bool(near.isinf().any()) and bool((near.isinf() & exact.isfinite()).any()):
            return None, not _is_probe()
        if not exact.numel() or exact.is_complex():
            return None, False
        exact = exact.double()
        return float(((near.double() - exact).abs_() / exact.abs()).nan_to_num_(0.0, 0.0, 0.0).max()), False


def narrows(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether numbers of `source` may become other numbers of a floating `target`."""
    return (
        TABLE[target].kind is Kind.FLOAT
        and TABLE[source].kind in (Kind.INT, Kind.FLOAT)
        and not survives(source, target)
    )


_READERS: dict[torch.dtype, Any] = {torch.float64: ctypes.c_double, torch.float32: ctypes.c_float}


@functools.cache
def whole(dtype: torch.dtype, on_cpu: bool) -> Callable[[Tensor, int, bool | None], bool]:
    """Whether whole numbers are looked for when a tensor, of that dtype, is narrowed for the n-th time.

    On the CPU they always are, unless one element that is read first is no whole number. On an accelerator each look
    waits for the device, so they are at the 1st, 2nd, 4th, 8th ... time. The third argument is `is_contiguous()`, if
    it is known.
    """
    kind = _READERS.get(dtype)
    if not on_cpu:
        return lambda source, n, dense: not n & (n - 1)
    if kind is None:
        return lambda source, n, dense: True
    read, size, isfinite = kind.from_address, dtype.itemsize, math.isfinite

    def look(source: Tensor, n: int, dense: bool | None) -> bool:
        try:
            if dense is None:
                dense = source.is_contiguous()
            if private.tracing_state() is None and (address := source.data_ptr()):
                if dense:
                    middle = source.numel() // 2
                else:  # transposed, sliced, expanded: the middle of each axis
                    middle = sum(n // 2 * step for n, step in zip(source.shape, source.stride(), strict=True))
                element = read(address + middle * size).value
                return element.is_integer() or not isfinite(element)
        except RuntimeError:  # sparse tensors, and tensors of a transform, have no one memory
            pass
        return True

    return look


def changed(source: Tensor, fresh: Tensor) -> tuple[int, int] | None:
    """A whole number, before and after a narrowing that changed it, of a tensor that holds whole numbers only.

    Ids, timesteps and counts are such; a mask of zeros and one negative number is too, and may be rounded.
    """
    source, fresh = part(source), part(fresh)
    if not isinstance(source, Tensor) or not narrows(source.dtype, fresh.dtype) or not readable(source):
        return None
    with torch.no_grad():
        exact, near = compact(source), compact(fresh, source)
        exact = exact if exact.is_floating_point() else exact.double()
        near = near.to(exact.dtype) if near.device == exact.device else exact.to(fresh.dtype).to(exact.dtype)
        if torch.equal(near, exact) or has_fraction(exact.reshape(-1)[:: exact.numel() // 64 or 1]):
            return None
        odd = (near != exact) & exact.isfinite() & near.isfinite()
        if not bool(odd.any()) or has_fraction(exact):
            return None
        below = exact[exact.isfinite() & (exact != 0)]
        if bool(below.max() < 0) and bool(below.min() == below.max()):
            return None
        return int(exact[odd][0]), int(near[odd][0])


def loses(source: Tensor, fresh: Tensor) -> bool:
    """Whether a narrowing changed any number."""
    source, fresh = part(source), part(fresh)
    if not isinstance(source, Tensor) or not readable(source):
        return False
    with torch.no_grad():
        exact, near = compact(source), compact(fresh, source)
        return not torch.equal(near.to(exact.device, exact.dtype).nan_to_num(), exact.nan_to_num())


def _is_probe() -> bool:
    """Whether a pipeline asks its stages for shapes; it sends them uninitialized memory."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_forward_metadata_inference":
            return True
        frame = frame.f_back
    return False
