"""jaxtyping's own scope around a body that asks `isinstance(y, Float[Tensor, "b c"])`.

The scope costs more than the checks do, so it is entered only where the names in the code show such a question: in the
body, in functions inside it, or in a helper that it calls.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, get_args

from ..base import private
from ..contract.hints import by_name
from .state import CallState

_Names = dict[str, Any]


class scope:  # noqa: N801  (a context manager, named like a function)
    """The scope of one call; at its end `axes` and `variadics` also have what the body bound.

    A `shared` one adds to the scope that is there.
    """

    __slots__ = ("arguments", "axes", "shared", "variadics")

    def __init__(
        self, arguments: dict[str, Any], axes: dict[str, Any], variadics: dict[str, Any], shared: bool = False
    ) -> None:
        self.arguments, self.axes, self.variadics, self.shared = arguments, axes, variadics, shared

    def __enter__(self) -> "scope":
        single, several, *_ = private.get_memo() if self.shared else private.push_memo(self.arguments)
        for name, size in self.axes.items():
            if size is not None:
                single[name] = size
        for name, shape in self.variadics.items():
            if shape is not None:
                several[name] = shape if isinstance(shape, tuple) else (False, tuple(shape))
        return self

    def __exit__(self, *error: object) -> None:
        self.axes, self.variadics, *_ = private.get_memo()
        if not self.shared:
            private.pop_memo()

    def shape(self, name: str) -> list[int] | None:
        """The sizes of a variadic axis; a LookupError if they may still broadcast, which only the reference knows."""
        loose, shape = self.variadics.get(name, (False, None))
        if loose:
            raise LookupError(name)
        return None if shape is None else list(shape)


def adopt(call: CallState, bound: scope | None) -> None:
    """Have the result of a call held to the axes that its body bound."""
    if bound is None:
        return
    for mine, found in ((call.axes, bound.axes), (call.variadics, bound.variadics)):
        for name in found.keys() - mine.keys():
            mine[name] = found[name]
            call.owners.setdefault(name, "isinstance")


# ---------------------------------------------------------------- which code asks


def asks(fn: Any, local: _Names) -> bool:
    """Whether the body may ask `isinstance(y, Float[Tensor, "b c"])`, to judge by the names in its code.

    It may if `isinstance` is named in the body, or in a function behind one of its decorators; and if a helper named in
    the body names both `isinstance` and something of jaxtyping's. Helpers are functions of the same module (also
    those still to come, and methods) with those that they name in turn, and functions of other modules without.
    """
    layers = [fn]
    if hasattr(fn, "__wrapped__"):
        layers.append(inspect.unwrap(fn, stop=layers.append))
    bodies = [layer for layer in layers if type(layer) is FunctionType]
    return any(
        "isinstance" in _names(body.__code__) or _Search(body, local).reaches(body.__code__, closure_of(body))
        for body in bodies
    )


def closure_of(fn: Any) -> _Names:
    """A function's type parameters, and the names it closes over that exist already: `super()` closes over a class."""
    names: _Names = by_name(getattr(fn, "__type_params__", ()))
    code = getattr(fn, "__code__", None)
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True) if code is not None else ():
        with contextlib.suppress(ValueError):
            names[name] = cell.cell_contents
    return names


class _Search:
    """Looks through what a function names, as it stands when the function is decorated."""

    def __init__(self, fn: FunctionType, local: _Names) -> None:
        self.module = fn.__globals__
        self.local = local
        self.written = list(_functions_being_made(self.module))
        self.seen: set[int] = set()

    def reaches(self, code: CodeType, cells: _Names) -> bool:
        """Whether a helper asks that this code of the module names."""
        names = _names(code)
        for found in _resolve(names, {**self.local, **cells}, self.module):
            if type(found) is FunctionType and self._asks(found.__code__, closure_of(found), found.__globals__):
                return True
        return any(
            self._asks(helper, {}, self.module)
            for functions in self.written
            for name in names & functions.keys()
            for helper in functions[name]
        )

    def _asks(self, code: CodeType, cells: _Names, module: _Names) -> bool:
        if id(code) in self.seen:
            return False
        self.seen.add(id(code))
        names = _names(code)
        if "isinstance" in names:
            scope = {**self.local, **cells} if module is self.module else cells
            if "jaxtyping" in names or any(map(_is_jaxtyping, _resolve(names, scope, module))):
                return True
        return module is self.module and self.reaches(code, cells)


def _names(code: CodeType) -> frozenset[str]:
    """What code names, and the code inside it: comprehensions, lambdas, functions, classes."""
    return frozenset(code.co_names).union(code.co_freevars, *map(_names, _nested_code(code)))


def _nested_code(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _resolve(names: frozenset[str], local: _Names, module: _Names) -> Iterator[Any]:
    """What names mean, in a function or as `module.name`; no attribute is computed for it."""
    for name in names:
        value = local.get(name, module.get(name))
        yield value
        if issubclass(type(value), ModuleType):
            yield from (vars(value).get(other) for other in names)


def _is_jaxtyping(value: Any) -> bool:
    """Whether a value is a dtype or an annotation of jaxtyping, or a union with one."""
    home = str(type(value).__module__)
    return home.startswith("jaxtyping.") or (home in ("types", "typing") and any(map(_is_jaxtyping, get_args(value))))


_Written = dict[str, list[CodeType]]
_known: dict[int, tuple[CodeType, _Written]] = {}


def _functions_being_made(module: _Names) -> Iterator[_Written]:
    """The functions of a module by name, those to come as well, from the code on the stack that is making them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module:
            yield _written_in(frame.f_code)
        frame = frame.f_back


def _written_in(code: CodeType) -> _Written:
    known = _known.get(id(code))  # code is equal by value, which is slow to compare
    if known is None:
        functions: _Written = {}
        waiting = [code]
        while waiting:
            inside = _nested_code(waiting.pop())
            waiting += inside
            for each in inside:
                functions.setdefault(each.co_name, []).append(each)
        if len(_known) > 64:
            _known.clear()
        known = _known[id(code)] = (code, functions)
    return known[1]
