"""DG110, DG505 and what else PyTorch refuses: its exceptions, with the operands and where their dtypes come from."""

import os
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .._base.dtypes import name_of
from .._base.errors import DtypeGuardError
from .._watch.events import Operand, Refusal, on
from .._watch.lineage import Node
from .._watch.models import dtype_of
from .._watch.recorder import Recorder
from .autocast import enter
from .promotions import HALF, creep

_DTYPES = re.compile(
    r"dtype|scalar type|data type|c10::|\b(Half|BFloat16|Double)\b|Input type|not implemented for '|as indices must be"
    r"|without overflow|unsafe to autocast|ComplexFloat|result type|bool tensor|of type LongTensor|ScalarType"
    r"|same type as tensor|Integral inputs|(bool|uint8|complex) input|types other than float|integer input type"
)
# A dtype as C++ has it, in a sentence about what is wanted.
_TYPES = re.compile(
    r"\b(Long|Int|Short|Byte|Char|Bool|Float|Double|Half|BFloat16|ComplexFloat|ComplexDouble|BoolTensor|LongTensor"
    r"|FloatTensor|DoubleTensor|HalfTensor|[Ii]ntegral|[Bb]oolean|[Cc]omplex|floating[ -]point|long|int64)\b"
)
_WISHES = re.compile(
    r"expect|support|must|should|\bgot\b|\bGot\b|match|promot|implemented|may not|requires|handle types"
)
_DEVICES = re.compile(
    r"same device|on the same device|different devices?\b|two devices|is on (cpu|cuda|meta|mps|xpu)"
    r"|not on the expected device|1D CPU int64 tensor|device type for generator|to have (meta|cpu|cuda) Device"
    r"|to be on cpu, but|into non-meta|called on meta tensors|out of meta|device type tensor to numpy"
)
_HALF_WORDS = re.compile(r"fp16|bf16|float16|bfloat16|\bhalf\b", re.IGNORECASE)
_WANTS = re.compile(r"d-?type|data ?type|support|expect|require|must|precision|got torch\.", re.IGNORECASE)
# Faults that another family names: of GradScalers, and of optimizers' state.
_OTHERS = re.compile(r"unscale|No inf checks")
_OPTIMIZERS = f"{os.sep}torch{os.sep}optim{os.sep}"
_BY_INDEX = re.compile(
    r"Index put|index_put|scatter|index_add|index_copy|masked_scatter|torch\.cat|Expected self\.dtype"
)
_KINDS = (RuntimeError, TypeError, IndexError, ValueError)  # what torch raises about dtypes and devices
_NOT_TORCHS = re.compile(r"unexpected keyword argument|not understood|has no attribute")
_FEW = 4


@on("refused")
def refused(event: Refusal, audit: Recorder) -> None:
    """Which rule explains an exception."""
    reason = str(event.error).partition("\n")[0]
    if not isinstance(event.error, _KINDS) or isinstance(event.error, DtypeGuardError) or _OTHERS.search(reason):
        return
    if _OPTIMIZERS in event.frame.f_code.co_filename and "for `end`" in reason:
        return
    if _is_users(event):
        if event.autocast and _HALF_WORDS.search(reason) and _WANTS.search(reason):
            _outside_autocast(event, reason, audit)
        return
    devices = bool(_DEVICES.search(reason))
    about_types = _DTYPES.search(reason) or (_TYPES.search(reason) and _WISHES.search(reason))
    if not (devices or about_types) or _NOT_TORCHS.search(reason):
        return
    if event.function is not None and enter(
        audit, event.function, f"its backward failed at {event.site}: {reason}", event
    ):
        return
    operands = _operands(event, audit)
    models = dtype_of(event.module, audit)
    odd = list(_odd(operands, devices, models))
    rule, facts = _explain(event, reason, operands, odd, models)
    origin = odd[0].node.line() if odd and odd[0].node is not None else ()
    floats = [o.dtype for o in operands if o.dtype.is_floating_point]
    facts = {
        "what": event.site.expression or event.op or "the call",
        "reason": reason,
        "operands": "".join(f"; {operand}" for operand in odd[:_FEW]),
        **facts,
    }
    audit.refuse(
        event, rule, event.site, [operand.node for operand in operands if operand.node is not None],
        module=event.module, op=event.op, facts=facts, origin=origin, from_dtype=odd[0].dtype if odd else None,
        to_dtype=next((dtype for dtype in floats if not odd or dtype is not odd[0].dtype), None),
        bytes=odd[0].size if odd else 0,
    )  # fmt: skip


def _integers(operands: list[Operand]) -> list[Operand]:
    return [o for o in operands if not o.dtype.is_floating_point and not o.dtype.is_complex]


def _indices(operands: list[Operand]) -> list[Operand]:
    """What is no index: integers that are too narrow, or floats where an index is."""
    narrow = [o for o in _integers(operands) if o.dtype not in (torch.int64, torch.bool)]
    return narrow or [o for o in operands if o.dtype.is_floating_point and not o.held][-1:]


def _conditions(operands: list[Operand]) -> list[Operand]:
    return [o for o in _integers(operands) if o.dtype is not torch.bool]


# What PyTorch says: the rule, what to write, and which operands are to blame where it is not the odd one out.
_SAYS: tuple[tuple[str, str, str, Any], ...] = (
    (r"unsafe to autocast", "DG204", "", None),
    (r"cannot be converted to type .* without overflow", "DG206", "", None),
    (
        r"result type \w+ can't be cast", "DG110",
        "an integer tensor takes no fractions: leave it out, or `.round().to(dtype)` where it is meant", None,
    ),
    (r"dtype Long but expected (Float|Double)", "DG110", "`.to(torch.float32)` on the targets", _integers),
    (r"to be a boolean tensor", "DG110", "`.bool()` on the condition", _conditions),
    (
        r"as indices must be|for index|Long but (got|found)|scalar types: Long|be Long or|LongTensor"
        r"|expected scalar type Long",
        "DG110", "`.long()` on the indices or class targets", _indices,
    ),
    (r"bool tensor", "DG110", "`~mask` in place of `1 - mask`, or `mask.float()`", None),
)  # fmt: skip


def _explain(
    event: Refusal, reason: str, operands: list[Operand], odd: list[Operand], models: torch.dtype | None
) -> tuple[str, dict[str, Any]]:
    """The rule, and what its texts need besides the common facts; `odd` are the operands to blame."""
    if _DEVICES.search(reason):
        advice = "move it: `.to(x.device)`; a tensor that belongs to a module is a buffer of it"
        return "DG505", {"advice": "`.cpu()` on the lengths" if "lengths" in reason else advice}
    if event.autocast and _BY_INDEX.search(reason):
        advice = "make the target like the values: `values.new_zeros(...)`, or cast: `values.to(target.dtype)`"
        return "DG203", {"advice": advice}
    for says, rule, advice, blamed in _SAYS:
        if re.search(says, reason):
            odd[:] = (blamed(operands) if blamed else []) or odd
            return rule, {"advice": advice}
    return _mixture(event, operands, odd, models)


def _mixture(
    event: Refusal, operands: list[Operand], odd: list[Operand], models: torch.dtype | None
) -> tuple[str, dict[str, Any]]:
    """Operands of several dtypes, and nothing else."""
    floats = {o.dtype for o in operands if o.dtype.is_floating_point}
    left = [o for o in operands if o.node is not None and o.dtype in HALF and _was_autocast(o.node)]
    if left and event.autocast:
        return "DG203", {"advice": "`.float()` on what autocast made half, or `.to(x.dtype)` on the other"}
    if left and left[0].node is not None:
        odd[:] = left
        others = " and ".join(sorted(map(name_of, floats - HALF))) or "other dtypes"
        born = f" at {left[0].node.birth.site}"
        return "DG201", {"dtype": name_of(left[0].dtype), "born": born, "other": f"meets {others}"}
    if torch.float64 in floats and len(floats) > 1 and models is not torch.float64:
        nodes = tuple(o.node for o in odd if o.node is not None and o.dtype is torch.float64)
        narrow = min(floats, key=lambda dtype: dtype.itemsize)
        return "DG101", {**creep(nodes, narrow), "how": "was refused: it mixes", "size": ""}
    integers = _integers(operands)
    if len(floats) == 1 and integers:
        odd[:] = integers
        return "DG110", {"advice": f"`.to(torch.{name_of(next(iter(floats)))})`"}
    if len(operands) == 1:
        return "DG110", {"advice": "`.float()` first"}
    like = next((name_of(o.dtype) for o in operands if o not in odd), None)
    if like and odd[0].held:
        other = f"what it gets: `.to(torch.{name_of(odd[0].dtype)})`"
        return "DG110", {"advice": f"convert the layer like its model, `.to(torch.{like})`, or {other}"}
    return "DG110", {"advice": f"`.to(torch.{like})`" if like else "cast one side to the dtype of the other"}


def _was_autocast(node: Node) -> bool:
    return any(ancestor.cause == "autocast" for ancestor in node.ancestors())


def _odd(operands: list[Operand], devices: bool, models: torch.dtype | None) -> list[Operand]:
    """Those that stand against their model, against the parameters, or against most."""
    if devices:
        usual: Any = _usual((o.device for o in operands), [o.device for o in operands if o.held])
        return [o for o in operands if o.device != usual]
    floats = [o for o in operands if o.dtype.is_floating_point]
    if models in {o.dtype for o in floats}:
        usual = models
    else:
        usual = _usual((o.dtype for o in floats), [o.dtype for o in floats if o.held])
    return [o for o in floats if o.dtype is not usual] or operands


def _usual(all_of: Iterable[Any], held: list[Any]) -> Any:
    """What most are; float64 only where a parameter is."""
    counts: dict[Any, int] = {}
    for one in held or all_of:
        counts[one] = counts.get(one, 0) + 1
    return max(counts, key=lambda one: (bool(held) or one is not torch.float64, counts[one])) if counts else None


def _operands(event: Refusal, audit: Recorder) -> list[Operand]:
    """The tensors of the operation; where it was refused above the dispatcher, those in sight of the line."""
    if event.operands:
        return event.operands
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in event.frame.f_locals.items():
        if isinstance(value, Tensor):
            found.setdefault(id(value), (name, value))
        elif isinstance(value, nn.Module):
            for key, parameter in value.named_parameters(recurse=False):
                found.setdefault(id(parameter), (f"{name}.{key}", parameter))
        elif isinstance(value, (list, tuple)):
            for number, part in enumerate(value[:_FEW]):
                if isinstance(part, Tensor):
                    found.setdefault(id(part), (f"{name}[{number}]", part))
    return [Operand.of(name, tensor, audit.lineage.get(tensor)) for name, tensor in found.values()]


def _is_users(event: Refusal) -> bool:
    """Whether the program raised it: its line is a `raise`, no call of torch."""
    return event.op is None and event.site.raises


def _outside_autocast(event: Refusal, reason: str, audit: Recorder) -> None:
    """Code of the user's own, or of an extension, that took for granted that autocast casts for it."""
    wrong = next((operand for operand in _operands(event, audit) if operand.dtype is torch.float32), None)
    if wrong is None:
        return
    facts = {
        "what": event.caller.expression, "dtype": f"`{wrong.name}` in float32", "reason": reason,
        "device": wrong.device.partition(":")[0],
    }  # fmt: skip
    audit.refuse(
        event, "DG205", event.caller, [], module=event.module, op=event.site.function, facts=facts,
        from_dtype=wrong.dtype, bytes=wrong.size, origin=() if wrong.node is None else wrong.node.line(),
    )  # fmt: skip
