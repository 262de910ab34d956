"""Some values of large tensors: a look at them costs the same, however many there are."""

import math
from collections.abc import Sequence

from torch import Tensor

LARGEST = 10**6  # elements that are looked at in full


def thin(shape: Sequence[int]) -> tuple[slice, ...]:
    """An index that leaves at most as many values as are looked at, of the longest axes first."""
    steps, lengths = [1] * len(shape), list(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
        if math.prod(lengths) > LARGEST:
            others = math.prod(lengths) // lengths[axis]
            steps[axis] = math.ceil(lengths[axis] / max(1, LARGEST // others))
            lengths[axis] = math.ceil(lengths[axis] / steps[axis])
    return tuple(slice(None, None, step) for step in steps)


def some(tensor: Tensor) -> Tensor:
    """All values of a tensor, or as many as are looked at: a view."""
    return tensor if tensor.numel() <= LARGEST else tensor[thin(tensor.shape)]


def of(count: int, looked: Tensor, tensor: Tensor) -> str:
    """`12 of 400`; of a tensor of which some values were looked at, about how many."""
    if looked.numel() == tensor.numel():
        return f"{count} of {tensor.numel()}"
    return f"about {max(1, round(count * tensor.numel() / looked.numel()))} of {tensor.numel()}"
