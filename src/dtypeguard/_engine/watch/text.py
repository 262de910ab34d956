"""Numbers, shapes and code in messages."""

import ast
import contextlib
from typing import Any

from torch import Tensor

from ..._show.text import human as human
from ..._show.text import limit as limit


def operand(code: str) -> str:
    """Code that a method can be called on, in parentheses where it is no name, call or subscript; else nothing."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse(code, mode="eval").body
        return code if isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({code})"
    return ""


def uncast(code: str) -> str:
    """Code without the cast to float64 that it ends with."""
    with contextlib.suppress(SyntaxError, ValueError):
        match ast.parse(code, mode="eval").body:
            case ast.Call(func=ast.Attribute(value=inner, attr="double" | "to"), args=args, keywords=[]):
                if all(ast.unparse(arg) in ("torch.float64", "torch.double") for arg in args):
                    return ast.get_source_segment(code, inner) or code
    return code


def outside(device: str) -> str:
    """How to compute a line in float32 where a region of autocast is on."""
    return (
        f'outside autocast: `with torch.autocast("{device}", enabled=False):` around it, and `.float()` on what is half'
    )


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
