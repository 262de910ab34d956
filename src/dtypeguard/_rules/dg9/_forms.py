"""Formulas that lose digits or overflow on the way, and the functions that compute the same without that."""

import ast
from collections.abc import Iterator
from typing import Any

from ..._engine.values.rows import Row

Form = tuple[Any, ...]  # the name of an operation, and its operands
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
_NAMES = frozenset("square log log1p exp sum prod mean sigmoid softmax sqrt pow det".split())
_MODULES = frozenset(
    "torch torch.linalg linalg F nn.functional torch.nn.functional torch.special math np numpy".split()
)
_ATOMS = ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant  # they need no parentheses


def instead(row: Row) -> str | None:
    """What to write for a formula on the line of a row; None if it has none that is known."""
    try:
        tree = ast.parse(row.site.source.rstrip(":"))
    except SyntaxError:  # of several lines, or no Python
        return None
    overflows = row.name == "exp"  # so `expm1` does too
    found = next((one for one in rewritten(tree) if not (overflows and "expm1" in one[1])), None)
    return found and f"write `{found[1]}`, which is finite and keeps its digits where the formula does not"


def rewritten(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The formulas in some code, outer ones first, and what to write for each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            yield from ((node, written) for written in _better(_form(node)))


def _better(form: Form) -> Iterator[str]:
    match form:
        case ("log", ("softmax", x, dim)):
            yield f"torch.log_softmax({_write(x)}, {_write(dim)})"
        case ("log", ("sum", ("exp", x), dim)):
            yield f"torch.logsumexp({_write(x)}, {_write(dim)})"
        case ("log", ("sum", ("exp", x))):
            yield f"torch.logsumexp({_operand(x)}.flatten(), 0)"
        case ("log", ("prod", x, *dim)):
            yield f"{_operand(x)}.log().sum({', '.join(map(_write, dim))})"
        case ("log", ("det", x)):
            yield f"torch.logdet({_write(x)})"
        case ("div", ("exp", x), ("sum", ("exp", y), dim, *_)) if x == y:
            yield f"torch.softmax({_write(x)}, {_write(dim)})"
        case ("div", ("exp", x), ("sum", ("exp", y))) if x == y:
            yield f"torch.softmax({_operand(x)}.flatten(), 0).view_as({_write(x)})"
        case ("log", ("add", ("exp", x), ("exp", y))):
            yield f"torch.logaddexp({_write(x)}, {_write(y)})"
        case (
            ("log", ("add", ("number", 1), ("exp", x)))
            | ("log", ("add", ("exp", x), ("number", 1)))
            | ("log1p", ("exp", x))
        ):
            yield f"torch.nn.functional.softplus({_write(x)})"
        case ("log", ("sigmoid", x)):
            yield f"torch.nn.functional.logsigmoid({_write(x)})"
        case ("log", ("sub", ("number", 1), ("sigmoid", x))):
            yield f"torch.nn.functional.logsigmoid(-{_operand(x)})"
        case ("div", ("sub", ("exp", x), ("exp", y)), ("add", ("exp", a), ("exp", b))) if (x, y) == (a, b):
            if _write(y) == f"-{_operand(x)}":
                yield f"torch.tanh({_write(x)})"
        case ("mul", x, ("log", y)) | ("mul", ("log", y), x) if x == y:
            yield f"torch.xlogy({_write(y)}, {_write(y)})"
        case ("log", ("add", ("number", 1), x)) | ("log", ("add", x, ("number", 1))):
            yield f"torch.log1p({_write(x)})"
        case ("sub", ("exp", x), ("number", 1)):
            yield f"torch.expm1({_write(x)})"
        case ("sub", ("number", 1), ("exp", x)):
            yield f"-torch.expm1({_write(x)})"
        case ("sub", ("mean", x, *dim), y) if (one := _squared(x)) and _squared(y) == ("mean", one, *dim):
            yield f"torch.var({', '.join(map(_write, (one, *dim)))}, correction=0)"
        case ("sqrt", ("add", x, y)):
            one, other = _squared(x), _squared(y)
            if one and other and "number" not in (one[0], other[0]):  # of which it takes none
                yield f"torch.hypot({_write(one)}, {_write(other)})"


def _squared(form: Form) -> Form | None:
    base: Form | None = None
    match form:
        case ("mul", x, y) if x == y:
            base = x
        case ("pow", x, ("number", 2)) | ("square", x):
            base = x
    return base


def _form(node: ast.AST) -> Form:
    """An expression, whether it is written with methods, with functions of torch or with operators."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return "number", node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)], _form(node.left), _form(node.right)
    if isinstance(node, ast.Call) and not any(isinstance(one, ast.Starred) for one in node.args):
        function, arguments = node.func, [*map(_form, node.args)]
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in _MODULES:
            arguments.insert(0, _form(function.value))
        arguments += [_form(keyword.value) for keyword in node.keywords if keyword.arg in ("dim", "axis")]
        shape = name == "mean" and any(keyword.arg not in ("dim", "axis") for keyword in node.keywords)
        if name in _NAMES and arguments and not shape:
            return name, *arguments
    return "code", ast.unparse(node) if isinstance(node, ast.expr) else ""


def _operand(form: Form) -> str:
    """An operand of an operator, or one of which a method is called."""
    text = _write(form)
    return text if isinstance(ast.parse(text, mode="eval").body, _ATOMS) else f"({text})"


def _write(form: Form) -> str:
    """An operand as it is written."""
    match form:
        case ("code" | "number", text):
            return str(text)
        case ("add" | "sub" | "mul" | "div" | "pow" as name, x, y):
            sign = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}[name]
            return f"{_operand(x)} {sign} {_operand(y)}"
    return f"torch.{form[0]}({', '.join(map(_write, form[1:]))})"
