"""How far two tensors are apart, and what of it rounding explains."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Literal, TypeVar

import torch
from torch import Tensor

from .tape import kind_of

T = TypeVar("T")
Dtypes = tuple[torch.dtype, torch.dtype]
Verdict = Literal["same", "rounding", "a rounds worse", "b rounds worse", "another function"]

# exp of such a number is 0 in every dtype, whatever is added to it: what masks hold is -inf, the least number or -1e4.
_MASKED = -1e4
# Who rounds worse rounds at least once more, and half as often again: sums in another order differ by less.
_ONCE, _HALF = 1.0, 0.5
# Errors of samples that have come a long way in each program differ by more: twice as large is four times as many.
_SAMPLED = 3.0
# Of two dtypes the coarser one rounds what comes in too, which a gate multiplies by itself: up to 3.7 roundings in the
# models of `benchmarks/real.py` that are converted by `.bfloat16()` or `.half()`.
_COARSER = 5.0
# A result of one rounding is off by this much of half a spacing: the root mean square over a binade.
_TYPICAL = 0.4


# What is computed of padding means nothing: attention of a row that is masked as a whole is anything.
_valid: ContextVar[Tensor | None] = ContextVar("dtypeguard.diff.valid", default=None)


# The dtypes in which two programs compute, where these are two: each one's errors are counted in its own roundings.
_own: ContextVar[Dtypes | None] = ContextVar("dtypeguard.diff.own", default=None)


# How much oftener than the other one a program must round to be called worse.
_more: ContextVar[float] = ContextVar("dtypeguard.diff.more", default=_HALF)


@contextlib.contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[T]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def without_padding(mask: Tensor | None) -> contextlib.AbstractContextManager[Tensor | None]:
    """In here, tensors by sequence and position are compared where an attention mask is not 0."""
    return _within(_valid, None if mask is None or bool(mask.all()) else mask.bool().cpu())


def in_own_roundings(a: torch.dtype | None, b: torch.dtype | None) -> contextlib.AbstractContextManager[Dtypes | None]:
    """In here, errors are counted in roundings to these dtypes, if they are two: then it gives them."""
    return _within(_own, None if a is b or a is None or b is None else (a, b))


def in_samples() -> contextlib.AbstractContextManager[float]:
    """In here, errors are those of samples, on each program's own inputs."""
    return _within(_more, _SAMPLED)


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


def units(truth: Tensor, low: Sequence[Tensor]) -> tuple[float, float]:
    """What one rounding changes in the results of two programs, in parts of the norm: by the finer dtype."""
    own = _own.get()
    if own is None or kind_of(truth) not in ("float", "complex"):
        least = min(rounding(truth, dtype) for dtype in {tensor.dtype for tensor in low})
        return least, least
    a, b = (max(rounding(truth, t.dtype), rounding(truth, d)) for t, d in zip(low, own, strict=True))
    return a, b


def counted(errors: tuple[float, float], truth: Tensor, low: Sequence[Tensor]) -> tuple[float, float]:
    """The errors of two results as numbers of roundings."""
    a, b = (roundings(error, unit) for error, unit in zip(errors, units(truth, low), strict=True))
    return a, b


def worse(a: float, b: float) -> str:
    """Which of two numbers of roundings is worse: "a", "b" or ""; of two dtypes only the coarser one can be."""
    (less, more), own = sorted((a, b)), _own.get()
    if less == more or more - less < max(_ONCE, _more.get() * less) or (own is not None and more < _COARSER):
        return ""
    side = int(b > a)
    if own is not None and torch.finfo(own[side]).eps < torch.finfo(own[1 - side]).eps:
        return ""
    return "ab"[side]


def verdict_of(differs: bool, side: str) -> Verdict:
    """In words whether more than rounding differs, and else which side rounds worse."""
    if differs:
        return "another function"
    return "a rounds worse" if side == "a" else "b rounds worse" if side == "b" else "rounding"


def amplification(errors: tuple[float, float], floors: tuple[float, float]) -> float:
    """What a program makes of one rounding, as it does in the dtype in which it runs: the error there, in roundings."""
    return max(1.0, *(min(e / u, 1 / u) for e, u in zip(errors, floors, strict=True) if u), 1.0)


def bound(
    errors: tuple[float, float], floors: tuple[float, float], ulps: float, eps: float, narrow: float = 0.0
) -> float:
    """How far two results may be apart in a wide dtype by rounding only.

    Each operation rounds as often as its sums are long, and these roundings add up to `ulps`; values that came in a
    narrower dtype have lost `narrow` before.
    """
    return amplification(errors, floors) * (ulps * eps / 2 + narrow)
