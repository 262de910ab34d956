"""Violations as they are recorded: what a value is, what it should be, what to write, whether it can be repaired."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.codes import AXIS, Mistake
from ..base.config import Mode
from ..base.dtypes import BY_NAME, PIXELS, TABLE, Casting, Kind, lowest_rung, may_cast, name_of
from ..base.errors import DeviceError, DtypeError, HintError, ShapeError, Violation, plain
from ..base.options import indefinite
from ..contract.anchor import Anchor
from ..contract.model import Path, written
from ..contract.spec import TensorSpec
from .arrays import from_numpy
from .state import CallState
from .values import is_added, is_share


def report(
    call: CallState,
    path: Path,
    error: Any,
    value: Any,
    actual: Any,
    expected: Any,
    reason: str,
    hint: str,
    *,
    like: tuple[str, Any] | None = None,
    fix: tuple[str, ...] = (),
    repairable: bool = False,
    code: str = "",
) -> None:
    """Add a violation to the state of a call.

    `fix` has the parts of a text between which the argument stands. `repairable` says whether a cast or a move would
    mend it. None is made of an argument that the body writes to (`mutates`), nor under jaxtyping's decorator, whose
    body gets the caller's values.
    """
    repairable = repairable and path[0] not in call.contract.mutates and not call.contract.checker
    if path[0] in call.contract.mutates and error in (DtypeError, DeviceError):  # a copy would be written to in vain
        fix = (f"create `{written(path)}` {'in' if error is DtypeError else 'on'} {plain(expected)}",)
    facts = (error, written(path), value, actual, expected, reason, hint, like, fix, repairable)
    call.violations.append(Violation(*facts, code or str(error.code), path, returned=call.leaving))


def report_shape(
    call: CallState,
    path: Path,
    value: Any,
    spec: TensorSpec,
    actual: str,
    reason: str,
    of: Mistake = AXIS,
    methods: Sequence[str] = (),
) -> None:
    """Record that the axes are others; one of `methods` would mend it."""
    # Sizes that fit once axes are swapped are no proof that they are: ten rows of two are not two of ten classes.
    swaps = any(method.startswith((".transpose", ".permute")) for method in methods)
    several = [f"{method}, or " for method in methods[:-1]]
    fix = ("if the axes are swapped: " if swaps else "", *several, *methods[-1:]) if methods else ()
    report(call, path, ShapeError, value, actual, spec.hint, reason, spec.hint, fix=fix, code=of.id)


_LITERAL = re.compile(r"Literal\[([^\[\]]*)\]( \| None)?")


_NUMPYS = {"int": ("int", "uint"), "float": ("float", "int", "uint"), "bool": ("bool",)}  # that Python's type takes


def report_kind(
    call: CallState, path: Path, value: Any, hint: str, count: bool = False, *missing: str, others: Any = (),
    asks: str = "the annotation",
) -> None:  # fmt: skip
    """Record that a value is of another type than its hint; with `count` the text has the length of a tuple.

    Of a TypedDict `missing` are the keys that it lacks, and `others` those that it has and that mean nothing.
    """
    actual = "is None" if value is None else f"is {indefinite(type(value).__qualname__)}"
    wanted, fix, around = hint, "", tuple[str, ...]()
    if type(value).__module__ == "numpy":  # its int64 is no tensor's
        name = type(value).__name__
        actual = f"is a numpy.{name}"
        if not call.leaving and name.rstrip("0123456789_") in _NUMPYS.get(hint, ()):
            around = f"{hint}(", ")"
    if count and isinstance(value, tuple):
        actual = f"is a tuple of {len(value)}"
        fix = f"{give(call)} a value for each item of {hint}" if hint.startswith("tuple") else ""
    if missing:
        lacks = ", ".join(map(repr, missing))
        actual, fix = f"has no {lacks}", f"{give(call)} it with {lacks}"
        if not torch.compiler.is_compiling() and (
            meant := difflib.get_close_matches(missing[0], [key for key in others if isinstance(key, str)], 1)
        ):
            fix = f"{fix}: {meant[0]!r} may be meant for {missing[0]!r}"
    if (listed := _LITERAL.fullmatch(hint)) and isinstance(value, str | int):
        actual, wanted = f"is {value!r}", f"one of {listed[1]}{', None' * bool(listed[2])}"
    report(
        call, path, HintError, value, actual, hint, f"{asks} wants {wanted}", hint,
        fix=around or (fix or f"{give(call)} {_one_of(wanted)}",),
    )  # fmt: skip


def _one_of(wanted: str) -> str:
    """A value as an annotation wants it, in a sentence."""
    if wanted == "None" or wanted.startswith(("a ", "one of ")):
        return wanted
    return indefinite(wanted) if wanted.isidentifier() else f"a value of {wanted}"


def fits_none(violation: Violation, names: Sequence[str]) -> None:
    """Say that a value fits no annotation of a union: a shape with its dtype, as the axes alone may fit one of them."""
    few = len(names) == 2
    told = f"neither {names[0]} nor {names[1]}" if few else f"none of {', '.join(names[:-1])} and {names[-1]}"
    violation.reason = f"which fits {told}"
    if violation.error is ShapeError:
        violation.actual = f"is {name_of(violation.value.dtype)} and {violation.actual}"


def give(call: CallState) -> str:
    """What one does with a value to make it another: a result is returned, or yielded."""
    return call.leaving or "pass"


# What to write instead of a cast that the default rule refuses, by the kinds involved.
_ADVICE: dict[tuple[Kind, Kind], str] = {
    (Kind.INT, Kind.FLOAT): "{x}.to({target}){scaled}",
    (Kind.BOOL, Kind.FLOAT): "{x}.to({target})",
    (Kind.FLOAT, Kind.INT): "{x}.round().to({target})",
    (Kind.FLOAT, Kind.BOOL): "{x} != 0",
    (Kind.INT, Kind.BOOL): "{x} != 0",
    (Kind.COMPLEX, Kind.FLOAT): "{x}.real or {x}.abs()",
}


def report_dtype(
    call: CallState,
    path: Path,
    value: Any,
    target: torch.dtype | None,
    hint: str,
    anchor: Anchor | None = None,
    family: bool = False,
) -> None:
    """Record that a dtype is not `target`: the anchor's or else the annotation's, of a family one example."""
    source, casting = value.dtype, call.casting
    if not isinstance(source, torch.dtype):
        source = BY_NAME.get(name_of(source), source)
    like = anchor.like if anchor is not None else None
    allowed = target is not None and isinstance(source, torch.dtype) and may_cast(source, target, casting)
    expected: Any = target if target is not None else hint
    such = f" {hint.partition('[')[0]}, such as" if family and anchor is None and target is not None else ""
    reason = f"{anchor.reason if anchor is not None else f'the annotation wants{such}'} {plain(expected)}"
    quantized = isinstance(value, Tensor) and value.is_quantized
    lenient = "" if call.mode is Mode.LENIENT else 'mode="lenient", '
    scaled = ", scaled as the model expects" if call.contract.anchor == "self" and not call.leaving else ""
    scaled = PIXELS if source is torch.uint8 else scaled
    x = "{x}" + ".dequantize()" * quantized
    fix = _advice(x, source, target, isinstance(value, Tensor), allowed, lenient, scaled)
    numbers = value if isinstance(value, Tensor) else from_numpy(value)
    if target is torch.uint8 and numbers is not None and is_share(numbers):  # of an image: as a number 0 or 1
        fix = f"({x} * 255).round().to({target})" if numbers is value else f"({x} * 255).round().astype('uint8')"
    if target is torch.bool and isinstance(value, Tensor) and is_added(value):
        fix = (
            f"{x} == 0 where True is what takes part (scaled_dot_product_attention), or {x} != 0 where True hides "
            "(nn.MultiheadAttention)"
        )
    if anchor is not None and target is torch.float64 and isinstance(source, torch.dtype) and source.is_floating_point:
        fix += ", or module.float() if nobody meant float64"
    if source is torch.bool and target is not None and target.is_floating_point and "mask" in str(path):
        fix = f'torch.where({{x}}, 0.0, float("-inf")).to({target})'  # which hides where `.to` alone adds 1 or 0
    report(
        call, path, DtypeError, value, source, expected, reason, hint, like=like, fix=tuple(fix.split("{x}")),
        repairable=allowed,
    )  # fmt: skip
    if target is not None:
        call.edit(path, value).dtype = target


def _advice(x: str, source: Any, target: torch.dtype | None, tensor: bool, allowed: bool, lenient: str,
            scaled: str) -> str:  # fmt: skip
    if target is None:
        return ""
    if not tensor:
        return f"{x}.astype({name_of(target)!r})"
    pattern = _ADVICE.get((TABLE[source].kind, TABLE[target].kind), "{x}.to({target})")
    advice, rung = pattern.format(x=x, target=target, scaled=scaled), lowest_rung(source, target)
    return advice if allowed or rung <= Casting.PRECISION else f'{advice}, or {lenient}casting="{rung.name.lower()}"'
