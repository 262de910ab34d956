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
        in_a_row: the distance if all rows of the last axis, or values of a vector, were as wrong as the worst one.
    """

    distance: float
    size: float
    lost: int = 0
    count: int = 0
    in_a_row: float = 0.0

    @property
    def level(self) -> float:
        """The shadow's root mean square."""
        return self.size / math.sqrt(max(1, self.count))

    def relative(self, floor: float = 0.0, of_a_row: bool = False) -> float:
        """The distance as a share of the shadow, which counts for no less than the floor; inf where values are lost.

        Of a row, it is a share of what rows are like: one that is nearly zero is no measure of its own error.
        """
        size, distance = max(self.size, floor), max(self.distance, self.in_a_row) if of_a_row else self.distance
        return math.inf if self.lost else distance / size if size else math.inf if distance else 0.0


def error_of(values: Tensor, shadow: Tensor) -> Error:
    wide = values.to(shadow.dtype)
    difference = wide - shadow
    row = 0.0
    if difference.ndim and difference.numel():
        rows = (
            difference.abs().double()
            if difference.ndim == 1
            else torch.linalg.vector_norm(difference, dim=-1, dtype=_widest(difference)).real
        )
        size, distance, largest = _read(_norm(shadow), _norm(rows), rows.max())
        row = largest * math.sqrt(rows.numel())
    else:
        size, distance = _read(_norm(shadow), _norm(difference))
    if math.isfinite(size) and math.isfinite(distance):
        return Error(distance, size, count=values.numel(), in_a_row=row)
    here, there = wide.isfinite(), shadow.isfinite()
    good = here & there
    lost = int((~here & there).sum())
    return Error(norm(difference[good]), norm(shadow[good]), lost, values.numel())


def flushed(values: Tensor, shadow: Tensor) -> int:
    """How many values are zero where the shadow is not."""
    return int(((values == 0) & (shadow != 0)).sum())


def norm(tensor: Tensor) -> float:
    return float(_norm(tensor))


def _norm(tensor: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(tensor, dtype=_widest(tensor))
    return size.real


def _read(*numbers: Tensor) -> list[float]:
    """Numbers of one dtype, for which a device is waited for once."""
    return [float(one) for one in (numbers if numbers[0].is_cpu else torch.stack(numbers).cpu())]


def _widest(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def worst(values: Tensor, shadow: Tensor) -> tuple[float, float]:
    """The value that is furthest from its shadow, and the shadow's; one that is not finite before all others."""
    wide = values.detach().reshape(-1).to(shadow.dtype)
    shadow = shadow.detach().reshape(-1)
    distance = (wide - shadow).abs().nan_to_num(nan=math.inf)
    distance = distance.masked_fill(~shadow.isfinite(), -1)
    place = distance.argmax().reshape(1)
    value, other = torch.cat([wide.index_select(0, place), shadow.index_select(0, place)]).cpu()
    return _number(value), _number(other)


def _number(element: Tensor) -> float:
    value = element.item()
    return float(abs(value)) if isinstance(value, complex) else float(value)
