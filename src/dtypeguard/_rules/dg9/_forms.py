"""Formulas that lose digits or overflow on the way, and the functions that compute the same without that."""

import ast
from collections.abc import Iterator
from typing import Any

from ..._engine.values.rows import Row

Form = tuple[Any, ...]  # the name of an operation, and its operands
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
_NAMES = frozenset("square log exp sum softmax sqrt pow".split())


def instead(row: Row) -> str | None:
    """What to write for a formula on the line of a row; None if it has none that is known."""
    try:
        tree = ast.parse(row.site.source.rstrip(":"))
    except SyntaxError:  # of several lines, or no Python
        return None
    found = next(rewritten(tree), None)
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
        case ("div", ("exp", x), ("sum", ("exp", y), dim, *_)) if x == y:
            yield f"torch.softmax({_write(x)}, {_write(dim)})"
        case ("div", ("exp", x), ("sum", ("exp", y))) if x == y:
            yield f"torch.softmax({_operand(x)}.flatten(), 0).view_as({_write(x)})"
        case ("log", ("add", ("number", 1), x)) | ("log", ("add", x, ("number", 1))):
            yield f"torch.log1p({_write(x)})"
        case ("sub", ("exp", x), ("number", 1)):
            yield f"torch.expm1({_write(x)})"
        case ("sqrt", ("add", x, y)):
            if (one := _squared(x)) is not None and (other := _squared(y)) is not None:
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
    if isinstance(node, ast.Call):
        function, arguments = node.func, [*map(_form, node.args)]
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in ("torch", "F", "math", "np"):
            arguments.insert(0, _form(function.value))
        arguments += [_form(keyword.value) for keyword in node.keywords if keyword.arg in ("dim", "axis")]
        if name in _NAMES and arguments:
            return name, *arguments
    return "code", ast.unparse(node) if isinstance(node, ast.expr) else ""


def _operand(form: Form) -> str:
    """An operand of which a method is called."""
    text = _write(form)
    return text if text.isidentifier() else f"({text})"


def _write(form: Form) -> str:
    """An operand as it is written."""
    match form:
        case ("code" | "number", text):
            return str(text)
        case ("add" | "sub" | "mul" | "div" | "pow" as name, x, y):
            sign = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}[name]
            return f"{_write(x)} {sign} {_write(y)}"
    return f"torch.{form[0]}({', '.join(map(_write, form[1:]))})"
