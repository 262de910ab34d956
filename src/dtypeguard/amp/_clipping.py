"""Whether gradients were clipped while they were scaled: told from what became of them, not from who did it."""

import itertools
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from ._tensors import norm_of, sample, version_of

_FIRST = 3  # steps in which a round norm is enough; in a long run one will be round by chance
_ORDERS = {2.0: "norm", torch.inf: "maximum norm", 1.0: "1-norm"}


class Mark:
    """A gradient as the scaled backward left it."""

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        values = sample(gradient)
        self.values = None if values is None else values.clone()
        self._parameter, self._gradient = weakref.ref(parameter), weakref.ref(gradient)
        self._version = version_of(gradient)

    def now(self) -> Tensor | None:
        """The gradient, if it was written to or replaced; its values show what `.data` hides from its version."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None:
            return None
        values = None if self.values is None else sample(gradient)
        if values is not None and self.values is not None:
            alike = values.device == self.values.device and values.dtype is self.values.dtype
            return None if alike and torch.equal(values, self.values) else gradient
        return None if gradient is self._gradient() and version_of(gradient) == self._version else gradient


class Additions:
    """How often one gradient is written to in an iteration, by its version: between looks, all that is asked."""

    def __init__(self) -> None:
        self._parameter: weakref.ref[Tensor] | None = None
        self._usual: int | None = None  # beyond one for each scaled loss
        self._start: tuple[weakref.ref[Tensor], int] | None = None  # the gradient at the end of the last iteration

    def begin(self) -> None:
        """An iteration is over."""
        gradient = self._gradient()
        self._start = None if gradient is None else (weakref.ref(gradient), version_of(gradient))

    def expect(self, pairs: Sequence[tuple[Tensor, Tensor]], losses: int) -> None:
        """A backward is over in which everything was looked at."""
        if pairs:
            self._parameter = weakref.ref(pairs[0][0])
            self._usual = self._count(losses)

    def strange(self, losses: int) -> bool:
        """Whether something else than the usual backwards wrote to the gradient."""
        return self._usual is not None and self._count(losses) not in (None, self._usual)

    def _gradient(self) -> Tensor | None:
        parameter = None if self._parameter is None else self._parameter()
        return None if parameter is None else parameter.grad

    def _count(self, losses: int) -> int | None:
        gradient = self._gradient()
        if gradient is None:
            return None
        same = self._start is not None and self._start[0]() is gradient
        return version_of(gradient) - (self._start[1] if same and self._start else 0) - losses


class Clips:
    """What is known of one optimizer's gradients, from one step that wrote to them to the next.

    Sums over ranks, and divisions by numbers of batches or tokens, are right on scaled gradients, so a change alone
    says nothing. Clipped values are what clamping makes of the values before. A clipped norm is a round number, or the
    same one while the norm before it was not; over which gradients it was taken has to be tried.
    """

    def __init__(self) -> None:
        self._judged = 0
        self._norms: dict[tuple[int, float], list[tuple[float, float]]] = {}  # after the change, and before

    def judge(
        self, written: Sequence[tuple[Mark, Tensor]], over: Sequence[Sequence[Tensor]], scale: float, all_of: bool
    ) -> tuple[str, float] | None:
        """How gradients were clipped, and to which bound; None where they were changed in another way, or perhaps.

        Clipping writes to every gradient that it is given; `all_of` says whether all that were picked changed.
        """
        kept = []
        for mark, gradient in written:
            before, after = mark.values, sample(gradient)
            if before is not None and after is not None and before.shape == after.shape and before.any():
                kept.append((before.double().cpu(), after.double().cpu(), gradient))
        if not kept:
            return None
        old, new = torch.cat([before for before, _, _ in kept]), torch.cat([after for _, after, _ in kept])
        if not (old.isfinite().all() and new.isfinite().all()) or torch.equal(old, new):
            return None
        bound = float(new.abs().max())
        if bound and torch.equal(new, old.clamp(-bound, bound)) and (new.abs() == bound).sum() > 1:
            whole = _factor(old, new)  # where all gradients are alike, a division by a number of tokens does the same
            if whole is None or (_round(bound) and not _whole(1 / whole)):
                return None if _round(bound / scale) else (f"to values between -{bound:g} and {bound:g}", bound)
        factors = [_factor(before, after) for before, after, _ in kept]
        factor = factors[0]
        if factor is None or not 0 < factor < 1:
            return None
        alike = [g for f, (_, _, g) in zip(factors, kept, strict=True) if f and abs(f / factor - 1) < 1e-2]
        if len(alike) < len(kept):  # each layer by itself: these are of one
            over = [alike]
        self._judged += 1
        sure = all_of and self._judged <= _FIRST
        for (number, gradients), (order, kind) in itertools.product(enumerate(over), _ORDERS.items()):
            norm = norm_of(gradients, order)
            if self._bounds(number, order, norm, factor, sure) and not _round(norm / scale):
                return f"to {kind} {norm:.3g}", norm
        return None

    def _bounds(self, number: int, order: float, norm: float, factor: float, sure: bool) -> bool:
        """Whether a norm is one that somebody wrote: round, or met twice before with other gradients."""
        seen = self._norms.setdefault((number, order), [])
        known = sure or any(abs(after / norm - 1) < 1e-5 for after, _ in seen)
        alike = [before for after, before in seen if abs(after / norm - 1) < 1e-4]
        alike = [before for before in alike if abs(before * factor / norm - 1) > 1e-2]
        seen.append((norm, norm / factor))
        return (order == 2 and known and _round(norm) and not _whole(1 / factor)) or len(alike) >= 2


def _factor(before: Tensor, after: Tensor) -> float | None:
    """What all elements were multiplied by; None if they were not."""
    ratio = after[before != 0] / before[before != 0]
    factor = float(ratio.median()) if len(ratio) else 0.0
    return factor if factor and (ratio - factor).abs().max() <= 1e-2 * abs(factor) else None


def _whole(number: float) -> bool:
    """Whether a divisor counts something: ranks, micro-batches, tokens."""
    return number < 2**17 and abs(number - round(number)) < 1e-3 + 1e-7 * number


def _round(number: float) -> bool:
    """Whether a number has two digits, as bounds have that somebody wrote; one in 6,000 has them by chance."""
    return number > 0 and abs(float(f"{number:.1e}") / number - 1) < 2e-6
