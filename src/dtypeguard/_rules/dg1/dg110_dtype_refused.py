"""DG110 dtype-refused."""

import re
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF, PIXELS
from ..._engine.watch.events import Operand
from .._kit import Rule, Severity, name_of
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG110",
    "dtype-refused",
    Severity.ERROR,
    summary="PyTorch refuses an operand because of its dtype.",
    says="`{what}` was refused: {reason}{operands}",
    fix="{advice}",
    why="PyTorch's message names neither the argument nor where its dtype comes from.",
    safe=("float32_at_birth", "cast_operands", "cast_to_narrow"),
    unsafe=("out_of_place", "floats_at_birth", "convert_model"),
    converts=False,
    sources=(
        "https://github.com/pytorch/pytorch/issues/105243",
        "https://github.com/pytorch/pytorch/issues/102922",
    ),
)


def _indices(it: Refused) -> list[Operand]:
    """What is no index: integers that are too narrow, or floats where an index is."""
    narrow = [o for o in it.integers if o.dtype not in (torch.int64, torch.bool)]
    return narrow or [o for o in it.operands if o.dtype.is_floating_point and not o.held][-1:]


def _conditions(it: Refused) -> list[Operand]:
    return [o for o in it.operands if o.name != "operand 0" and o.dtype is not torch.bool] or it.integers


class Says(NamedTuple):
    """What PyTorch says, the dtype that it wants, what to write, and which operands are to blame."""

    pattern: str
    wanted: torch.dtype | None
    advice: str
    blamed: Callable[[Refused], list[Operand]]


_SAYS = (
    Says(
        r"dtype Long but expected (Float|Double)", torch.float32, "`.to(torch.float32)` on the targets",
        lambda it: it.integers,
    ),
    Says(r"to be a boolean tensor|boolean masks", torch.bool, "`.bool()` on the condition or mask", _conditions),
    Says(
        r"as indices must be|for index|Long but (got|found)|scalar types: Long|be Long or|LongTensor"
        r"|expected scalar type Long",
        torch.int64, "`.long()` on the indices or class targets", _indices,
    ),
    Says(
        r"float or double", torch.float32, "`.float()` first",
        lambda it: [o for o in it.operands if o.dtype in HALF] or it.integers,
    ),
    Says(r"bool tensor", None, "`~mask` in place of `1 - mask`, or `mask.float()`", lambda it: it.odd),
)  # fmt: skip


@explains(Turn.MESSAGE)
def integers_refused(it: Refused) -> bool:
    for one in _SAYS:
        if re.search(one.pattern, it.event.reason):
            blamed = one.blamed(it)
            advice = (_in_half(blamed[0]) if blamed and one.wanted is torch.int64 else None) or one.advice
            return it.tell(RULE, blamed, one.wanted, advice=advice)
    return False


def _in_half(indices: Operand) -> str | None:
    """What to write for indices that are in half precision: a cast back finds others."""
    if indices.dtype not in HALF:
        return None
    birth = None if indices.node is None else indices.node.birth
    where = "" if birth is None or birth.named else f": do not cast them in `{birth.site.expression}` at {birth.site}"
    return f"leave indices and class targets integers{where}; {name_of(indices.dtype)} rounds large ones"


# ---------------------------------------------------------------- results that what is written to cannot hold

_RESULT = re.compile(r"result type (\w+) can't be cast")
_NAMES = {"Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64, "ComplexFloat": torch.complex64}
_LACKS = re.compile(r"not implemented for '(\w+)'$")
_OF_KERNELS = {"Float": torch.float32, "Long": torch.int64, "Int": torch.int32, "Bool": torch.bool, **_NAMES}
_OPERATORS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/", "pow_": "**"}


@explains(Turn.MESSAGE)
def result_refused(it: Refused) -> bool:
    found, op = _RESULT.search(it.event.reason), it.event.op or ""
    if found is None:
        return False
    dtype, integers = _NAMES.get(found[1], torch.float32), it.integers
    if op.startswith("clamp") and op.endswith("_") and integers:
        return it.tell(RULE, integers[:1], integers[0].dtype, advice="`.long()` on the bounds, which are floats")
    if op.endswith("_"):
        wanted = None if found[1] not in _NAMES and found[1] != "Float" else dtype
        written = f"`x = x.{op[:-1]}(...)` in place of `x.{op}(...)`"
        if sign := _OPERATORS.get(op):
            written = f"`x = x {sign} y` in place of `x {sign}= y`"
        made = f", or `.to(torch.{name_of(wanted)})` where it is made" if wanted else ""
        holds = "; of buffers that a model holds leave integers out: `if x.is_floating_point():`" if integers else ""
        advice = f"a tensor keeps its dtype when it is written to: {written}{made}{holds}"
        return it.tell(RULE, it.operands[:1], wanted, advice=advice)
    what = "the integers" if it.floats else "`out`"
    return it.tell(RULE, integers, dtype, advice=f"`.to(torch.{name_of(dtype)})` on {what}")


# ---------------------------------------------------------------- anything else

_ODD = "cast the operand whose dtype differs: "


@explains(Turn.DTYPE)
def refused(it: Refused) -> bool:
    """Operands of several dtypes, and nothing else."""
    lacks = _LACKS.search(it.event.reason)
    of_it = [o for o in it.operands if lacks is not None and o.dtype is _OF_KERNELS.get(lacks[1])]
    if 0 < len(of_it) < len(it.operands) and not (it.event.op or "").startswith("index"):
        wanted, advice = _alone(of_it[0].dtype)
        if any(o.dtype is torch.bool for o in it.operands):
            wanted, advice = torch.bool, "`.bool()` first"
        return it.tell(RULE, of_it, wanted, advice=advice)
    if len(it.floats) == 1 and it.integers:
        pixels = PIXELS * any(one.dtype is torch.uint8 for one in it.integers)
        return it.tell(RULE, it.integers, advice=f"{_ODD}`.to(torch.{name_of(next(iter(it.floats)))})`{pixels}")
    if len(it.operands) <= 1:
        wanted, advice = _alone(it.operands[0].dtype if it.operands else _named(it.event.reason))
        return it.tell(RULE, (), wanted, advice=advice)
    like = next((name_of(o.dtype) for o in it.operands if o not in it.odd), None)
    advice = f"{_ODD}`.to(torch.{like})`" if like else "cast one side to the dtype of the other"
    if like and it.odd[0].held:
        other = f"cast what it gets: `.to(torch.{name_of(it.odd[0].dtype)})`"
        advice = f"convert the layer like its model, `.to(torch.{like})`, or {other}"
    elif like and (made := _made_like(it)):
        advice = made
    return it.tell(RULE, advice=advice)


def _made_like(it: Refused) -> str | None:
    """The argument that gives the dtype of the program's own tensor to one that is made in its sizes."""
    birth = None if it.odd[0].node is None else it.odd[0].node.birth
    if birth is None or birth.named or birth.parents:
        return None
    frame: FrameType | None = it.event.frame
    while frame is not None and not birth.site.is_of(frame):
        frame = frame.f_back
    seen = {} if frame is None else frame.f_locals
    for name in birth.site.sized_by:
        value = seen.get(name)
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            return f"write `dtype={name}.dtype` in `{birth.site.expression}` at {birth.site}"
    return None


def _named(reason: str) -> torch.dtype:
    """The dtype that PyTorch names, of an operand that no variable holds."""
    half = re.search(r"\b(Half|BFloat16)\b", reason)
    return _NAMES[half[1]] if half else torch.int64 if "nteger" not in reason else torch.float32


def _alone(dtype: torch.dtype) -> tuple[torch.dtype | None, str]:
    """What is wanted of an operation's only operand, and what to write."""
    if dtype.is_complex:
        return None, "`.abs()`, `.real` or `torch.view_as_real(...)` first"
    if dtype in (torch.float32, torch.float64):
        return None, "`.bool()` first for a mask, `.long()` for whole numbers"
    return torch.float32, "`.float()` first"
