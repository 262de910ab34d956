"""How a tensor lies in memory: one row for each layout."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .._core.base.pyproject import near


def _transposed(tensor: Tensor) -> Tensor:
    back = tuple(reversed(range(tensor.dim())))
    return tensor.permute(back).contiguous().permute(back)


def _strided(tensor: Tensor) -> Tensor:
    """Every other element of a longer last axis."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2] if tensor.dim() else tensor.contiguous()


def _offset(tensor: Tensor) -> Tensor:
    """Behind the first element of its storage."""
    room = tensor.new_empty(tensor.numel() + 1)
    room[0].zero_()
    return room[1:].copy_(tensor.reshape(-1)).view(tensor.shape)


def _expanded(tensor: Tensor) -> Tensor:
    """One row, seen along the longest axis as often as that is long."""
    if not tensor.numel() or not tensor.dim():
        return tensor.contiguous()
    longest = max(range(tensor.dim()), key=tensor.size)
    return tensor.narrow(longest, 0, 1).contiguous().expand(tensor.shape)


def _channels_last(tensor: Tensor) -> Tensor:
    """Channels innermost, of images and videos alike."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else tensor.contiguous()


# Where a shape has no room for a layout (a scalar is never transposed), the tensor is contiguous.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.contiguous,
    "transposed": _transposed,
    "strided": _strided,
    "offset": _offset,
    "expanded": _expanded,
    "channels_last": _channels_last,
}


def layout_of(name: Any) -> Callable[[Tensor], Tensor]:
    """What puts a tensor into the layout called `name`."""
    if not isinstance(name, str) or name not in LAYOUTS:
        kind = ValueError if isinstance(name, str) else TypeError
        raise kind(f"layout={name!r} is not a layout{near(name, LAYOUTS)}: use one of {', '.join(map(repr, LAYOUTS))}")
    return LAYOUTS[name]
