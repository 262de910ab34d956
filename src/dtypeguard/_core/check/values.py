"""Which values may be looked at, and what is seen of them."""

import torch
from torch import Tensor, nn

from ..base import private

_HIDES = -1e4  # a score that is no more than this is masked


def readable(tensor: Tensor) -> bool:
    """Whether looking at values is possible: not on meta, not while capturing, not in a transform."""
    if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
        return False
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    modes = map(private.dispatch_mode_at, range(private.dispatch_modes()))
    if private.tracing_state() is not None or not all(getattr(mode, "computes", False) for mode in modes):
        return False  # a dispatch mode may trace or fake, and would see the looking in any case
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not private.is_transformed(tensor)


def has_fraction(tensor: Tensor) -> bool:
    """Whether a tensor has a finite number that is not whole."""
    return tensor.is_floating_point() and bool((tensor.isfinite() & (tensor != tensor.floor())).any())


def is_share(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are from 0 to 1, and not all of them whole."""
    if torch.compiler.is_compiling() or not readable(tensor) or tensor.dtype.itemsize < 2:  # formats of 8 bits
        return False
    return has_fraction(tensor) and bool(((tensor >= 0) & (tensor <= 1)).all())


def is_added(tensor: Tensor) -> bool:
    """Whether a tensor is a mask that is added to scores: 0, and a number that stands for minus infinity."""
    if torch.compiler.is_compiling() or not readable(tensor) or not tensor.is_floating_point():
        return False
    if tensor.dtype.itemsize < 2 or not tensor.numel():
        return False
    return bool(((tensor == 0) | (tensor <= _HIDES)).all() & (tensor <= _HIDES).any())
