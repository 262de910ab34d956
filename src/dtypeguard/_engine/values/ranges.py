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


class Counts:
    """The values of one module's output, or of its parameters' gradients."""

    __slots__ = ("counts", "largest")

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(_ODD + 1, dtype=torch.int64, device=device)
        self.largest = torch.zeros((), device=device)

    def add(self, tensor: Tensor) -> None:
        values = tensor.reshape(-1)
        some = values[:: _step(values.numel())]
        wide = some if some.dtype is torch.float64 else some.float()
        exponents = torch.frexp(wide).exponent.long().clamp_(_LOWEST + 1, _HIGHEST + 1) - (_LOWEST + 1)
        exponents = torch.where(wide == 0, _ZERO, torch.where(wide.isfinite(), exponents, _ODD))
        self.counts.scatter_add_(0, exponents, torch.ones_like(exponents))
        largest = torch.linalg.vector_norm(values, math.inf).float()
        self.largest = torch.maximum(self.largest, torch.where(largest.isfinite(), largest, 0.0))


class Ranges:
    """Those of all modules that ran, in the order in which they first returned."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, torch.dtype], Counts] = {}

    def add(self, module: str, what: str, tensor: Any) -> None:
        """Count the values of a tensor with a floating dtype; others have no range that could be too small."""
        if not isinstance(tensor, Tensor) or not summed(tensor) or not tensor.is_floating_point() or not tensor.numel():
            return
        key = module, what, tensor.dtype
        known = self._of.get(key)
        if known is None or known.counts.device != tensor.device:
            if len(self._of) >= _MOST:
                return
            known = self._of[key] = Counts(tensor.device)
        with private.no_dispatch():
            known.add(tensor.detach())

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each module, kind of tensor and dtype; none for a module that returns what its last child did."""
        last: dict[str, Any] = {}
        for (module, what, dtype), one in self._of.items():
            *counts, zeros, odd = one.counts.tolist()
            row = {
                "module": module, "what": what, "dtype": name_of(dtype), "values": sum(counts) + zeros + odd,
                "zeros": zeros, "not_finite": odd, "largest": float(one.largest),
                "exponents": {n + _LOWEST: count for n, count in enumerate(counts) if count},
            }  # fmt: skip
            if not (last and last["module"].startswith(f"{module}.") and {**last, "module": module} == row):
                yield row
            last = row


def _step(count: int) -> int:
    """About so many values; an odd step meets all columns of a matrix, whose rows have an even length."""
    return max(1, count // _SAMPLE) | 1
