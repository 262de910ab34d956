"""How far two tensors are apart, and what of it rounding explains."""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from .tape import kind_of

Verdict = Literal["same", "rounding", "a rounds worse", "b rounds worse", "another function"]

# exp of such a number is 0 in every dtype, whatever is added to it: what masks hold is -inf, the least number or -1e4.
_MASKED = -1e4
# Who rounds worse rounds at least once more, and half as often again: sums in another order differ by less.
_ONCE, _HALF = 1.0, 0.5
# A result of one rounding is off by this much of half a spacing: the root mean square over a binade.
_TYPICAL = 0.4


# What is computed of padding means nothing: attention of a row that is masked as a whole is anything.
_valid: ContextVar[Tensor | None] = ContextVar("dtypeguard.diff.valid", default=None)


@contextlib.contextmanager
def without_padding(mask: Tensor | None) -> Iterator[None]:
    """In here, tensors by sequence and position are compared where an attention mask is not 0."""
    token = _valid.set(None if mask is None or bool(mask.all()) else mask.bool().cpu())
    try:
        yield
    finally:
        _valid.reset(token)


def distance(x: Tensor, y: Tensor, scale: Tensor | None = None) -> float:
    """The norm of the difference of two tensors, in parts of the norm of the second one, or of a third.

    Of whole numbers it is the share that differs. Numbers that are not finite are equal or infinitely apart; where
    both tensors hold what a mask holds, they are equal.
    """
    x, y = x.detach().to("cpu").reshape(y.shape), y.detach().to("cpu")
    valid = _valid.get()
    if valid is not None and y.shape[:2] == valid.shape:
        x, y, scale = x[valid], y[valid], None if scale is None else scale.detach().to("cpu").reshape(y.shape)[valid]
    if kind_of(x) in ("int", "bool"):
        return float((x != y).double().mean()) if x.numel() else 0.0
    wide = torch.complex128 if kind_of(x) == "complex" else torch.float64
    x, y = x.to(wide), y.to(wide)
    base = y if scale is None else scale.detach().to("cpu", wide).reshape(y.shape)
    gap, size = float(torch.linalg.vector_norm(x - y)), float(torch.linalg.vector_norm(base))
    usual = math.isfinite(gap) and math.isfinite(size)
    if not usual or (gap and not x.is_complex() and x.amin() <= _MASKED):
        if x.is_complex():
            x, y, base = (torch.view_as_real(t) for t in (x, y, base))
        masked = (x <= _MASKED) & (y <= _MASKED)
        same = (x == y) | (x.isnan() & y.isnan()) | masked
        if same.all():
            return 0.0
        if not (x[~same].isfinite().all() and y[~same].isfinite().all()):
            return math.inf
        left = masked | ~y.isfinite() | ~base.isfinite()
        x, y, base = (t.masked_fill(left, 0.0) for t in (x, y, base))
        gap, size = float(torch.linalg.vector_norm(x - y)), float(torch.linalg.vector_norm(base))
    return gap / size if size else (math.inf if gap else 0.0)


def roundoff(tensor: Tensor) -> float:
    """What one rounding to a tensor's dtype changes at most."""
    return torch.finfo(tensor.dtype).eps / 2 if kind_of(tensor) in ("float", "complex") else 0.0


def rounding(tensor: Tensor, dtype: torch.dtype) -> float:
    """What one rounding to a dtype changes in a tensor, in parts of its norm."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    changed = distance(tensor.to(dtype), tensor)
    return changed if 0 < changed < math.inf else _TYPICAL * torch.finfo(dtype).eps / 2  # it needs none, or overflows


def roundings(error: float, unit: float) -> float:
    """How many independent roundings of each number bring an error."""
    return (error / unit) ** 2 if unit else math.inf if error else 0.0


def worse(a: float, b: float) -> str:
    """Which of two numbers of roundings is worse: "a", "b" or ""."""
    less, more = sorted((a, b))
    if less == more or more - less < max(_ONCE, _HALF * less):
        return ""
    return "b" if b > a else "a"


def bound(errors: tuple[float, float], floors: tuple[float, float], ulps: float, eps: float) -> float:
    """How far two results may be apart in a wide dtype by rounding only.

    Each operation rounds as often as its sums are long, and these roundings add up to `ulps`; how much the program
    makes of one rounding is what it makes of it in the dtype in which it runs: the error there, in roundings.
    """
    made = (min(e / u, 1 / u) for e, u in zip(errors, floors, strict=True) if u)
    return max(1.0, *made, 1.0) * ulps * eps / 2
