"""What a cast did to the values, looked at without changing anything or starting a collective.

Floor 2.
"""

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from ._dtypes import survives


def compact(tensor: Tensor) -> Tensor:
    """The tensor with each expanded axis (stride 0) narrowed to one element."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        for axis in range(tensor.dim()):
            if tensor.stride(axis) == 0 and tensor.size(axis) > 1:
                tensor = tensor.narrow(axis, 0, 1)
    return tensor


# Tensors that stand for a part of a larger one, and where their part is. Nothing here may start a collective.
_PARTS = {"DTensor": "_local_tensor", "AsyncCollectiveTensor": "elem"}


def part(tensor: Any) -> Any:
    """What of a tensor is on this rank."""
    name = _PARTS.get(type(tensor).__name__)
    return tensor if name is None else part(getattr(tensor, name))


def size(fresh: Any) -> int:
    """Bytes of a copy: of its storage where it has one, else as far as it tells."""
    fresh = part(fresh)
    try:
        return int(fresh.untyped_storage().nbytes())
    except (AttributeError, NotImplementedError, RuntimeError):  # NumPy arrays, sparse tensors, some subclasses
        if isinstance(fresh, Tensor) and fresh.layout is not torch.strided:
            fresh = fresh._values() if fresh.layout is torch.sparse_coo else fresh.values()
        return int(fresh.nbytes)


def narrowing(source: Tensor, fresh: Tensor) -> tuple[float | None, bool]:
    """The largest relative error of a narrowing cast, if it can be told; and whether finite values became infinite."""
    source, fresh = part(source), part(fresh)
    if source.dtype is fresh.dtype or survives(source.dtype, fresh.dtype) or not _readable(source):
        return None, False
    with torch.no_grad():
        exact, near = compact(source.detach()), compact(fresh.detach())
        near = near if near.device == exact.device else exact.to(fresh.dtype)
        if bool(near.isinf().any()) and bool((near.isinf() & exact.isfinite()).any()):
            return None, not _is_probe()
        if not exact.numel() or exact.is_complex():
            return None, False
        exact = exact.double()
        return float(((near.double() - exact).abs_() / exact.abs()).nan_to_num_(0.0, 0.0, 0.0).max()), False


def _is_probe() -> bool:
    """Whether a pipeline asks its stages for shapes; it sends them uninitialized memory."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_forward_metadata_inference":
            return True
        frame = frame.f_back
    return False


def _readable(tensor: Tensor) -> bool:
    """Whether looking at values is possible: not on meta, not while capturing, not in a transform."""
    if (
        tensor.is_meta
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.layout is not torch.strided
        or type(tensor) not in (Tensor, nn.Parameter)
    ):
        return False
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        return False  # a dispatch mode may trace or fake, and would see the looking in any case
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not is_functorch_wrapped_tensor(tensor)
