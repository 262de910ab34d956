"""What many tests share: names of dtypes, and equality to the bit."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
F8 = torch.float8_e4m3fn


def same(one: Any, other: Any) -> bool:
    """Equal to the bit."""
    these, one_spec = pytree.tree_flatten(one)
    those, other_spec = pytree.tree_flatten(other)
    return one_spec == other_spec and all(map(_equal, these, those))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other) or one != one
    alike = one.dtype is other.dtype and one.shape == other.shape and one.device == other.device
    return alike and (one.is_meta or torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().reshape(-1).view(torch.uint8)
