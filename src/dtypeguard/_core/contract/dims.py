"""The grammar of axes: a `dim_str` becomes a tuple of `Dim`.

The grammar is jaxtyping's own; a test holds `parse_dims` against the
`dims` that jaxtyping parsed.
"""

import ast
import builtins
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import AnnotationError


class DimKind(enum.Enum):
    NAMED = "named"
    FIXED = "fixed"
    SYMBOLIC = "symbolic"
    ANONYMOUS = "anonymous"


_Code = tuple[tuple[str, ...], Callable[..., Any]]  # an expression's names, and the expression as a function of them


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """One token of a `dim_str`; `text` is what is left of it once its prefixes are gone."""

    kind: DimKind
    text: str = ""
    size: int = 0
    broadcast: bool = False
    variadic: bool = False
    tree: bool = False
    names: tuple[str, ...] | None = None  # of a symbolic axis: what `function` takes; None: evaluate `text` at the call
    function: Callable[..., Any] | None = field(default=None, compare=False)  # of its names, then of its braces
    braces: tuple[_Code, ...] = field(default=(), compare=False)


_PREFIXES = {"#": "broadcast", "*": "variadic", "_": "anonymous", "?": "tree"}
_ANY_AXES = Dim(DimKind.ANONYMOUS, variadic=True)


def _token_error(token: str, reason: str) -> AnnotationError:
    return AnnotationError(f"axis `{token}` {reason}")


def parse_dim(token: str) -> Dim:
    """One axis of a jaxtyping annotation.

    Raises:
        AnnotationError: where jaxtyping's own subscription raises ValueError, and for an expression
            that is no Python, or a negative size, which jaxtyping notices only at a call.
    """
    if "," in token and "(" not in token:
        raise _token_error(token, "has a comma: axes are separated by spaces")
    if token.endswith("#"):
        raise _token_error(token, "has its # at the end: a broadcastable axis is written #name")
    if "..." in token:
        if token != "...":
            raise _token_error(token, "must be ... alone, or *name for axes with a name")
        return _ANY_AXES
    flags: set[str] = set()
    rest = token
    while rest:
        flag = _PREFIXES.get(rest[0])
        if flag is not None:
            if flag in flags:
                raise _token_error(token, f"has {rest[0]} twice")
            flags.add(flag)
            rest = rest[1:]
        elif rest.count("=") == 1:
            rest = rest.partition("=")[2]
        else:
            break
    broadcast, variadic = "broadcast" in flags, "variadic" in flags
    if not rest or rest.isidentifier():
        if "anonymous" not in flags:
            return Dim(DimKind.NAMED, rest, broadcast=broadcast, variadic=variadic, tree="tree" in flags)
        if broadcast:
            raise _token_error(token, "is anonymous and broadcastable: write _ or #name")
        return Dim(DimKind.ANONYMOUS, variadic=variadic)
    try:
        fixed: int | None = int(rest)
    except ValueError:
        fixed = None
    for flag in ("variadic", "anonymous", "tree"):
        if flag in flags:
            what = "an expression" if fixed is None else "a fixed size"
            raise _token_error(token, f"is {what}, which cannot be {flag}")
    if fixed is not None and fixed < 0:
        raise _token_error(token, "is less than nothing: no tensor has it")
    if fixed is not None:
        return Dim(DimKind.FIXED, rest, size=fixed, broadcast=broadcast)
    code = _compile_axis(token, rest)
    if code is None:
        return Dim(DimKind.SYMBOLIC, rest, broadcast=broadcast)
    (names, function), *braces = code
    return Dim(DimKind.SYMBOLIC, rest, broadcast=broadcast, names=names, function=function, braces=tuple(braces))


_SIMPLE = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Call, ast.Name,
    ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Tuple,
)  # fmt: skip
_OF_ARGUMENTS = (*_SIMPLE, ast.Attribute, ast.Subscript, ast.Slice, ast.keyword)


def _compile_axis(token: str, text: str) -> list[_Code] | None:
    """An expression over axes, and what stands in its braces; None if only the text of a call can tell."""
    inner: list[ast.expr] = []
    if any(c in text for c in "{}'\\"):
        found = _without_braces(text)
        if found is None:
            return None
        text, inner = found
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        if inner:
            return None
        raise _token_error(token, f"is no Python expression ({error.msg})") from error
    if not all(isinstance(node, _SIMPLE) for node in ast.walk(tree)):
        return None
    if not all(isinstance(node, _OF_ARGUMENTS) for part in inner for node in ast.walk(part)):
        return None
    values = [_value(n) for n in range(len(inner))]
    return [_code(text, tree, values), *(_code(ast.unparse(part), part, []) for part in inner)]


def _code(text: str, tree: ast.AST, values: list[str]) -> _Code:
    found = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    names = tuple(name for name in found if name not in values)
    return names, eval(f"lambda {', '.join([*names, *values])}: {text}", {"__builtins__": {}})


def _value(n: int) -> str:
    return f"_dg_{n}"


def _without_braces(text: str) -> tuple[str, list[ast.expr]] | None:
    """An axis with names for its braces, and what stands in them.

    None where a number in place of the braces may mean something else than a name there: `1{n}`, `{n:+}`, `"{n}"`.
    """
    try:
        string = ast.parse(f"f'{text}'", mode="eval").body  # as jaxtyping writes it
    except SyntaxError:
        return None
    parts, inner = list[str](), list[ast.expr]()
    for part in string.values if isinstance(string, ast.JoinedStr) else []:
        if isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None:
            parts.append(_value(len(inner)))
            inner.append(part.value)
        elif isinstance(part, ast.Constant) and not set(str(part.value)) & set("'\"\\{}"):
            parts.append(str(part.value))
        else:
            return None
    filled = "".join(parts)
    alone = re.findall(r"(?<![\w.])_dg_\d+(?![\w.])", filled)
    return (filled, inner) if inner and len(alone) == len(inner) else None


def parse_dims(dim_str: str) -> tuple[Dim, ...]:
    """All axes of a `dim_str`; at most one of them stands for any number of axes."""
    dims = tuple(parse_dim(token) for token in dim_str.split())
    if sum(dim.variadic for dim in dims) > 1:
        raise _token_error(dim_str.strip(), "has more than one of ... and *name")
    return dims


def axis_argument(name: str, axes: dict[str, int]) -> Any:
    """What a name in an axis expression stands for: an axis bound so far, else a Python builtin."""
    if name in axes:
        return axes[name]
    if hasattr(builtins, name):
        return getattr(builtins, name)
    raise NameError(name, name=name)
