"""Exceptions, warnings, and the one renderer of their messages.

DtypeGuardError (TypeError)
  DtypeError       a tensor's dtype
  ShapeError       its rank or an axis
  DeviceError      its device
  CastError        lenient mode met a repair that the casting rule forbids
  HintError        any other annotation, or no tensor at all
  AnnotationError  the annotation itself is malformed
  AmpError         misuse of autocast, GradScaler or optimizer
  RankError        ranks hold tensors that do not match
  CompareError     `compare` cannot run the model, or measure what it returns
  StateError       what a model holds is not what a manifest says
DtypeGuardWarning (UserWarning)
  CastWarning            a repair happened here for the first time
  InplaceOnCastWarning   the body changed a cast copy; the caller's object did not follow
  ContractWarning        mode "warn" found a violation
  AmpWarning             a rule about autocast, GradScaler or optimizer found something
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from . import codes, private
from .dtypes import name_of
from .quiet import quiet


class _Code:
    """The code of a class; of an error that Dynamo built from its text, and only that, the one that the text has."""

    def __get__(self, error: BaseException | None, kind: "type[DtypeGuardError]") -> str | None:
        told = None if error is None else re.search(r" \[(DG\d+)\]; ", str(*error.args[:1]).partition("\n")[0])
        return kind._code if told is None else told[1]


class DtypeGuardError(TypeError):
    """Base class of all errors of dtypeguard. The attributes have the facts of the message.

    Attributes:
        code: the id of the mistake (`DG001`) or the rule. `python -m dtypeguard rules DG001` explains it, as does the
            page that the last line of the message names.
        fix: what to write instead; None if the message has no such line. Where another mode would repair the value,
            only the message says so.
        expression: what the caller wrote for the first wrong value, `batch["image"]`; None if it is the name of the
            parameter, or not known.
        argument: the first wrong value, as Python writes it (`x`, `batch[57]`, `cond['pooled']`).
        expected: what it should be: a `torch.dtype`, a `torch.device`, or text.
        actual: what it is: a `torch.dtype`, a `torch.device`, a shape, or text.
        function: the function whose contract is violated.
        module_path: the path of the module in the guarded model (`UNet.time_mlp.0`), if known.
        call_site: `file:line` of the call.
        axes: the sizes that names in annotations have in this call.
        origin: during an audit, the lines that the dtype of the first wrong value comes from.
        violations: one text for each wrong value of the call.
    """

    _code: str | None = None  # of the class; Dynamo does not know what a class has else
    code: str | None = cast(Any, _Code())  # of an error
    fix: str | None = None
    expression: str | None = None
    argument: str | None = None
    expected: Any = None
    actual: Any = None
    function: str | None = None
    module_path: str | None = None
    call_site: str | None = None
    axes: dict[str, Any] = {}  # noqa: RUF012  (the default of an instance attribute)
    origin: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return with_docs(super().__str__(), self.code)


def with_docs(text: str, code: str | None) -> str:
    """A message, and the address of the page that explains it."""
    return f"{text}\n  {'docs':<10} {codes.page_of(code)}" if code else text


class DtypeError(DtypeGuardError):
    """A tensor's dtype is not what the annotation or the module's parameters say."""

    _code = codes.DTYPE.id


class ShapeError(DtypeGuardError):
    """A tensor's number of axes, or the size of one, is not what the annotation says."""

    _code = codes.AXIS.id


class DeviceError(DtypeGuardError):
    """A tensor is on another device than the module's parameters."""

    _code = codes.DEVICE.id


class CastError(DtypeGuardError):
    """In lenient mode: the casting rule forbids the repair, or values would be lost."""

    _code = codes.REFUSED.id


class HintError(DtypeGuardError):
    """A value violates an annotation that is not about dtype, shape or device."""

    _code = codes.TYPE.id


class AnnotationError(DtypeGuardError):
    """An annotation is malformed, or uses an axis that no argument has bound."""

    _code = codes.MALFORMED.id


class AmpError(DtypeGuardError):
    """`amp.watch` found a use of autocast, GradScaler or the optimizer that loses or corrupts updates.

    Attributes:
        rule: the id of the rule, `DG301`; the same as `code`.
    """

    rule: str | None = None


class RankError(DtypeGuardError):
    """Ranks hold tensors of different names, dtypes, shapes or device types."""

    _code = codes.RANKS.id


class CompareError(DtypeGuardError):
    """`compare` cannot run the model in the dtype, or cannot measure what it returns."""

    _code = codes.COMPARE.id
    _as_it_is = False  # whether the cause was raised by the program as it is, in no dtype of ours

    @classmethod
    def _of(cls, told: str) -> "CompareError":
        """What the program as it is raises."""
        error = cls(told)
        error._as_it_is = True
        return error


class StateError(DtypeGuardError):
    """What a model, its gradients or its optimizer hold is not what a manifest says.

    Attributes:
        argument: the name of the first tensor that differs.
        violations: one text for each line that differs.
    """

    _code = codes.STATE.id


class DtypeGuardWarning(UserWarning):
    """Base class of all warnings of dtypeguard.

    Attributes:
        code: the id of the mistake (`DG012`) or the rule, if it has one.
        fix: what to write instead, if that is known.
    """

    code: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return with_docs(text, self.code) if "\n" in text or not self.code else f"{text} [{self.code}]"


class CastWarning(DtypeGuardWarning):
    """A value was cast or moved to match a contract. To avoid it, cast the value at the line that the message names."""

    code: str | None = codes.CAST.id


class InplaceOnCastWarning(DtypeGuardWarning):
    """The function changed a cast copy in place, so the caller's tensor did not change. Cast before the call."""

    code: str | None = codes.COPY.id


class ContractWarning(DtypeGuardWarning):
    """Mode 'warn' found a violation, and changed nothing; or a model does not hold what its manifest says."""


class AmpWarning(DtypeGuardWarning):
    """`amp.watch` found a use of autocast, GradScaler or the optimizer that loses or corrupts updates."""


for _public in [*globals().values()]:
    if isinstance(_public, type) and issubclass(_public, DtypeGuardError | DtypeGuardWarning):
        _public.__module__ = "dtypeguard"


class Expression(NamedTuple):
    """The text of an argument, and the same as an operand: `steps / 10`, `(steps / 10)`.

    Attributes:
        bare: the operand without the cast to a number's dtype at its end, or None where it has none.
    """

    text: str
    operand: str
    bare: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class Violation:
    """One offender, as plain facts; texts are made only when a message is."""

    error: type[DtypeGuardError]
    argument: str  # path, as Python writes it
    value: Any
    actual: Any  # dtype, device, shape or text
    expected: Any  # dtype, device or text
    reason: str  # who expects it: "the module's parameters are {expected}"
    hint: str  # the annotation, as written
    like: tuple[str, Any] | None = None  # the parameter that stands for the module: name, tensor
    fix: tuple[str, ...] = ()  # what to write instead: the text before, between and after what was written
    repairable: bool = True  # whether lenient mode can repair it
    code: str = ""  # of the mistake
    path: tuple[Any, ...] = ()  # of the argument
    expression: Expression | None = None  # what the caller wrote for it
    returned: str = ""  # "return" or "yield", of a result and what is in one


_RETURNED = Expression("...", "(...)")  # a result has no name in the program


def _at_return(v: Violation) -> tuple[str, ...]:
    """What to write for a result: in the `return`, or the `yield`."""
    first, *rest = v.fix
    returns = f"{v.returned} " if v.argument == "result" else f"for `{v.argument}` {v.returned} "
    return (f"{first}{returns}" if first.endswith(" ") else f"{returns}{first}", *rest) if rest else v.fix


def fix_of(violations: Iterable[Violation]) -> str | None:
    """What to write instead, with what the caller wrote in it; what mends one value is chained."""
    fixes: dict[str, tuple[str, bool]] = {}  # by argument: the text, and whether it can go on
    for v in violations:
        if not v.fix:
            continue
        known, chains = fixes.get(v.argument, ("", False))
        expression = _RETURNED if v.returned else v.expression or Expression(v.argument, v.argument)
        closed = v.fix[0].endswith("(") and not v.fix[-1].startswith((".", " "))
        text = (expression.text if closed else expression.operand).join(_at_return(v) if v.returned else v.fix)
        if expression.bare is not None and _casts_at_once(v):
            text = expression.bare.join(part.removeprefix(".round()") for part in v.fix)
        simple = not any(" " in part for part in v.fix)
        if chains and v.fix[0] == "" and len(v.fix) > 1:
            text = known.join(v.fix)
        elif known and text != known:
            text = "; ".join(filter(None, (known, text)))
        fixes[v.argument] = text, simple
    return "; ".join(dict.fromkeys(text for text, _ in fixes.values() if text)) or None


def _casts_at_once(v: Violation) -> bool:
    """Whether a value that was cast may get the wanted dtype in place of that: not floats, where `.int()` truncated."""
    if not isinstance(v.expected, torch.dtype) or not isinstance(v.actual, torch.dtype):
        return False
    return v.actual.is_floating_point or not v.expected.is_floating_point


def plain(fact: Any) -> str:
    """A dtype, device or other fact as a message prints it."""
    return name_of(fact) if isinstance(fact, torch.dtype) else str(fact)


def quoted(value: Any) -> str:
    """A value's repr; what it is where that raises."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def summary(value: Any) -> str:
    """A value as jaxtyping prints it, and the device of a tensor: `f64[32,784] on cpu`; it never fails."""
    for describe in (_array, _shortened):
        with contextlib.suppress(Exception):  # odd shapes and dtypes, a repr that raises
            return describe(value)
    return f"<{type(value).__qualname__}>"


def _array(value: Any) -> str:
    import wadler_lindig as wl

    if isinstance(value, torch.Tensor):
        return f"{wl.pformat(wl.array_summary(shape_of(value), name_of(value.dtype), None))} on {value.device}"
    shape = value.shape
    if not isinstance(shape, Sequence):
        raise TypeError(f"{shape!r} is no shape")
    return f"{wl.pformat(wl.array_summary(tuple(map(int, shape)), name_of(value.dtype), None))}(numpy)"


def _shortened(value: Any) -> str:
    import wadler_lindig as wl

    text = " ".join(wl.pformat(value, width=200, short_arrays=True).replace("(torch)", "").split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def shape_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Sizes; `?` for tensors that have none."""
    try:
        shape = tuple(tensor.shape)
        if private.tracing_state() is None:
            return shape
        with quiet():  # torch.jit.trace has tensors for sizes, and warns of looking at them
            return tuple(int(size) for size in shape)
    except RuntimeError:  # strided nested tensors and uninitialized parameters have none
        return ("?",)


def headline(v: Violation) -> str:
    verb = "is on " if isinstance(v.actual, torch.device) else "is " if isinstance(v.actual, torch.dtype) else ""
    subject = f"argument `{v.argument}`"
    if v.returned:
        result = "the result" if v.returned == "return" else "what it yields"
        subject = result if v.argument == "result" else f"`{v.argument}`"
    return f"{subject} {verb}{plain(v.actual)}, {v.reason}"


def _lines_of_facts(v: Violation) -> Iterable[tuple[str, str]]:
    yield ("result" if v.returned else "argument", f"{v.argument} = {summary(v.value)}")
    if v.expression is not None:
        yield "passed as", v.expression.text
    like = "" if v.like is None else f"{plain(v.expected)} like {v.like[0]} ({summary(v.like[1])})"
    yield "expected", ", ".join(part for part in (v.hint, like) if part) or plain(v.expected)


def render(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A message: the inner fact, then one line for each fact of the context."""
    return "\n".join([title, *(f"  {key:<10} {text}" for key, text in rows)])


def _origin(value: Any) -> tuple[str, ...]:
    return origins[-1](value) if origins and isinstance(value, torch.Tensor) else ()


def make_error(
    kind: type[DtypeGuardError],
    function: str,
    violations: Sequence[Violation],
    module_path: str | None,
    call_site: str | None,
    axes: dict[str, Any],
    instead: str,
    more: dict[str, str],
    placed: bool = True,
) -> DtypeGuardError:
    """The exception for `violations`. Its text: the inner fact first, then every offender, then the context.

    `placed` says whether the text names the line that called.
    """
    headlines = tuple(headline(v) for v in violations)
    rows: list[tuple[str, str]] = []
    for n, v in enumerate(violations):
        if n:
            rows.append(("also", headlines[n]))
        rows.extend(row for row in _lines_of_facts(v) if row not in rows)
    fix = fix_of(violations)
    lines = _origin(violations[0].value)
    context = {
        "origin": "\n             ".join(lines),
        "module": module_path,
        **more,
        "called at": call_site if placed else "",
        "axes": ", ".join(f"{name}={size}" for name, size in axes.items()),
        "fix": f"{fix}, or {instead}" if fix and instead else fix or instead,
    }
    rows.extend((key, text) for key, text in context.items() if text)
    error = kind(render(f"{function}: {headlines[0]}", rows))
    first = violations[0]
    error.code, error.fix = first.code or kind.code, fix
    error.expression = None if first.expression is None else first.expression.text
    error.argument, error.expected, error.actual = first.argument, first.expected, first.actual
    error.function, error.module_path, error.call_site = function, module_path, call_site
    error.axes, error.violations, error.origin = axes, headlines, lines
    return error


# Functions of running audits that return the lines at which a tensor got its dtype.
origins: list[Callable[[torch.Tensor], tuple[str, ...]]] = []
