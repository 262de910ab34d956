"""DG115 constant-rounded."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._kit import HALF, LARGEST, Op, Recorder, Rule, Severity, around, name_of, on, readable, size_of

RULE = Rule(
    "DG115",
    "constant-rounded",
    Severity.WARNING,
    summary="A constant rounds to 0 or 1 in half precision.",
    says="`{what}`: {value:g} becomes {becomes:g} in {dtype}",
    fix="{advice}",
    why=(
        "Below 1 bfloat16 has 0.996 and float16 0.9995 as the next number, so a decay of 0.9985 or a beta of 0.9999 is "
        "1, and nothing decays; an epsilon of 1e-8 is 0 in float16. A number of Python is rounded only in the result."
    ),
    explains=("DG9",),
    unsafe=("retype_inside", "widen_operands"),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo",),
)

_COMPARED = "compute in float32, `.float()` on the tensor: the number is rounded to the dtype of the tensor"
_FEW = 4  # numbers, which are settings and no data


@around(torch, "tensor", rule=RULE)
def _tensor(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    out = original(*args, **kwargs)
    if isinstance(out, Tensor) and out.dtype in HALF and args and out.numel() <= _FEW:
        audit.guarded(_look_at_data, audit, args[0], out)
    return out


def _look_at_data(audit: Recorder, data: Any, out: Tensor) -> None:
    numbers: list[Any] = [data] if isinstance(data, float) else [*data] if isinstance(data, (list, tuple)) else []
    if readable(out) and all(isinstance(one, (int, float)) for one in numbers):
        site = audit.here()
        fields = {"site": site, "module": audit.module(), "op": "tensor", "bytes": size_of(out)}
        _report_rounded(audit, numbers, out, site.expression or site.source, fields, alone=isinstance(data, float))


@on("after", RULE, ops=["full", "new_full"])
def filled(event: Op, audit: Recorder) -> None:
    if isinstance(event.out, Tensor) and event.out.dtype in HALF and event.readable:
        numbers = [value for value in event.args if isinstance(value, float)]
        _report_rounded(audit, numbers, event.out, event.what, _fields(event))


@on("after", RULE, ops=["lt", "le", "gt", "ge"])
def compared(event: Op, audit: Recorder) -> None:
    """`p <= 0.999`: a half tensor is compared with 1, if a value shows it."""
    source, number = event.args[0], event.args[1]
    if not isinstance(number, float) or source.dtype not in HALF or not event.readable or event.backward:
        return
    if not 0 < source.numel() <= LARGEST or not audit.due("DG115", event.site, event.name):
        return
    if int((event.func(source.double(), number) != event.out).sum()):
        _report_rounded(audit, [number], source, event.what, _fields(event), advice=_COMPARED)


@on("after", RULE, ops=["clamp", "clamp_max", "clamp_min"])
def clamped(event: Op, audit: Recorder) -> None:
    """`p.clamp(max=1 - 1e-6)`, which lets a 1 through."""
    out, numbers = event.out, [number for number in event.args[1:] if isinstance(number, float) and abs(number) < 1]
    if out.dtype not in HALF or not event.readable or not numbers or not 0 < out.numel() <= LARGEST:
        return
    for number in numbers if audit.due("DG115", event.site, event.name) else ():
        if _rounded(number, out.dtype) == math.copysign(1, number) and bool((out == math.copysign(1, number)).any()):
            _report_rounded(audit, [number], out, event.what, _fields(event), advice=_COMPARED)


@on("cast", RULE)
def narrowed(event: Op, audit: Recorder) -> None:
    """`torch.tensor(0.9985).bfloat16()`: a number of the code, and nothing that was computed."""
    source = event.inputs[0]
    if event.out.dtype not in HALF or source.ndim or not event.readable or event.kind == "autocast":
        return
    node = audit.lineage.get(source)
    if node is not None and node.op == "tensor" and source.is_floating_point():
        _report_rounded(audit, [float(source)], event.out, event.what, _fields(event))


def _fields(event: Op) -> dict[str, Any]:
    return {"site": event.site, "module": event.module, "op": event.name, "bytes": size_of(event.out)}


def _short(value: float) -> str:
    """The fewest digits by which float32 has the same number: 1e-09, and not 9.999999717180685e-10."""
    same = torch.tensor(value)
    return next((text for n in range(1, 9) if torch.tensor(float(text := f"{value:.{n}g}")) == same), repr(value))


def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def _report_rounded(
    audit: Recorder, numbers: list[float], out: Tensor, what: str, fields: dict[str, Any], alone: bool = True,
    advice: str | None = None,
) -> None:  # fmt: skip
    for value in numbers:
        rounded = _rounded(value, out.dtype)
        if value != rounded and rounded in (0.0, 1.0, -1.0):
            facts = {
                "what": what, "value": value, "becomes": rounded, "dtype": name_of(out.dtype),
                "advice": advice or f"keep it as a number of Python, or in float32: `torch.tensor({_short(value)})`",
            }  # fmt: skip
            severity = None if alone else Severity.INFO  # it may be data
            audit.find(RULE, facts=facts, severity=severity, to_dtype=out.dtype, **fields)
            return
