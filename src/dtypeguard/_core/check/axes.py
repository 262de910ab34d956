"""The axes of one array against those bound so far, with jaxtyping's verdict."""

import ast
import math
import re
from typing import Any

import torch

from ..base.codes import RANK, UNBOUND
from ..base.errors import AnnotationError
from ..contract.dims import Dim, DimKind, axis_argument
from ..contract.model import Path, written
from ..contract.spec import TensorSpec
from .reports import report_shape
from .state import CallState


def check_dims(spec: TensorSpec, value: Any, path: Path, call: CallState) -> None:
    if len(spec.dims) == 1 and spec.dims[0].variadic and spec.dims[0].kind is DimKind.ANONYMOUS:
        return
    where = spec.variadic
    least = len(spec.dims) - (where is not None)
    wanted = f"the annotation wants {_axes(least) if where is None else f'at least {_axes(least)}'}"
    try:
        shape = tuple(value.shape)
    except Exception:
        what = "has no shape" if not isinstance(value, torch.Tensor) else "has no shape yet"
        if isinstance(value, torch.Tensor) and value.is_nested:
            what = "is a nested tensor, whose axes have no one size"
        report_shape(call, path, value, spec, what, wanted)
        return
    if len(shape) < least or (where is None and len(shape) > least):
        ways = [] if getattr(value, "is_nested", False) else _methods_for(spec, shape, call)
        report_shape(call, path, value, spec, f"has {_axes(len(shape))}", wanted, RANK, ways)
        return
    axes, variadics = dict(call.axes), dict(call.variadics)
    try:
        fault = _fault(spec, shape, axes, variadics, call)
    except AnnotationError as error:
        function, argument = call.contract.function, written(path)
        whose = "the result" if argument == "result" else f"`{argument}`"
        told = AnnotationError(f"{function}: in the annotation of {whose}, {error.args[0]}")
        told.function, told.argument, told.code = function, argument, UNBOUND.id
        call.faults.append((told, _causes(error, spec), not (call.earlier or call.violations)))
        return
    if fault is not None:
        report_shape(call, path, value, spec, *fault, methods=_methods_for(spec, shape, call))
        return
    for name in (*axes, *variadics):
        call.owners.setdefault(name, written(path))
    call.axes, call.variadics = axes, variadics


def _causes(error: AnnotationError, spec: TensorSpec) -> frozenset[str]:
    """The names that an axis could not be computed for."""
    if isinstance(error.__cause__, NameError):
        return frozenset([str(error.__cause__.name)])
    texts = [dim.text for dim in spec.dims if dim.kind is DimKind.SYMBOLIC]
    return frozenset(re.findall(r"[^\W\d]\w*", " ".join(texts)))


def _fault(
    spec: TensorSpec,
    shape: tuple[int, ...],
    axes: dict[str, int],
    variadics: dict[str, tuple[bool, tuple[int, ...]]],
    call: CallState,
) -> "Fault":
    """What is wrong with the sizes of a shape of the right rank; what it binds is entered."""
    where = spec.variadic
    least = len(spec.dims) - (where is not None)
    end = None if where is None else len(shape) - (least - where)
    fixed = spec.dims if where is None else (*spec.dims[:where], *spec.dims[where + 1 :])
    sizes = shape if where is None else (*shape[:where], *shape[end:])
    for i, (dim, size) in enumerate(zip(fixed, sizes, strict=True)):
        index = i if where is None or i < where else i - len(sizes)
        fault = _check_dim(dim, size, index, axes, call)
        if fault is not None:
            return fault
    return None if where is None else _check_variadic(spec.dims[where], shape[where:end], variadics, call)


def _methods_for(spec: TensorSpec, shape: tuple[int, ...], call: CallState) -> list[str]:
    """The methods that give a tensor the axes that are asked for: two at the most, else nobody knows what was meant."""
    if torch.compiler.is_compiling() or spec.variadic is not None or not spec.torch_only or not shape:
        return []
    outer = {
        **{f".squeeze({n})": (*shape[:n], *shape[n + 1 :]) for n, size in enumerate(shape) if size == 1},
        ".unsqueeze(0)": (1, *shape),
        ".unsqueeze(-1)": (*shape, 1),
        ".flatten(1)": (*shape[:1], math.prod(shape[1:])) if len(shape) > 2 else shape,
        ".transpose(-1, -2)": (*shape[:-2], *shape[:-3:-1]),
        **({".permute(2, 0, 1)": (shape[2], *shape[:2])} if len(shape) == 3 and shape[2] in _CHANNELS else {}),
        **({".permute(0, 3, 1, 2)": tuple(shape[n] for n in (0, 3, 1, 2))} if len(shape) == 4 else {}),
    }
    inner = {f".unsqueeze({n})": (*shape[:n], 1, *shape[n:]) for n in range(1, len(shape))}
    found: dict[tuple[int, ...], str] = {}
    for way, other in [*outer.items(), *inner.items()]:
        if way in inner and found:
            break
        if len(other) == len(spec.dims) and other not in found:
            try:
                if _fault(spec, other, dict(call.axes), dict(call.variadics), call) is None:
                    found[other] = way
            except AnnotationError:
                return []
    return list(found.values()) if len(found) <= 2 else []


_CHANNELS = (1, 3, 4)  # of an image
Fault = tuple[str, str] | None


def differ(size: Any, wanted: Any) -> bool:
    """Whether a size (or a shape) is not the wanted one.

    While compiling, a size may depend on data. Asking about it would end the trace, so what is not known to be wrong
    is asserted in the graph.
    """
    if isinstance(size, (tuple, list)):
        return len(size) != len(wanted) or any(differ(a, b) for a, b in zip(size, wanted, strict=True))
    if surely(size == wanted):
        return False
    if surely(size != wanted):
        return True
    torch._check(size == wanted)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return False


def surely(condition: Any) -> bool:
    """A comparison of sizes, False where the outcome depends on data that a trace does not have."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _check_dim(dim: Dim, size: int, index: int, axes: dict[str, int], call: CallState) -> Fault:
    if dim.kind is DimKind.ANONYMOUS or (dim.broadcast and not surely(size != 1)):
        return None
    if dim.kind is DimKind.FIXED:
        if not differ(size, dim.size):
            return None
        return f"has size {size} in axis {index}", f"the annotation wants {dim.size}"
    if dim.kind is DimKind.SYMBOLIC:
        wanted = evaluate(dim, axes, call)
        if not differ(size, wanted):
            return None
        return f"has size {size} in axis {index}", f"but `{dim.text}` is {wanted}"
    if dim.tree:
        raise AnnotationError(f"axis `?{dim.text}` means nothing outside a PyTree, which dtypeguard does not check")
    bound = axes.setdefault(dim.text, size)
    if not differ(size, bound):
        return None
    owner = call.owners.get(dim.text)
    return f"has axis {dim.text}={size}", f"but {dim.text}={bound}{f' in `{owner}`' if owner else ''}"


def evaluate(dim: Dim, axes: dict[str, int], call: CallState) -> Any:
    """The value of an expression over axes; an f-string over the call's arguments first, where it has braces."""
    try:
        arguments = call.arguments()
        values = [code(*[axis_argument(name, arguments) for name in names]) for names, code in dim.braces]
        if dim.function is not None and dim.names is not None and all(map(_stands_alone, values)):
            return dim.function(*[axis_argument(name, axes) for name in dim.names], *values)
        return eval(_filled(dim.text, arguments), dict(axes))
    except AnnotationError:
        raise
    except Exception as error:
        reason, advice = repr(error), "it may use axes of arguments to its left only"
        if isinstance(error, NameError):
            reason = f"{error.name or error} is not bound yet"
            if any(param.name == error.name for param in call.contract.params):
                advice = f"if the argument `{error.name}` is meant, write {{{error.name}}}"
        raise AnnotationError(f"axis `{dim.text}` cannot be computed: {reason}; {advice}") from error


def _stands_alone(value: Any) -> bool:
    """Whether it means in an expression what its digits mean there; `-3` in `{n}**2` does not."""
    return type(value) in (int, bool, torch.SymInt) and surely(value >= 0)


# How Python writes an integer: in each base, in a width, with a sign, as a float, as a truth value.
_NUMBER = re.compile(r" *[+-]?([0-9_]+(\.0*)?|0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|True|False) *")
_DIGITS = re.compile(r"[0-9]+")


def _filled(text: str, arguments: dict[str, Any]) -> str:
    """An axis with its braces filled; what stands in them is the author's code, what comes of it is a number only."""
    parts: list[str] = []
    string = ast.parse(f"f'{text}'", mode="eval").body  # as jaxtyping writes it
    if not isinstance(string, ast.JoinedStr):  # a quote has ended it
        raise SyntaxError("a quote that belongs to no expression in braces")
    for part in string.values:
        if not isinstance(part, ast.FormattedValue):
            parts.append(ast.literal_eval(part))
            continue
        braces = ast.unparse(part.value)
        value = eval(compile(ast.Expression(part.value), "<axis>", "eval"), arguments)
        part.value = ast.Name("_dg_value", ast.Load())
        alone = ast.fix_missing_locations(ast.Expression(ast.JoinedStr([part])))
        number = eval(compile(alone, "<axis>", "eval"), {**arguments, "_dg_value": value})
        if not (_DIGITS if isinstance(value, str) else _NUMBER).fullmatch(number):
            raise AnnotationError(
                f"axis `{text}` cannot be computed: {{{braces}}} is {number!r}, which is neither an integer nor digits"
            )
        parts.append(number)
    return "".join(parts)


def _check_variadic(
    dim: Dim, shape: tuple[int, ...], variadics: dict[str, tuple[bool, tuple[int, ...]]], call: CallState
) -> Fault:
    if dim.kind is DimKind.ANONYMOUS:
        return None
    if dim.tree:
        raise AnnotationError(f"axes `*?{dim.text}` mean nothing outside a PyTree, which dtypeguard does not check")
    if dim.text not in variadics:
        variadics[dim.text] = (dim.broadcast, shape)
        return None
    loose, bound = variadics[dim.text]
    joint = broadcast_shapes(shape, bound) if loose or dim.broadcast else (None if differ(shape, bound) else shape)
    if joint is None or (not dim.broadcast and joint != shape) or (not loose and joint != bound):
        return f"has axes *{dim.text}={list(shape)}", f"but *{dim.text}={list(bound)} in `{call.owners.get(dim.text)}`"
    if loose:
        variadics[dim.text] = (dim.broadcast, joint)
    return None


def broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that two shapes broadcast to, or None."""
    width = max(len(a), len(b))
    a, b = (1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b
    if any(m != n and m != 1 and n != 1 for m, n in zip(a, b, strict=True)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
