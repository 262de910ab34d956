"""How large values are, by powers of two: what modules return, and the gradients that a step uses.

Counts stay on the device of the values until somebody asks, so nothing waits for it.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..._core.base import private
from ..._core.base.dtypes import name_of
from ..operands import summed

OUTPUT, GRADIENT = "output", "gradient"
_LOWEST, _HIGHEST = -149, 127  # powers of two: float32's; what is beyond is counted with the last
_ZERO, _ODD = _HIGHEST - _LOWEST + 1, _HIGHEST - _LOWEST + 2  # counters of zeros, and of what is not finite
_SAMPLE = 4096  # values of one tensor
_MOST = 4000  # rows
_ROWS = 64  # of which there is room at first
_TOGETHER = 64  # tensors that are counted together


class Counts:
    """Those of many tensors on one device, which are counted together.

    Attributes:
        counts: how many values have each exponent, by row.
        largest: the largest finite value, by row.
    """

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(_ROWS, _ODD + 1, dtype=torch.int64, device=device)
        self.largest = torch.zeros(_ROWS, dtype=torch.float32, device=device)
        self.rows = 0
        self._waiting: dict[torch.dtype, list[tuple[int, Tensor, Tensor]]] = {}

    def add(self, row: int, tensor: Tensor) -> None:
        values = tensor.reshape(-1)
        some = values[:: _step(values.numel())].clone()
        waiting = self._waiting.setdefault(tensor.dtype, [])
        waiting.append((row, some, torch.linalg.vector_norm(values, math.inf)))
        if len(waiting) >= _TOGETHER:
            self.count()

    def count(self) -> None:
        while len(self.counts) < self.rows:
            self.counts = torch.cat([self.counts, torch.zeros_like(self.counts)])
            self.largest = torch.cat([self.largest, torch.zeros_like(self.largest)])
        waited, self._waiting = self._waiting, {}
        for waiting in filter(None, waited.values()):
            rows, some, norms = zip(*waiting, strict=True)
            row = torch.tensor(rows, device=self.counts.device)
            values, largest = torch.cat(some), torch.stack(norms).float()
            wide = values if values.dtype is torch.float64 else values.float()
            exponents = torch.frexp(wide).exponent.long().clamp_(_LOWEST + 1, _HIGHEST + 1) - (_LOWEST + 1)
            exponents = torch.where(wide == 0, _ZERO, torch.where(wide.isfinite(), exponents, _ODD))
            sizes = torch.tensor([len(one) for one in some], device=row.device)
            places = exponents + row.repeat_interleave(sizes, output_size=len(values)) * self.counts.shape[1]
            self.counts.view(-1).scatter_add_(0, places, torch.ones_like(places))
            self.largest.scatter_reduce_(0, row, torch.where(largest.isfinite(), largest, 0.0), "amax")


class Ranges:
    """Those of all modules that ran, in the order in which they first returned."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, torch.dtype], tuple[Counts, int]] = {}
        self._on: dict[torch.device, Counts] = {}

    def add(self, module: str, what: str, tensor: Any) -> None:
        """Count the values of a tensor with a floating dtype; others have no range that could be too small."""
        if not isinstance(tensor, Tensor) or not summed(tensor) or not tensor.is_floating_point() or not tensor.numel():
            return
        key, counts = (module, what, tensor.dtype), self._on.get(tensor.device)
        with private.no_dispatch():
            if counts is None:
                counts = self._on[tensor.device] = Counts(tensor.device)
            known = self._of.get(key)
            if known is None or known[0] is not counts:
                if len(self._of) >= _MOST:
                    return
                known = self._of[key] = counts, counts.rows
                counts.rows += 1
            counts.add(known[1], tensor.detach())

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each module, kind of tensor and dtype; none for a module that returns what its last child did."""
        with private.no_dispatch():
            for one in self._on.values():
                one.count()
        known = {id(one): (one.counts.tolist(), one.largest.tolist()) for one in self._on.values()}
        last: dict[str, Any] = {}
        for (module, what, dtype), (one, place) in self._of.items():
            every, largest = known[id(one)]
            *counts, zeros, odd = every[place]
            row = {
                "module": module, "what": what, "dtype": name_of(dtype), "values": sum(counts) + zeros + odd,
                "zeros": zeros, "not_finite": odd, "largest": largest[place],
                "exponents": {n + _LOWEST: count for n, count in enumerate(counts) if count},
            }  # fmt: skip
            if not (last and last["module"].startswith(f"{module}.") and {**last, "module": module} == row):
                yield row
            last = row


def _step(count: int) -> int:
    """About so many values; an odd step meets all columns of a matrix, whose rows have an even length."""
    return max(1, count // _SAMPLE) | 1
