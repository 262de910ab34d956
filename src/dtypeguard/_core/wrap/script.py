"""What `torch.jit.script` reads of an enforced function: its source, without checks, with annotations it knows."""

import ast
import contextlib
import inspect
import itertools
import linecache
import textwrap
import weakref
from types import FunctionType
from typing import Any, TypeVar

from jaxtyping import AbstractArray
from torch import nn

from ..check.scope import closure_of

M = TypeVar("M", bound=nn.Module)
_numbers = itertools.count(1)


def scriptable(made: Any, fn: Any) -> Any:
    """The wrapper once more, with the source of its body: what stands behind `__wrapped__` of a forward.

    Not the body itself: accelerate's unwrap_model follows `__wrapped__`, and would take the checks off silently.
    """
    name = f"<dtypeguard source {next(_numbers)}"  # closed by `>` it would be a name without source to linecache
    reference = weakref.ref(fn)  # alive: whoever asks has come by way of its wrapper

    def text() -> str:
        with contextlib.suppress(Exception):  # a traceback asks too, and nothing may come of it
            body: Any = reference()
            return _source(inspect.unwrap(body))
        return ""

    linecache.cache[name] = (text,)  # read at the first access
    code = made.__code__.replace(co_filename=name, co_firstlineno=1)
    twin = FunctionType(code, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
    twin.__kwdefaults__ = made.__kwdefaults__
    weakref.finalize(twin, linecache.cache.pop, name, None).atexit = False
    return twin


def _source(fn: Any) -> str:
    """A function's source with `Tensor` for each of jaxtyping's annotations."""
    text = textwrap.dedent(inspect.getsource(fn))
    tree = ast.parse(text)
    plain = _Plain({**fn.__globals__, **closure_of(fn)})
    for node in ast.walk(tree.body[0]):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, plain.visit(getattr(node, field)))
    return ast.unparse(tree) if plain.changed else text


class _Plain(ast.NodeTransformer):
    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self.changed = False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an annotation in quotes
            with contextlib.suppress(SyntaxError):
                return self.visit(ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            with contextlib.suppress(Exception):
                found = eval(ast.unparse(node), self._names)
                if isinstance(found, type) and issubclass(found, AbstractArray):
                    self.changed = True
                    return ast.Name("Tensor")
        return self.generic_visit(node)


def shallow(model: M) -> M:
    """Another instance over the same parameters, buffers and (likewise shallow) submodules."""
    twin = model.__new__(type(model))
    twin.__dict__.update(model.__dict__)
    twin.__dict__["_modules"] = {name: child and shallow(child) for name, child in model._modules.items()}
    return twin
