"""DG904 decision-flipped."""

import math
import re

import torch

from ..._core.base.dtypes import HALF, name_of
from ..._engine.values.choices import ORDERS
from ..._engine.values.rows import Row
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._harm import casts, compute, enter, keep, lost_before, number, wide_of

RULE = Rule(
    "DG904",
    "decision-flipped",
    Severity.WARNING,
    summary="Rounding changes a choice: an index, an order, a comparison.",
    says="`{what}`: {harm}{rounded}{lost}",
    fix="{advice}",
    at_birth=True,
    why=(
        "An `argmax`, a `topk`, a comparison or a cast to integers makes a whole difference of a rounding error: "
        "another expert, another token, a frame more or less. In half precision a few choices that are nearly a draw "
        "always come out otherwise, and that does no harm. It does where many choices do, or where a choice is right "
        "in one dtype only, as that of 0.7 in float32 by 0.7 in float64. It needs an audit with `values=True`."
    ),
    unsafe=(
        "whole_division", "near_equal", "whole_numbers", "narrow_behind_difference", "float64_inside",
        "widen_rounding", "retype_inside", "widen_behind", "widen_origins",
    ),
    converts=False,
    sources=("https://github.com/NVIDIA/TensorRT-LLM/issues/3847",),
)  # fmt: skip

_TOLERANT = frozenset(["isclose", "allclose", "assert_close"])  # which ask for equality first
_VALUES = frozenset(["quantile", "nanquantile"])  # which sort, and give no places
_ROUNDS = re.compile(r"\b(round|floor|ceil|trunc)\b")
_FAR = 0.02  # an error for which what is compared alone is not to blame
_MANY = 0.2  # of all choices
_LED = 0.1  # of those that lead the program, one by one
_SOME = 0.02  # of the rows of a `topk`
_RARE = 0.5, 64  # of the comparisons that are true, or that are false, where these are few; and how many


@on("decided", RULE)
def flipped(row: Row, audit: Recorder) -> None:
    if row.changed is None or (row.looked_up and row.site.calls in _TOLERANT):
        return
    if (row.name == "sort" and row.site.calls in _VALUES) or row.site.first_alone:  # nobody has the places
        return
    sure = row.flipped >= (_LED if row.steers else _MANY) * row.decided or row.wrong is not None
    rare = _rare(row)
    sure, (others, rows) = sure or row.ranks[0] > 0 or rare is not None, row.sets
    if not sure and not others > _SOME * rows:
        return
    earlier, lost = False, None
    was, is_ = row.changed if sure or row.other_place is None else row.other_place
    if row.looked_up and math.isnan(was):  # equal to nothing
        return
    if row.looked_up in HALF:
        narrow = name_of(row.looked_up)
        harm = f"{row.flipped} of {row.decided} compare what is equal in {narrow}: {was:.9g} with {is_:.9g}"
        side = "left" if _rounded(was, row.looked_up) == was else "right"
        advice = f"compare the {side} side as it was before it was rounded to {narrow}"
    elif row.looked_up and (row.name in ORDERS or (was != is_ and _rounded(was) == _rounded(is_))):
        harm = f"{row.flipped} of {row.decided} compare what is equal in float32: {was:.9g} with {is_:.9g}"
        side = "right" if _rounded(was) == was else "left"
        where = f"the {side} side" if row.name != "isin" else "what is looked for" if side == "left" else "the elements"
        advice = f"compare both in float32: `.to(torch.float32)` on {where}, which is float64"
    elif row.looked_up:
        pair = f": {was:.9g} for {is_:.9g}" * (f"{was:.9g}" != f"{is_:.9g}")
        harm = f"{row.flipped} of {row.decided} equal values are not found{pair}"
        advice = "round both sides to one dtype, or look for the nearest: `(table - value).abs().argmin()`"
    else:
        verb = "comes" if row.flipped == 1 else "come"
        harm = f"{row.flipped} of {row.decided} {verb} out otherwise than in {wide_of(row)}{rare or ''}"
        if row.ranks[0]:
            which = f"the first {row.ranks[1]} places hold" if row.name == "sort" else f"{row.ranks[1]} ranks are"
            harm = f"{row.ranks[0]} of {which} others than in {wide_of(row)}"
        elif not sure:
            harm = f"{others} of {rows} rows have other places than in {wide_of(row)}"
        harm += f": {number(was)} instead of {number(is_)}"
        integers, before = _integers(row), keep(row)
        wide = row.dtype not in HALF  # in half precision all that it is computed from has few digits
        lost = None if integers or before else lost_before(row)
        if lost is not None and not wide and not casts(lost):
            lost = None
        other = row.parent is not None and (row.parent.error > _FAR if wide else row.parent.site.key != row.site.key)
        far = row.rounded() if other else None
        if far is not None and far.site is not row.site:
            before = before or compute(far)
        if lost is not None:
            before = compute(lost, "it makes roundings large")
        advice, earlier = before or _computed(row), before is not None or row.name == "_to_copy"
        if integers is not None:
            advice, earlier = integers
    cast, severity = row.rounded(), None
    if not sure:
        if cast is not None and cast.name == "_to_copy" and cast is row.parent:  # it was wide one line before
            advice = f"decide before the cast: `{cast.site.expression}` at {cast.site} makes ties"
            earlier = False
        else:
            severity = Severity.INFO
    enter(RULE, audit, row, {"harm": harm, "advice": advice}, None, severity, lost, earlier)


def _rounded(value: float, dtype: torch.dtype = torch.float32) -> float:
    """The number of a dtype that is nearest."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def _rare(row: Row) -> str | None:
    """What comes out seldom, and is not what it would be: a filter that lets too much through."""
    few, (share, least) = min(row.sides), _RARE
    if few < least or row.flipped <= share * few or row.flipped >= _MANY * row.decided:
        return None
    return f", where {few} are {few == row.sides[0]}"


def _computed(row: Row) -> str:
    """Where it is computed; a cast to integers compares nothing, it cuts fractions off."""
    if row.name != "_to_copy":
        return f"compute what is compared in {wide_of(row)}"
    if _ROUNDS.search(row.site.source):
        return f"compute in {wide_of(row)} what is rounded"
    if row.changed is not None and 2 * row.half_ulp * abs(row.changed[1]) >= 1:  # whole numbers further apart than 1
        return f"compute in {wide_of(row)} what is cast, or make it of integers"
    return f"`.round()` before the cast, where whole numbers are meant; else compute in {wide_of(row)} what is cast"


def _integers(row: Row) -> tuple[str, bool] | None:
    """What to do about integers that a float does not have, and whether that is at the line of a cast."""
    step = next((step for step in row.chain() if step.integers), None)
    if step is None:
        return None
    if step.name == "_to_copy":
        return f"keep integers as they are: `{step.site.expression}` at {step.site} rounds them", True
    return 'compute it in integers: `//`, `%`, `torch.div(..., rounding_mode="floor")`', False
