"""How far values are from their shadow."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Error:
    """The distance between values and their shadow, over what is finite in both.

    Attributes:
        distance: ‖values - shadow‖.
        size: ‖shadow‖.
        lost: how many values are not finite where the shadow is.
        count: of all values.
    """

    distance: float
    size: float
    lost: int = 0
    count: int = 0

    @property
    def level(self) -> float:
        """The shadow's root mean square."""
        return self.size / math.sqrt(max(1, self.count))

    def relative(self, floor: float = 0.0) -> float:
        """The distance as a share of the shadow, which counts for no less than the floor; inf where values are lost."""
        size = max(self.size, floor)
        return math.inf if self.lost else self.distance / size if size else math.inf if self.distance else 0.0


def error_of(values: Tensor, shadow: Tensor) -> Error:
    wide = values.to(shadow.dtype)
    size, distance = norm(shadow), norm(wide - shadow)
    if math.isfinite(size) and math.isfinite(distance):
        return Error(distance, size, count=values.numel())
    here, there = wide.isfinite(), shadow.isfinite()
    good = here & there
    lost = int((~here & there).sum())
    return Error(norm((wide - shadow)[good]), norm(shadow[good]), lost, values.numel())


def flushed(values: Tensor, shadow: Tensor) -> int:
    """How many values are zero where the shadow is not."""
    return int(((values == 0) & (shadow != 0)).sum())


def norm(tensor: Tensor) -> float:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor, dtype=wide).real)


def worst(values: Tensor, shadow: Tensor) -> tuple[float, float]:
    """The value that is furthest from its shadow, and the shadow's; one that is not finite before all others."""
    wide = values.detach().reshape(-1).to(shadow.dtype)
    shadow = shadow.detach().reshape(-1)
    distance = (wide - shadow).abs().nan_to_num(nan=math.inf)
    distance = distance.masked_fill(~shadow.isfinite(), -1)
    place = int(distance.argmax())
    return _number(wide[place]), _number(shadow[place])


def _number(element: Tensor) -> float:
    value = element.item()
    return float(abs(value)) if isinstance(value, complex) else float(value)
