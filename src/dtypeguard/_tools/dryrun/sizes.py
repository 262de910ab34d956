"""The sizes of what an operation gives: from PyTorch's meta kernels, else from the kernel itself if that is cheap."""

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..._engine.operands import operands
from .ghosts import Ghosts
from .paths import unknown
from .verdicts import AFFORDABLE, alone, is_about_dtypes, ordinary, plain

_KEPT = 50_000
_known: dict[Any, Any] = {}  # what came out, on meta
_DTYPES = (ordinary, lambda dtype: dtype)  # some kernels on meta ask for dtypes of their own


def on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """What comes out, on meta; or the exception, where it depends on values, has no kernel, or sizes are wrong."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    key = func, spec, tuple(map(_key, leaves))
    if key not in _known:
        if len(_known) >= _KEPT:
            _known.clear()
        _known[key] = _ask(func, args, kwargs)
    return _known[key]


def _key(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return plain(leaf)
    return (leaf.size(), leaf.stride(), leaf.dtype) if leaf.layout is torch.strided and not leaf.is_nested else object()


def _ask(func: Any, args: Any, kwargs: Any) -> Any:
    error: Exception | None = None
    for like in _DTYPES:

        def moved(value: Any, like: Any = like) -> Any:
            if isinstance(value, Tensor) and not value.is_nested:
                return torch.empty_strided(value.size(), value.stride(), dtype=like(value.dtype), device="meta")
            if isinstance(value, torch.dtype):
                return like(value)
            return torch.device("meta") if isinstance(value, torch.device) else value

        given, named = _pytree.tree_map(moved, (args, kwargs))
        if not operands(args, kwargs):
            named = {**named, "device": torch.device("meta")}
        try:
            with alone(None):
                return func(*given, **named)
        except Exception as refusal:
            error = error or type(refusal)(str(refusal))  # without a traceback, which keeps what it met alive
    return error


def sized(func: Any, args: Any, kwargs: Any, ghosts: Ghosts) -> Any:
    """What comes out; of another dtype and device, and with values without a meaning.

    Raises the program's own error if sizes are wrong, and Unknown if they depend on values that are not computed.
    """
    found = on_meta(func, args, kwargs)
    if not isinstance(found, Exception):
        return found
    if sum(tensor.numel() for tensor in operands(args, kwargs)) <= AFFORDABLE:
        with contextlib.suppress(Exception):
            return _by_kernel(func, args, kwargs, ghosts)
    check_sizes(func, args, kwargs)
    raise unknown(f"the sizes of what {func} gives are not known")


def _by_kernel(func: Any, args: Any, kwargs: Any, ghosts: Ghosts) -> Any:
    """With zeros for ghosts, and with ones: sizes may depend on the values of others."""
    found = []
    for number in (0, 1):

        def filled(value: Any, number: int = number) -> Any:
            if not isinstance(value, Tensor):
                return value
            dtype = ordinary(value.dtype)
            if value in ghosts:
                return torch.full(value.size(), number, dtype=torch.float32, device=value.device).to(dtype)
            return value.detach().to(dtype, copy=True)

        given, named = _pytree.tree_map(filled, (args, kwargs))
        with alone(None):
            found.append(func(*given, **named))
    zeros, ones = ([tensor.size() for tensor in operands(_pytree.tree_leaves(out), {})] for out in found)
    if zeros != ones:
        raise unknown(f"the sizes of what {func} gives depend on values that are not computed")
    return found[0]


def check_sizes(func: Any, args: Any, kwargs: Any) -> None:
    """Raise the program's own error, if sizes are wrong."""
    found = on_meta(func, args, kwargs)
    if isinstance(found, Exception) and not _is_metas_own(found):
        raise type(found)(*found.args)


def _is_metas_own(error: Exception) -> bool:
    """Whether it says what meta tensors cannot do, or wants other dtypes, and not that sizes are wrong."""
    return isinstance(error, NotImplementedError) or "meta" in str(error) or is_about_dtypes(error)
