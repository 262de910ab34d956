"""Numbers, shapes and code in messages."""

from typing import Any

from torch import Tensor


def human(size: float) -> str:
    """A number of bytes: `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def quoted(code: str) -> str:
    return f"`{code}`"


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
