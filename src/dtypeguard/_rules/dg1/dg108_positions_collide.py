"""DG108 positions-collide."""

import math

import torch
from torch import Tensor

from ..._engine.watch.text import outside
from .._kit import LARGEST, Op, Recorder, Rule, Severity, Suspect, name_of, on

RULE = Rule(
    "DG108",
    "positions-collide",
    Severity.WARNING,
    summary="Positions or angles are rounded until neighbours are equal.",
    says="`{what}`: {detail}{effect}",
    fix="compute positions and angles in float32{how}",
    why=(
        "bfloat16 has 8 bits of significand, float16 has 11, float32 has 24: integers above 256, 2048 and 16777216 "
        "are rounded, so neighbouring positions become equal, and the sine of a large angle is noise. So are points of "
        "a `linspace`: 1000 of them between 0 and 1 are 504 in bfloat16."
    ),
    unsafe=("retype_inside", "called_in_wider", "widen_sum", "widen_origins"),
    sampled=True,
    sources=("https://github.com/huggingface/transformers/issues/25681",),
    guesses=True,
)

_EXACT = {torch.bfloat16: 256, torch.float16: 2048}  # integers up to here have one value each
_WHOLE = 2**24  # the same of float32
_APART = 0.9  # of the points of a line
_NEAR = 4  # lines
NOISE = 0.125  # the spacing of angles from which on their sine is none


class Collision(Suspect):
    """Integers that became equal; it harms where they are used as integers again, or as angles."""

    def blame(self, audit: Recorder, effect: str) -> None:
        self.find(audit, effect=f": {effect}")


class Rounded(Collision):
    """Numbers with fractions that are off by as much as angles may not be."""


@on("cast", RULE)
def integers_cast(event: Op, audit: Recorder) -> None:
    source, out = event.inputs[0], event.out
    if event.backward:
        return
    if source.dtype in (*_EXACT, torch.float32) and not out.dtype.is_floating_point and out.dtype is not torch.bool:
        _blame_use(source, f"used as integers at {event.site}", audit, Rounded)
    if not _due(event, source, audit):
        return
    if not source.is_floating_point() or bool((source == source.round()).all()):
        _collide(event, source, source.to(out.dtype), audit)
        return
    off = float((source.double() - source.to(out.dtype).double()).abs().nan_to_num(posinf=0).max())
    if off >= NOISE:  # which harms nothing but angles
        says = f"numbers up to {float(source.abs().max()):g} are off by up to {off:g} in {_name(event)}"
        audit.lineage.mark(out, _collision(event, says, audit, Rounded))


@on("mixed", RULE)
def integers_promoted(event: Op, audit: Recorder) -> None:
    for source in event.kept:
        if not source.is_floating_point() and _due(event, source, audit):
            _collide(event, source, source.to(event.out.dtype), audit)


@on("after", RULE, ops=["arange"])
def integers_made(event: Op, audit: Recorder) -> None:
    if event.out.dtype is torch.float32:
        ends, step = event.args[:2], event.args[2] if len(event.args) > 2 else 1
        most = max(map(abs, ends), default=0)
        if float(step).is_integer() and float(ends[0]).is_integer() and most > _WHOLE * abs(step):
            says = f"integers up to {most:.0f}, of which those above 2**24 are not all there in float32"
            collision = _collision(event, says, audit)
            collision.find(audit, Severity.INFO)
            audit.lineage.mark(event.out, collision)
    elif _due(event, None, audit):
        exact = torch.arange(*event.args, dtype=torch.float64, device=event.out.device)
        if bool((exact == exact.round()).all()):
            _collide(event, exact, event.out, audit)


@on("after", RULE, ops=["linspace"])
def points_made(event: Op, audit: Recorder) -> None:
    """Points of a schedule or a grid: between two equal ones there is no step."""
    out = event.out
    if _due(event, None, audit) and bool(out[0] != out[-1]):
        left = len(torch.unique(out))
        if left < _APART * out.numel():
            _collision(event, f"{out.numel()} points, {left} different ones in {_name(event)}", audit).find(audit)


@on("after", RULE, ops=["cumsum"])
def integers_summed(event: Op, audit: Recorder) -> None:
    source = event.inputs[0]
    if _due(event, None, audit) and bool((source == source.round()).all()):
        _collide(event, source.double().cumsum(event.args[1]), event.out, audit)


def _due(event: Op, source: Tensor | None, audit: Recorder) -> bool:
    """Whether to look at the half numbers that are made here, from others or anew."""
    if event.out.dtype not in _EXACT or not 0 < event.out.numel() <= LARGEST:
        return False
    if source is not None and (source.dtype in (*_EXACT, torch.bool) or source.is_complex()):
        return False
    size = event.out.numel().bit_length()  # the longest sequence may come late
    return event.readable and audit.due("DG108", event.site, event.out.dtype, size)


def _collide(event: Op, exact: Tensor, rounded: Tensor, audit: Recorder) -> None:
    if not exact.numel() or not _EXACT[event.out.dtype] < float(exact.abs().max()) < math.inf:  # nor NaN
        return
    finite = rounded.isfinite()  # what is not is DG105's
    there, left = len(torch.unique(exact[finite])), len(torch.unique(rounded[finite]))
    if left < there:
        collision = _collision(event, f"{there} distinct integers, {left} in {_name(event)}", audit)
        collision.find(audit, Severity.INFO)
        audit.lineage.mark(event.out, collision)


def _blame_use(tensor: Tensor, effect: str, audit: Recorder, unharmed: type[Collision] | None = None) -> None:
    node = audit.lineage.get(tensor)
    for cause in () if node is None else [one.cause for one in node.ancestors()]:
        if isinstance(cause, Collision) and type(cause) is not unharmed:
            cause.blame(audit, effect)


@on("after", RULE, "DG501", ops=["sin", "cos", "sincos"])
def angles(event: Op, audit: Recorder) -> None:
    """The sine of an angle that is rounded to eighths, or to whole numbers."""
    source = event.inputs[0]
    if event.backward:
        return
    _blame_use(source, f"used as angles at {event.site}", audit)
    dtype = _rounded_in(source, audit)
    if dtype is not source.dtype and any(isinstance(cause, Collision) for cause in audit.lineage.causes([source], 64)):
        return  # where they were rounded has been told
    if dtype not in _EXACT or not event.readable or not source.numel():
        return
    if not audit.due("DG108", event.site, event.name):
        return
    largest = float(source.abs().max())
    if not 1 <= largest < math.inf:
        return
    spacing = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(dtype).eps
    if spacing >= NOISE:
        says = f"angles up to {largest:g} have a spacing of {spacing:g}"
        _collision(event, f"{says} in {name_of(dtype)}", audit).find(audit)
        node = audit.lineage.get(source)
        if node is not None:
            audit.blame((node,), f"{says} at {event.site}")


def _name(event: Op) -> str:
    return name_of(event.out.dtype)


def _rounded_in(source: Tensor, audit: Recorder) -> torch.dtype:
    """The dtype that a tensor was computed in: a cast to a wider one brings no digits back."""
    node = audit.lineage.get(source)
    while node is not None and node.op == "_to_copy" and node.parents and node.dtype not in _EXACT:
        node = node.parents[0]
    return source.dtype if node is None else node.dtype


def _collision(event: Op, detail: str, audit: Recorder, kind: type[Collision] = Collision) -> Collision:
    source = event.inputs[0] if event.inputs else event.out
    left = event.autocast and (event.kind == "autocast" or "autocast" in audit.lineage.causes([source], _NEAR))
    how = f" {outside(audit.region()[0])}" if left else " (or as integers), and cast only the result"
    one = audit.suspect(RULE, event, source, detail=detail, effect="", how=how)
    return kind(one.rule, one.site, one.facts, one.fields)
