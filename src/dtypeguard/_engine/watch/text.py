"""Numbers, shapes and code in messages."""

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..._show.text import human as human

LARGEST = 10**6  # elements that are looked at in full


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module and all in it, each once, whatever its class has made of `named_modules` and of hashing."""
    seen: set[int] = set()
    stack = [("", root)]
    while stack:
        path, module = stack.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            children = (vars(module).get("_modules") or {}).items()
            stack += [(inside(path, name), child) for name, child in reversed(children) if child is not None]


def tensors_below(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, str, Tensor]]:
    """The parameters and buffers of a module and of all in it: path and module, kind, name, tensor."""
    for path, module in walk(root):
        for kind, name, tensor in tensors_of(module):
            yield path, module, kind, name, tensor


def inside(path: str, name: str) -> str:
    """The path of what is in a module."""
    return f"{path}.{name}" if path and name else path or name


def tensors_of(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Its own parameters and buffers: kind, name, tensor."""
    for kind in ("parameter", "buffer"):
        for name, tensor in (vars(module).get(f"_{kind}s") or {}).items():
            if tensor is not None:
                yield kind, name, tensor


def operand(code: str) -> str:
    """Code that a method can be called on, in parentheses where it is no name, call or subscript; else nothing."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse(code, mode="eval").body
        return code if isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({code})"
    return ""


def shape_of(tensor: Tensor) -> list[Any]:
    """Sizes as plain data; symbolic ones as text."""
    try:
        return [size if isinstance(size, int) else str(size) for size in tensor.shape]
    except RuntimeError:  # strided nested tensors, and parameters that are not initialised, have none
        return []


def size_of(tensor: Tensor) -> int:
    """Bytes, 0 where nobody knows."""
    try:
        return int(tensor.nbytes)
    except (RuntimeError, TypeError, ValueError):
        return 0
