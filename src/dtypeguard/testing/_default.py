"""Another default dtype in one thread: `torch.set_default_dtype` would change it for all."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from .._core.base.patches import Patches

# What says its dtype by its name, or keeps that of storage.
_SAYS = frozenset("to type type_as float double half bfloat16 cfloat cdouble chalf view dequantize from_numpy".split())


class _Default(TorchFunctionMode):
    """What is made of no floating tensor, and told no dtype, is made in this one.

    It changes which kernels of PyTorch's own layers run, so it is for dtypes, not for values.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._was, self._dtype = torch.get_default_dtype(), dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        told = _pytree.tree_leaves((args, kwargs))
        if getattr(func, "__name__", "") in _SAYS or any(map(_has_dtype, told)):
            return out
        return _pytree.tree_map_only(Tensor, self._changed, out)

    def _changed(self, tensor: Tensor) -> Tensor:
        if tensor.dtype is self._was:
            return tensor.to(self._dtype)
        return tensor.to(self._dtype.to_complex()) if tensor.dtype is self._was.to_complex() else tensor


def _has_dtype(value: Any) -> bool:
    """Whether an argument says what floating dtype comes out."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex() or value.is_quantized
    return isinstance(value, torch.dtype) or type(value).__module__ == "numpy"


@contextlib.contextmanager
def as_default(dtype: torch.dtype) -> Iterator[None]:
    """In here, and in this thread, tensors are made in another default dtype."""
    mode = _Default(dtype)  # which asks for the default dtype before it is another one
    with Patches().for_a_block() as patches:
        patches.instead(torch, "get_default_dtype", lambda following: dtype)
        patches.enter_thread()
        with mode:
            yield
