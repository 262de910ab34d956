"""How far values are from their shadow."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 1e30  # from which on a finite number stands for infinity
_MASKS = {torch.float16: 65504.0}


@dataclass(frozen=True, slots=True)
class Error:
    """The distance between values and their shadow, over what is finite in both.

    Attributes:
        distance: ‖values - shadow‖.
        size: ‖shadow‖.
        lost: how many values are not finite where the shadow is.
        count: of all values.
        in_a_row: the distance if all rows of the last axis, or values of a vector, were as wrong as the worst one.
        finite: whether all values are, and their shadow is.
    """

    distance: float
    size: float
    lost: int = 0
    count: int = 0
    in_a_row: float = 0.0
    finite: bool = True

    @property
    def level(self) -> float:
        """The shadow's root mean square."""
        return self.size / math.sqrt(max(1, self.count))

    @property
    def spread(self) -> float:
        """The distance's root mean square."""
        return self.distance / math.sqrt(max(1, self.count))

    def relative(self, floor: float = 0.0, of_a_row: bool = False) -> float:
        """The distance as a share of the shadow, which counts for no less than the floor; inf where values are lost.

        Of a row, it is a share of what rows are like: one that is nearly zero is no measure of its own error.
        """
        size, distance = max(self.size, floor), max(self.distance, self.in_a_row) if of_a_row else self.distance
        return math.inf if self.lost else distance / size if size else math.inf if distance else 0.0


def error_of(values: Tensor, shadow: Tensor) -> Error:
    return errors_of([(values, shadow)])[0]


def errors_of(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Error]:
    """The errors of values beside their shadows; a device is waited for once."""
    parts = [_parts(values, shadow) for values, shadow in pairs]
    numbers = iter(_read([number for numbers in parts for number in numbers]))
    found = []
    for (values, shadow), one in zip(pairs, parts, strict=True):
        size, distance, *rows = itertools.islice(numbers, len(one))
        row = rows[0] * math.sqrt(_rows(values)) if rows else 0.0
        if math.isfinite(size) and math.isfinite(distance) and size < _MASKS.get(values.dtype, _MASK):
            found.append(Error(distance, size, count=values.numel(), in_a_row=row))
        else:
            found.append(_of_finite(values, shadow))
    return found


def _parts(values: Tensor, shadow: Tensor) -> list[Tensor]:
    """The norms of a shadow and of the difference, and the worst row's."""
    difference = values.to(shadow.dtype) - shadow
    if not difference.ndim or not difference.numel():
        return [_norm(shadow), _norm(difference)]
    if difference.ndim == 1:
        rows = difference.abs().double()
    else:
        rows = torch.linalg.vector_norm(difference, dim=-1, dtype=_widest(difference)).real
    return [_norm(shadow), _norm(rows), rows.max()]


def _rows(values: Tensor) -> int:
    return values.numel() if values.ndim == 1 else values.numel() // values.shape[-1]


def _of_finite(values: Tensor, shadow: Tensor) -> Error:
    """The error over what is finite; a number that stands for infinity in a mask would hide the error of all others."""
    wide = values.to(shadow.dtype)
    here, there = wide.isfinite(), shadow.isfinite()
    good, lost = here & there, int((~here & there).sum())
    finite = bool(good.all())
    good &= shadow.abs() < _MASKS.get(values.dtype, _MASK)
    return Error(norm(wide[good] - shadow[good]), norm(shadow[good]), lost, values.numel(), finite=finite)


def flushed(values: Tensor, shadow: Tensor, inputs: Iterable[tuple[Tensor, Tensor]]) -> int:
    """How many values are zero where the shadow is not, and were not so in an input of the same shape."""
    gone = (values == 0) & (shadow != 0)
    for one, other in inputs:
        if one is not values and one.shape == values.shape:
            gone &= (one != 0) | (other == 0)
    return int(gone.sum())


def norm(tensor: Tensor) -> float:
    return float(_norm(tensor))


def _norm(tensor: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(tensor, dtype=_widest(tensor))
    return size.real


def _read(numbers: list[Tensor]) -> list[float]:
    """Numbers of float64, for which each device is waited for once."""
    if all(one.is_cpu for one in numbers):
        return [float(one) for one in numbers]
    devices: dict[torch.device, list[int]] = {}
    for place, one in enumerate(numbers):
        devices.setdefault(one.device, []).append(place)
    found = [0.0] * len(numbers)
    for places in devices.values():
        for place, number in zip(places, torch.stack([numbers[place] for place in places]).tolist(), strict=True):
            found[place] = number
    return found


def _widest(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def worst(values: Tensor, shadow: Tensor) -> Tensor:
    """The value that is furthest from its shadow, and the shadow's; one that is not finite before all others."""
    wide = values.detach().reshape(-1).to(shadow.dtype)
    shadow = shadow.detach().reshape(-1)
    distance = (wide - shadow).abs().nan_to_num(nan=math.inf)
    distance = distance.masked_fill(~shadow.isfinite(), -1)
    place = distance.argmax().reshape(1)
    return torch.cat([wide.index_select(0, place), shadow.index_select(0, place)])
