"""What the caller wrote for an argument, read from the source of the call.

Only messages need it, so the call itself stores nothing. Where it is not certain that the text belongs to the argument,
there is none: after `functools.partial` or `map`, in a module that another module of PyTorch called, without a source.
"""

import ast
import collections
import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import operator
import sys
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from ..base.errors import Expression
from ..base.frames import caller, is_own, source_lines
from ..contract.model import Param, Path, checked_values, written
from .state import CallState

_LONGEST = 60
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CALL, _CALL_IMPL = nn.Module._wrapped_call_impl.__code__, nn.Module._call_impl.__code__
_SEQUENTIAL = nn.Sequential.forward.__code__
_HOOKED = {inside for inside in _CALL_IMPL.co_consts if isinstance(inside, CodeType)}  # where a module has hooks
_MODULE_CALL = {_CALL, _CALL_IMPL, *_HOOKED}
_PLACES = (ast.Name, ast.Attribute, ast.Subscript)
_OPERANDS = (*_PLACES, ast.Call, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)  # need no parentheses
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Their methods are no models and no functions of the user, but may call one: `outputs.extend(map(model, batches))`.
_CONTAINERS = (list, dict, set, str, collections.deque)
_NUMBERS = frozenset("float half double bfloat16 float16 float32 float64 int long short int16 int32 int64".split())
_UNKNOWN = object()


class Arguments:
    """The arguments of one call, as its caller wrote them.

    Args:
        call: the call.
        frame: of its wrapper; None: it is being checked now.
    """

    def __init__(self, call: CallState, frame: FrameType | None = None) -> None:
        self._text = ""
        self._nodes: dict[Path, ast.expr] = {}
        user, between = _frames(frame or sys._getframe(1))
        if user is not None and between is not None and not call.leaving:
            with contextlib.suppress(Exception):  # an object of the user's may fail to be looked at
                self._text, node = _call_node(user)
                self._nodes = _bound(call, node, user, between) if isinstance(node, ast.Call) else {}

    def __getitem__(self, path: Path) -> Expression | None:
        """What stands for the value at a path; None where that is the name of its parameter, or not certain."""
        for length in (2, 1):
            node = self._nodes.get(path[:length])
            if node is not None:
                node, steps = _node_at(node, path[length:])
                if steps and not (isinstance(node, _PLACES) and all(kind != "member" for kind, _ in steps)):
                    return None
                text = ast.get_source_segment(self._text, node) if node.lineno == node.end_lineno else ast.unparse(node)
                text = written((text, *steps))
                if len(text) > _LONGEST or text == written(path) or isinstance(node, ast.Constant):
                    return None
                cast = None if steps else _before_cast(node)
                bare = None if cast is None else _as_operand(cast, ast.get_source_segment(self._text, cast) or "")
                return Expression(text, _as_operand(node, text), bare)
        return None


def _as_operand(node: ast.expr, text: str) -> str:
    return text if isinstance(node, _OPERANDS) else f"({text})"


def _before_cast(node: ast.expr) -> ast.expr | None:
    """What an expression casts at its end: `ids` of `ids.float()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.lineno != node.end_lineno:
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    name = node.func.attr
    if name in ("to", "type") and len(given) == 1 and isinstance(given[0], ast.Attribute):
        name, given = given[0].attr, []
    return node.func.value if name in _NUMBERS and not given else None


def _frames(frame: FrameType) -> tuple[FrameType | None, list[CodeType] | None]:
    """The user's frame, and what runs between it and the check; None for the second if that may change arguments."""
    user, between, hooked = caller(frame), [], None
    found: FrameType | None = frame
    while found is not None and found is not user:
        code = found.f_code
        hooked = found if code in _HOOKED else hooked
        if code is _CALL and hooked is not None and not _passes_on(found, hooked):
            return user, None
        through = code in _MODULE_CALL or code.co_name == "decorate_context" or _is_first(found)
        found = found.f_back
        if not (through or is_own(code.co_filename)):
            return user, None
        between.append(code)
    return user, between


def _is_first(frame: FrameType) -> bool:
    """Whether a Sequential calls its first module, with what it was called with."""
    names = frame.f_locals if frame.f_code is _SEQUENTIAL else {}
    return "module" in names and next(iter(names["self"])) is names["module"]


def _passes_on(outer: FrameType, inner: FrameType) -> bool:
    """Whether the hooks of a module left the arguments of its call as they are."""
    before, after = ((*names["args"], *names["kwargs"].values()) for names in (outer.f_locals, inner.f_locals))
    return len(before) == len(after) and all(map(operator.is_, before, after))


def _call_node(frame: FrameType) -> tuple[str, ast.expr | None]:
    """The call that a frame is in, after the text that its positions refer to; None if it is in something else."""
    code, at = frame.f_code, frame.f_lasti
    while dis.opname[code.co_code[at]] == "CACHE":
        at -= 2
    linecache.checkcache(code.co_filename)  # as a traceback does: the file may have been edited
    lines = source_lines(code, at) if dis.opname[code.co_code[at]].startswith("CALL") else []
    text = "\n".join(["(", *lines, ")"])
    return text, _parsed(text)


@functools.lru_cache(256)
def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _bound(call: CallState, node: ast.Call, frame: FrameType, between: list[CodeType]) -> dict[Path, ast.expr]:
    """The nodes of the arguments by their paths; none if they do not explain the values that arrived."""
    params, values = call.contract.params, call.values
    if call.contract.function == "check":  # its other arguments are options
        node = ast.Call(node.func, node.args[:1], [])
    if any(code.co_flags & _SUSPENDED for code in between):  # its arguments were given earlier
        return {}
    skipped = _count_skipped(node.func, frame, set(between), call)
    nodes = None if skipped is None else _argument_nodes(node, params[skipped:], values[skipped:])
    held = {path: value for _, path, value in checked_values(call.contract, values)}
    agree = nodes is not None and all(_agrees(nodes[path], held[path], frame) for path in nodes.keys() & held.keys())
    return nodes if nodes is not None and agree else {}


def _count_skipped(callee: ast.expr, frame: FrameType, codes: set[CodeType], call: CallState) -> int | None:
    """How many of the first parameters do not stand in the call: 1 for `self`. None if it calls something else."""
    found, first = _resolved(callee, frame), call.contract.params[0]
    if found is _UNKNOWN:
        if isinstance(callee, ast.Attribute) and any(hasattr(cls, callee.attr) for cls in _CONTAINERS):
            return None
        return int(call.contract.guarded or call.contract.anchor == "self" or first.name in ("self", "cls"))
    owner = _resolved(callee.value, frame) if isinstance(callee, ast.Attribute) else None
    bound = isinstance(found, classmethod | MethodType)
    if isinstance(found, FunctionType):
        bound = owner is not None and not isinstance(owner, type | ModuleType)
    if isinstance(found, staticmethod | classmethod | MethodType):
        found = found.__func__
    if isinstance(found, FunctionType):
        chain = [found]
        while isinstance(inner := getattr(chain[-1], "__wrapped__", None), FunctionType) and inner not in chain:
            chain.append(inner)
        return int(bound) if any(one.__code__ in codes for one in chain) else None
    made = isinstance(found, type) and type(call.values[0]) is found
    return 1 if made or (call.values and found is call.values[0]) else None


def _resolved(node: ast.expr, frame: FrameType) -> Any:
    """The object that a name or a chain of attributes means, if that can be told without running code.

    Local names of a function are not looked up: `f_locals` would keep all of them alive.
    """
    if isinstance(node, ast.Name):
        code = frame.f_code
        if node.id in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return _UNKNOWN
        names = frame.f_globals if code.co_flags & inspect.CO_OPTIMIZED else frame.f_locals
        return next((d[node.id] for d in (names, frame.f_globals, frame.f_builtins) if node.id in d), _UNKNOWN)
    if not isinstance(node, ast.Attribute):
        return _UNKNOWN
    owner = _resolved(node.value, frame)
    if owner is _UNKNOWN:
        return _UNKNOWN
    children = owner.__dict__["_modules"] if isinstance(owner, nn.Module) else {}
    found = inspect.getattr_static(owner, node.attr, _UNKNOWN)
    return children.get(node.attr, found)


def _agrees(node: ast.expr, value: Any, frame: FrameType) -> bool:
    """Whether a node may stand for a value: a name or a constant can be compared with it."""
    if isinstance(node, ast.Constant):
        return type(value) is type(node.value)
    found = _resolved(node, frame) if isinstance(node, ast.Name) else _UNKNOWN
    return found is _UNKNOWN or found is value


def _argument_nodes(node: ast.Call, params: tuple[Param, ...], values: tuple[Any, ...]) -> dict[Path, ast.expr] | None:
    """The nodes of a call's arguments by path, if they and the defaults account for all values.

    Beside `*args` and `**kwargs` in the call only some are known.
    """
    kinds = inspect._ParameterKind
    rest = next((param.name for param in params if param.kind is kinds.VAR_POSITIONAL), None)
    options = next((param.name for param in params if param.kind is kinds.VAR_KEYWORD), None)
    positional = [p.name for p in params if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = {p.name for p in params if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)}
    written_out = [*itertools.takewhile(lambda arg: not isinstance(arg, ast.Starred), node.args)]
    nodes: dict[Path, ast.expr] = {}
    for n, arg in enumerate(written_out):
        if n >= len(positional) and rest is None:
            return None
        nodes[(positional[n],) if n < len(positional) else (rest, ("item", n - len(positional)))] = arg
    for keyword in node.keywords:
        if keyword.arg is not None:
            if keyword.arg not in named and options is None:
                return None
            nodes[(keyword.arg,) if keyword.arg in named else (options, ("item", keyword.arg))] = keyword.value
    if len(written_out) == len(node.args) and all(keyword.arg is not None for keyword in node.keywords):
        for param, value in zip(params, values, strict=True):
            if param.kind in _SEVERAL:
                if len(value) != sum(path[0] == param.name for path in nodes):
                    return None
            elif (param.name,) not in nodes and value is not param.default:
                return None
    return nodes


def _node_at(node: ast.expr, steps: Path) -> tuple[ast.expr, Path]:
    """The node of what a list, tuple or dict that is written out holds, and the steps that are left."""
    while steps:
        kind, key = steps[0]
        if isinstance(node, ast.List | ast.Tuple) and not any(isinstance(item, ast.Starred) for item in node.elts):
            found = node.elts[key] if kind == "item" else None
        elif isinstance(node, ast.Dict) and all(isinstance(name, ast.Constant) for name in node.keys):
            items = zip(node.keys, node.values, strict=True)
            found = next((item for name, item in items if getattr(name, "value", None) == key), None)
        else:
            found = None
        if found is None:
            break
        node, steps = found, steps[1:]
    return node, steps
