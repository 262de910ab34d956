"""What PyTorch refuses: its exceptions, with the operands and where their dtypes come from. One rule explains each."""

import enum
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._core.base.errors import DtypeGuardError
from .._engine.watch.events import Operand, Refusal
from .._engine.watch.models import dtype_of
from ._kit import HALF, Recorder, Rule, on

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
# Faults that another family names: of GradScalers, and of optimizers' state.
_OTHERS = re.compile(r"unscale|No inf checks")
_OPTIMIZERS = f"{os.sep}torch{os.sep}optim{os.sep}"
_KINDS = (RuntimeError, TypeError, IndexError, ValueError)  # what torch raises about dtypes and devices
_NOT_TORCHS = re.compile(r"unexpected keyword argument|not understood|has no attribute")
_FEW, _DEEP = 4, 2  # entries of a list, and lists in lists


class Turn(enum.IntEnum):
    """When a rule is asked whether an exception is its own; the first that takes it has it."""

    FUNCTION = 1  # in its backward
    DEVICE = 2
    MESSAGE = 3  # which says what is wrong
    AUTOCAST = 4  # of operands that it made half
    FLOAT64 = 5
    DTYPE = 6  # anything else


@dataclass
class Refused:
    """An exception of PyTorch's about dtypes or devices."""

    event: Refusal
    audit: Recorder
    devices: bool  # whether it is about devices
    operands: list[Operand]
    models: torch.dtype | None  # the dtype of the model that refused them
    odd: list[Operand]  # those that stand against their model, against the parameters, or against most

    @property
    def floats(self) -> set[torch.dtype]:
        return {operand.dtype for operand in self.operands if operand.dtype.is_floating_point}

    @property
    def integers(self) -> list[Operand]:
        return [o for o in self.operands if not o.dtype.is_floating_point and not o.dtype.is_complex]

    @property
    def autocasts(self) -> list[Operand]:
        """Those that autocast made half."""
        return [
            operand
            for operand in self.operands
            if operand.dtype in HALF and operand.node is not None
            if any(ancestor.cause == "autocast" for ancestor in operand.node.ancestors())
        ]

    def tell(
        self, rule: Rule, odd: Iterable[Operand] = (), wanted: torch.dtype | None = None, **facts: Any
    ) -> bool:  # fmt: skip
        """Enter it for a rule, which may know better who is to blame, and the dtype that is wanted of those."""
        event, odd = self.event, list(odd) or self.odd
        what = event.site.expression or event.op or "the call"
        blamed = "".join(f"; {operand}" for operand in odd[:_FEW])
        floats = [operand.dtype for operand in self.operands if operand.dtype.is_floating_point]
        origin = odd[0].node.line() if odd and odd[0].node is not None else ()
        self.audit.enter_refusal(
            event, rule.id, event.site, [operand.node for operand in self.operands if operand.node is not None],
            dtypes=not self.devices, module=event.module, op=event.op,
            facts={"what": what, "reason": event.reason, "operands": blamed, **facts},
            origin=tuple(map(str, origin)) if self.devices else origin,  # the birth of a dtype is no fault of a device
            from_dtype=odd[0].dtype if odd else None,
            to_dtype=wanted or next((dtype for dtype in floats if not odd or dtype is not odd[0].dtype), None),
            bytes=odd[0].size if odd else 0,
        )  # fmt: skip
        return True


Explain = Callable[[Refused], bool]
_ASKED: list[tuple[Turn, Any]] = []


def explains(turn: Turn) -> Callable[[Explain], Explain]:
    """Ask the function, at its turn, whether an exception is its rule's own; it enters it then.

    Of those of one turn at most one says yes.
    """

    def register(function: Explain) -> Explain:
        _ASKED.append((turn, function))
        _ASKED.sort(key=lambda row: row[0])
        return function

    return register


def explaining() -> frozenset[str]:
    """The rules that explain exceptions."""
    return frozenset(function.__globals__["RULE"].id for _, function in _ASKED)


@on("refused")
def refused(event: Refusal, audit: Recorder) -> None:
    """Which rule explains an exception."""
    reason, devices = event.reason, bool(_DEVICES.search(event.reason))
    about_types = _DTYPES.search(reason) or (_TYPES.search(reason) and _WISHES.search(reason))
    if event.own or not (devices or about_types) or _NOT_TORCHS.search(reason) or not is_about_tensors(event):
        return
    if _OPTIMIZERS in event.frame.f_code.co_filename and "for `end`" in reason:
        return
    operands, models = operands_of(event, audit), dtype_of(event.module, audit)
    it = Refused(event, audit, devices, operands, models, list(_odd(operands, devices, models)))
    for _, explain in _ASKED:
        if explain(it):
            return


def is_about_tensors(event: Refusal) -> bool:
    """Whether it may be about dtypes or devices, and no other family names it."""
    known = isinstance(event.error, _KINDS) and not isinstance(event.error, DtypeGuardError)
    return known and not _OTHERS.search(event.reason)


def _odd(operands: list[Operand], devices: bool, models: torch.dtype | None) -> list[Operand]:
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


def operands_of(event: Refusal, audit: Recorder) -> list[Operand]:
    """The tensors of the operation; where it was refused above the dispatcher, those that the code names.

    In a library's function, and where the code names none, those in sight.
    """
    if event.operands:
        return event.operands
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in event.frame.f_locals.items():
        for inner, tensor in _in_sight(name, value):
            found.setdefault(id(tensor), (inner, tensor))
    code = event.site.expression or ""
    own = event.frame.f_code.co_filename == event.site.file
    named = [row for row in found.values() if own and re.search(rf"(?<![\w.]){re.escape(row[0])}\b", code)]
    return [Operand.of(name, tensor, audit.lineage.get(tensor)) for name, tensor in named or found.values()]


def _in_sight(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a variable, in lists of lists too, by what code calls them."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{key}", parameter) for key, parameter in value.named_parameters(recurse=False))
    elif isinstance(value, (list, tuple)) and name.count("[") < _DEEP:
        for number, part in enumerate(value[:_FEW]):
            yield from _in_sight(f"{name}[{number}]", part)
