"""DG309 clip-before-unscale."""

import itertools
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from ..._engine.watch.events import Op, on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.sites import Site
from ...amp._marks import Mark
from ...amp._scaling import Driven, Scaling
from ...amp._tensors import norm_of, sample
from ..scalers import Scalers

RULE = Rule(
    "DG309",
    "clip-before-unscale",
    Severity.ERROR,
    summary="Gradients are clipped while they are still scaled.",
    says=(
        "gradients of {names} were clipped {how} while still multiplied by the scale {scale:g}: after "
        "unscaling the bound is {bound:.3g}"
    ),
    fix="`{scaler_code}.unscale_({optimizer_code})` before the gradients are clipped",
    why=(
        "After `scaler.scale(loss).backward()` gradients are tens of thousands of times too large. "
        "Clipping them then nearly always clips, and unscaling makes the step that many times too small: "
        "with SGD training stands still. Adam scales most of it away again, but every gradient has the "
        "norm of the bound then, and comes close to eps."
    ),
    sampled=True,
    safe=("unscale_before_clip",),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    ),
)


_WRITES = "mul_ div_ clamp_ clamp_min_ clamp_max_ copy_".split()
_LISTS = "_foreach_mul_ _foreach_div_ _foreach_clamp_min_ _foreach_clamp_max_ _foreach_copy_".split()
_FRAMES = 8  # between an operation and the function that clips
_FIRST = 3  # steps in which a round norm is enough; in a long run one will be round by chance
_ORDERS = {2.0: "norm", torch.inf: "maximum norm", 1.0: "1-norm"}
Written = Sequence[tuple[Mark, Tensor]]


@on("gradients", RULE)
def judge(driven: Driven, written: Written, op: str, scaling: Scaling) -> None:
    """Told from what became of gradients, not from who did it."""
    if written and driven.now:
        mine = [gradient for _, gradient in driven.watched.gradients()]
        all_of = [gradient for other in scaling.driven for _, gradient in other.watched.gradients()]
        over = (mine, all_of, driven.watched.gradients_of_model(), [gradient for _, gradient in written])
        clips: Clips = driven.kept.setdefault(RULE.id, Clips())
        clipped = clips.judge(written, over, scaling.scale, len(written) == len(driven.marks))
        if clipped is not None:
            _find(driven, scaling.scale, clipped, op, site=driven.line)


class Clipped(NamedTuple):
    """How gradients were clipped, to which bound, and which ones."""

    how: str
    bound: float
    gradients: Sequence[Tensor]


def _find(driven: Driven, scale: float, clipped: Clipped, op: str, site: Site | None = None) -> None:
    facts = {"how": clipped.how, "scale": scale, "bound": clipped.bound / scale}
    ids = set(map(id, clipped.gradients))
    parameters = [parameter for parameter, gradient in driven.watched.gradients() if not ids or id(gradient) in ids]
    driven.watched.add(RULE, facts, parameters, op=op, site=site)


# ---------------------------------------------------------------- in an audit, which sees who writes to gradients


@on("before", RULE, ops=_LISTS)
def lists(args: Any, audit: Recorder) -> None:
    """Without it there is no word after operations on lists."""


@on("after", RULE, ops=_WRITES + _LISTS)
def wrote(event: Op, audit: Recorder) -> None:
    target = event.args[0]
    written = {id(one) for one in (target if isinstance(target, (list, tuple)) else [target])}
    for scaling in audit.state(Scalers):
        for driven in scaling.driven:
            pairs = driven.watched.gradients() if driven.scaled else ()
            parameter = next((parameter for parameter, mine in pairs if id(mine) in written), None)
            if parameter is not None:
                driven.line = event.site
                _was_clipped(scaling, driven, parameter, sys._getframe(1))


def _was_clipped(scaling: Scaling, driven: Driven, parameter: Tensor, frame: FrameType) -> None:
    """If PyTorch's own clipping wrote to a gradient, it need not be told from what became of all of them."""
    clipped = None if driven.by_hand or scaling.scale == 1 else _clipping(frame)
    if clipped is not None:
        kinds = next((reached.kinds for reached in driven.reached if reached.parameter is parameter), None)
        sure = kinds is None and scaling.only(driven)
        if (kinds == {True} or sure) and any(mark.now() is not None for mark in driven.marks):
            _find(driven, scaling.scale, clipped, "clip_grad")
            driven.marks = []


def _clipping(frame: FrameType | None) -> Clipped | None:
    """How torch's own functions clip, if they are at work."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_filename == clip_grad.__file__:
            values = frame.f_locals
            gradients = values.get("grads", ())
            if "clip_value" in values:
                bound = float(values["clip_value"])
                return Clipped(f"to values between -{bound:g} and {bound:g}", bound, gradients)
            if "max_norm" in values:
                bound = float(values["max_norm"])
                return Clipped(f"to norm {bound:g}", bound, gradients)
        frame = frame.f_back
    return None


# ---------------------------------------------------------------- how


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
    ) -> Clipped | None:
        """How gradients were clipped, and to which bound; None where they were changed in another way, or perhaps.

        Clipping writes to every gradient that it is given; `all_of` says whether all that were picked changed.
        """
        kept, all_written = [], [gradient for _, gradient in written]
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
            if whole is None or (_round(bound) and not _is_count(1 / whole)):
                how = f"to values between -{bound:g} and {bound:g}"
                return None if _round(bound / scale) else Clipped(how, bound, all_written)
        factors = [_factor(before, after) for before, after, _ in kept]
        factor = factors[0]
        if factor is None or not 0 < factor < 1:
            return None
        alike = [g for f, (_, _, g) in zip(factors, kept, strict=True) if f and abs(f / factor - 1) < 1e-2]
        if len(alike) < len(kept):  # each layer by itself: these are of one
            over, all_written = [alike], alike
        self._judged += 1
        sure = all_of and self._judged <= _FIRST
        found: Clipped | None = None
        for (number, gradients), (order, kind) in itertools.product(enumerate(over), _ORDERS.items()):
            norm = norm_of(gradients, order)
            if self._bounds(number, order, norm, factor, sure):
                if _round(norm / scale):  # the bound knows the scale; with gradients that stand still it is another one
                    return None
                found = found or Clipped(f"to {kind} {norm:.3g}", norm, all_written)
        return found

    def _bounds(self, number: int, order: float, norm: float, factor: float, sure: bool) -> bool:
        """Whether a norm is one that somebody wrote: round, or met twice before with other gradients."""
        seen = self._norms.setdefault((number, order), [])
        known = sure or any(abs(after / norm - 1) < 1e-5 for after, _ in seen)
        alike = [before for after, before in seen if abs(after / norm - 1) < 1e-4]
        alike = [before for before in alike if abs(before * factor / norm - 1) > 1e-2]
        seen.append((norm, norm / factor))
        return (order == 2 and known and _round(norm) and not _is_count(1 / factor)) or len(alike) >= 2


def _factor(before: Tensor, after: Tensor) -> float | None:
    """What all elements were multiplied by; None if they were not."""
    ratio = after[before != 0] / before[before != 0]
    factor = float(ratio.median()) if len(ratio) else 0.0
    return factor if factor and (ratio - factor).abs().max() <= 1e-2 * abs(factor) else None


def _is_count(number: float) -> bool:
    """Whether a divisor counts something: ranks, micro-batches, tokens."""
    return number < 2**17 and abs(number - round(number)) < 1e-3 + 1e-7 * number


def _round(number: float) -> bool:
    """Whether a number has two digits, as bounds have that somebody wrote; one in 6,000 has them by chance."""
    return number > 0 and abs(float(f"{number:.1e}") / number - 1) < 2e-6
