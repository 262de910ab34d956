"""Straight-line checks, written once per function.

Floor 4. `build` generates a wrapper whose code answers one question: is
everything right? If so the body is called; if not, or if an annotation has a
form that the generator does not speak, `_cast.enter` takes over with the
reference checker. The generated code never explains and never repairs.
"""

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import linecache
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._anchor import find, slot
from ._cast import enter, leave
from ._check import SCALARS, Call, Contract, Param, bearable, same_device
from ._config import Autocast
from ._dtypes import AUTOCAST, FLOATING
from ._mend import mend, mended
from ._spec import (
    Dim,
    DimKind,
    FieldsSpec,
    MappingSpec,
    NoneSpec,
    OtherSpec,
    SequenceSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
)

_numbers = itertools.count(1)
_P = inspect.Parameter


class Inexpressible(Exception):
    """A form that only the reference checker knows."""


class _Miss(Exception):
    """Raised by generated code inside a loop: something is not right."""


class _Writer:
    """Lines of source, the objects they close over, and the axes bound so far."""

    def __init__(self, contract: Contract, anchored: bool, device: str) -> None:
        self.contract = contract
        self.anchored = anchored
        self.device = device  # the expression of the anchor's device
        self.closure: dict[str, Any] = {"_dg_Miss": _Miss, "_dg_isinstance": isinstance, "_dg_Tensor": Tensor}
        self.lines: list[str] = []
        self.axes: dict[tuple[bool, str], tuple[str, bool]] = {}  # (variadic, axis): (variable, surely bound)
        self.pending: dict[tuple[bool, str], str] = {}  # unpacked, but not yet reached from left to right
        self.initial: list[str] = []  # variables that may stay unbound
        self.depth = 3
        self.loops = 0
        self.branches = 0
        self._names = itertools.count()

    def const(self, value: Any, hint: str = "c") -> str:
        for name, known in self.closure.items():
            if known is value:
                return name
        name = f"_dg_{hint}{next(self._names)}"
        self.closure[name] = value
        return name

    def fresh(self, hint: str = "s") -> str:
        return f"_dg_{hint}{next(self._names)}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def miss_if(self, condition: str) -> None:
        self.line(f"if {condition}: {'raise _dg_Miss' if self.loops else 'break'}")

    @contextmanager
    def block(self, head: str, loop: bool = False) -> Iterator[None]:
        """An indented block that may not run: what it binds is not surely bound after it."""
        before = dict(self.axes)
        self.line(head)
        self.depth += 1
        self.loops += loop
        self.branches += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1
        self.loops -= loop
        self.branches -= 1
        self.axes = {key: (name, before.get(key, (name, False))[1]) for key, (name, _) in self.axes.items()}

    # ------------------------------------------------------------ specs

    def spec(self, spec: Spec, var: str) -> None:
        _EMITTERS[type(spec)](self, spec, var)

    def tensor(self, spec: TensorSpec, var: str) -> None:
        if not spec.torch_only:
            raise Inexpressible
        cls = self.const(spec.array_type, "T")
        self.miss_if(f"not _dg_isinstance({var}, {cls})")
        self.dtype(spec, var)
        if self.anchored:
            loose = "" if self.contract.guarded else "_dg_p is None or "
            self.miss_if(f"not ({var}.is_cpu if _dg_cpu else {loose}{var}.device == {self.device})")
        self.dims(spec, var)

    def autocast(self, var: str) -> str:
        enabled = self.const(torch.is_autocast_enabled, "enabled")
        return f'{enabled}("cpu" if {var}.is_cpu else {var}.device.type)'

    def dtype(self, spec: TensorSpec, var: str) -> None:
        follow = self.contract.autocast is Autocast.FOLLOW
        concrete = spec.concrete
        if concrete is not None:
            wanted = self.const(concrete, "d")
            chance = ""
            if follow and concrete is torch.float32:
                halves = self.const(AUTOCAST - {torch.float32}, "half")
                chance = f" and not ({var}.dtype in {halves} and {self.autocast(var)})"
            self.miss_if(f"{var}.dtype is not {wanted}{chance}")
            return
        dtype = self.fresh("t")
        if spec.dtypes is not None:
            self.line(f"{dtype} = {var}.dtype")
            self.miss_if(f"{dtype} not in {self.const(spec.dtypes, 'f')}")
        floats = spec.dtypes is None or bool(spec.dtypes & FLOATING)
        if self.anchored and floats:
            if spec.dtypes is None:
                self.line(f"{dtype} = {var}.dtype")
            ways = [f"{dtype} is _dg_a", "_dg_a is None"]
            if spec.dtypes is None or spec.dtypes - FLOATING:
                ways.append(f"{dtype} not in {self.const(FLOATING, 'floating')}")
            if follow:
                both = self.const(AUTOCAST, "both")
                ways.append(f"{dtype} in {both} and _dg_a in {both} and {self.autocast(var)}")
            self.miss_if(f"not ({' or '.join(ways)})")

    def dims(self, spec: TensorSpec, var: str) -> None:
        dims = spec.dims
        if len(dims) == 1 and dims[0].variadic and dims[0].kind is DimKind.ANONYMOUS:
            return
        if all(dim.kind is DimKind.ANONYMOUS and not dim.variadic for dim in dims):
            self.miss_if(f"{var}.ndim != {len(dims)}")
            return
        sizes = [self.size_variable(dim, dims) for dim in dims]
        targets = [("*" if dim.variadic else "") + name for dim, name in zip(dims, sizes, strict=True)]
        self.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {var}.shape")
        order = [i for i in range(len(dims)) if i != spec.variadic]
        for i in (*order, *([] if spec.variadic is None else [spec.variadic])):
            self.dim(dims[i], sizes[i])

    def size_variable(self, dim: Dim, dims: tuple[Dim, ...]) -> str:
        """Where an axis' size is unpacked to: at its first and only sight, straight to the axis' own variable."""
        key = (dim.variadic, dim.text)
        once = sum((d.variadic, d.text) == key for d in dims) == 1
        direct = dim.kind is DimKind.NAMED and not dim.broadcast and once and key not in self.axes
        if not direct or self.loops or dim.tree:
            return self.fresh()
        if not self.branches:  # surely assigned before it is read
            self.pending[key] = self.fresh("v" if dim.variadic else "n")
            return self.pending[key]
        return self.variable(key)

    def variable(self, key: tuple[bool, str]) -> str:
        if key not in self.axes:
            name = self.pending.pop(key, None)
            if name is None:
                name = self.fresh("v" if key[0] else "n")
                self.initial.append(name)
            self.axes[key] = (name, False)
        return self.axes[key][0]

    def dim(self, dim: Dim, size: str) -> None:
        if dim.kind is DimKind.ANONYMOUS:
            return
        if dim.tree or (dim.variadic and dim.broadcast):
            raise Inexpressible
        loose = f"{size} != 1 and " if dim.broadcast else ""
        if dim.kind is DimKind.FIXED:
            self.miss_if(f"{loose}{size} != {dim.size}")
        elif dim.kind is DimKind.SYMBOLIC:
            self.miss_if(f"{loose}({self.expression(dim)}) != {size}")
        else:
            key = (dim.variadic, dim.text)
            name = self.variable(key)
            if name == size:  # unpacked straight into it
                self.axes[key] = (name, True)
            elif self.axes[key][1]:
                self.miss_if(f"{loose}{size} != {name}")
            else:
                self.line(f"if {loose}{name} is None: {name} = {size}")
                self.miss_if(f"{loose}{size} != {name}")
                self.axes[key] = (name, not dim.broadcast)

    def expression(self, dim: Dim) -> str:
        """A symbolic axis with its names replaced by the variables that hold them."""
        if dim.names is None:
            raise Inexpressible
        tree = ast.parse(dim.text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                known = self.axes.get((False, node.id))
                if known is not None and known[1]:
                    node.id = known[0]
                elif known is None and hasattr(builtins, node.id):
                    node.id = self.const(getattr(builtins, node.id), "builtin")
                else:
                    raise Inexpressible
        return ast.unparse(tree)

    def union(self, spec: UnionSpec, var: str) -> None:
        options = [option for option in spec.options if not isinstance(option, NoneSpec)]
        if len(options) != 1:
            raise Inexpressible
        with self.block(f"if {var} is not None:"):
            self.spec(options[0], var)

    def none(self, spec: NoneSpec, var: str) -> None:
        self.miss_if(f"{var} is not None")

    def other(self, spec: OtherSpec, var: str) -> None:
        if spec.classes is not None:
            self.miss_if(f"not _dg_isinstance({var}, {self.const(spec.classes, 'C')})")
        else:
            self.miss_if(f"not {self.const(bearable, 'bearable')}({self.const(spec, 'spec')}, {var})")

    def sequence(self, spec: SequenceSpec, var: str) -> None:
        if spec.origin not in (list, tuple):
            raise Inexpressible
        self.miss_if(f"not _dg_isinstance({var}, {self.const(spec.origin, 'C')})")
        item = self.fresh("i")
        with self.block(f"for {item} in {var}:", loop=True):
            self.spec(spec.item, item)

    def tuple(self, spec: TupleSpec, var: str) -> None:
        if not spec.items:
            raise Inexpressible
        self.miss_if(f"not _dg_isinstance({var}, {self.const(tuple, 'C')})")
        items = [self.fresh("i") for _ in spec.items]
        self.line(f"{', '.join(items)}, = {var}")
        for item_spec, item in zip(spec.items, items, strict=True):
            if item_spec is not None:
                self.spec(item_spec, item)

    def mapping(self, spec: MappingSpec, var: str) -> None:
        self.miss_if(f"not _dg_isinstance({var}, {self.const(spec.origin, 'C')})")
        item = self.fresh("i")
        with self.block(f"for {item} in {var}.values():", loop=True):
            self.spec(spec.value, item)

    def fields(self, spec: FieldsSpec, var: str) -> None:
        if spec.origin is dict:
            raise Inexpressible
        self.miss_if(f"not _dg_isinstance({var}, {self.const(spec.origin, 'C')})")
        for name, field_spec in spec.fields.items():
            item = self.fresh("i")
            self.line(f"{item} = {var}.{name}")
            self.spec(field_spec, item)

    def guarded(self, var: str, extra: bool) -> None:
        """An unannotated argument of a guarded forward: inline for a plain tensor, `scan` for all else."""
        if not self.anchored:
            return
        same = f"{var}.dtype is _dg_a"
        if self.contract.autocast is Autocast.FOLLOW:
            both = self.const(AUTOCAST, "both")
            same = f"({same} or {var}.dtype in {both} and _dg_a in {both} and {self.autocast(var)})"
        kind = self.const(type, "type")
        right = f"{kind}({var}) is _dg_Tensor and {same} and ({var}.is_cpu if _dg_cpu else {var}.device == {self.device})"
        walk = f"{self.const(scan, 'scan')}({var}, _dg_a, {self.device}, _dg_contract)"
        empty = f"{var} and " if extra else f"{var} is not None and "
        self.miss_if(f"{empty}not ({right}) and not {walk}")


_EMITTERS: dict[type, Callable[[_Writer, Any, str], None]] = {
    TensorSpec: _Writer.tensor,
    UnionSpec: _Writer.union,
    NoneSpec: _Writer.none,
    OtherSpec: _Writer.other,
    SequenceSpec: _Writer.sequence,
    TupleSpec: _Writer.tuple,
    MappingSpec: _Writer.mapping,
    FieldsSpec: _Writer.fields,
}


_PASS = frozenset({int, float, bool, str, type(None)})


def scan(value: Any, dtype: torch.dtype | None, device: torch.device | None, contract: Contract) -> bool:
    """Whether everything in an unannotated argument surely is right; on False the reference checker looks again."""
    return _scan(value, dtype, device, device is not None and device.type == "cpu", contract)


def _scan(value: Any, dtype: Any, device: Any, cpu: bool, contract: Contract) -> bool:
    kind = type(value)
    if kind is tuple or kind is list:
        if kind is list and value and type(value[0]) in _PASS and type(value[-1]) in _PASS:
            return True
        for item in value:
            if type(item) is Tensor and item.dtype is dtype and (item.is_cpu if cpu else item.device == device):
                continue
            if type(item) not in _PASS and not _scan(item, dtype, device, cpu, contract):
                return False
        return True
    if isinstance(value, Tensor):
        found = value.dtype
        if found in FLOATING:
            if dtype is not None and found is not dtype:
                follows = contract.autocast is Autocast.FOLLOW and found in AUTOCAST and dtype in AUTOCAST
                if not (follows and torch.is_autocast_enabled(value.device.type)):
                    return False
        elif value.is_cpu and not contract.move_args:
            return True
        return device is None or same_device(value.device, device)
    if kind is dict:
        return all(_scan(item, dtype, device, cpu, contract) for item in value.values())
    return kind in SCALARS


# ---------------------------------------------------------------- the wrapper


def _call_arguments(params: tuple[Param, ...]) -> str:
    """How the wrapper passes its parameters on to the body."""
    forms = {_P.VAR_POSITIONAL: "*{0}", _P.VAR_KEYWORD: "**{0}", _P.KEYWORD_ONLY: "{0}={0}"}
    return ", ".join(forms.get(param.kind, "{0}").format(param.name) for param in params)


def _declaration(params: tuple[Param, ...], defaults: dict[str, str]) -> str:
    """The wrapper's own parameter list: the same names, kinds and defaults."""
    parts: list[str] = []
    previous: Any = None
    for param in params:
        if previous is _P.POSITIONAL_ONLY and param.kind is not _P.POSITIONAL_ONLY:
            parts.append("/")
        if param.kind is _P.KEYWORD_ONLY and previous not in (_P.KEYWORD_ONLY, _P.VAR_POSITIONAL):
            parts.append("*")
        star = {_P.VAR_POSITIONAL: "*", _P.VAR_KEYWORD: "**"}.get(param.kind, "")
        parts.append(star + param.name + (f"={defaults[param.name]}" if param.name in defaults else ""))
        previous = param.kind
    if previous is _P.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def _write_arguments(writer: _Writer) -> None:
    for param in writer.contract.params:
        spec = param.spec
        if writer.contract.guarded and isinstance(spec, OtherSpec):
            spec = None
        if param.skip or (spec is None and not writer.contract.guarded):
            continue
        if param.kind is _P.VAR_KEYWORD and writer.contract.skip_args:
            raise Inexpressible
        several = param.kind in (_P.VAR_POSITIONAL, _P.VAR_KEYWORD)
        if spec is None:
            writer.guarded(param.name, several)
        elif several:
            item = writer.fresh("i")
            values = f"{param.name}.values()" if param.kind is _P.VAR_KEYWORD else param.name
            with writer.block(f"for {item} in {values}:", loop=True):
                writer.spec(spec, item)
        elif param.default is not _P.empty:
            default = "None" if param.default is None else writer.const(param.default, "default")
            with writer.block(f"if {param.name} is not {default}:"):
                writer.spec(spec, param.name)
        else:
            writer.spec(spec, param.name)


def _attempt(contract: Contract, anchored: bool, device: str) -> tuple[_Writer, list[str] | None, list[str] | None]:
    """The lines that check arguments and result; None where only the reference can."""
    writer = _Writer(contract, anchored, device)
    try:
        if contract.anchor not in (None, "self"):
            raise Inexpressible
        _write_arguments(writer)
    except Inexpressible:
        return _Writer(contract, anchored, device), None, None
    arguments, writer.lines, writer.depth = writer.lines, [], 3
    try:
        if contract.output_dtype is not None:
            raise Inexpressible
        if contract.returns is not None:
            writer.spec(contract.returns, "_dg_out")
    except Inexpressible:
        return writer, arguments, None
    return writer, arguments, writer.lines


_FIND = """\
_dg_p = _dg_slot({self})
if _dg_p is None: _dg_a, _dg_cpu = None, False
else: _dg_a, _dg_cpu = _dg_p.dtype, _dg_p.is_cpu
"""
_READ = """\
try: _dg_p = {path}
except _dg_KeyErrors: _dg_p = _dg_find({self})
"""
_MEND = """\
_dg_known = _dg_mend(_dg_contract, {values})
if _dg_known is not None:
    {names} = _dg_known.values
    return _dg_mended(_dg_known, {call})
"""
_ASYNC_STREAM = """\
_dg_stream = {call}
_dg_step = _dg_stream.asend(None)
while True:
    try: _dg_item = await _dg_step
    except _dg_StopAsyncIteration: return
    try: _dg_sent = yield _dg_yielded(_dg_call, _dg_item)
    except _dg_GeneratorExit:
        await _dg_stream.aclose()
        raise
    except _dg_BaseException as _dg_error: _dg_step = _dg_stream.athrow(_dg_error)
    else: _dg_step = _dg_stream.asend(_dg_sent)
"""
# Bound, because a NamedTuple's functions see no builtins, and a user's module may hide them.
_EXCEPTIONS = {
    f"_dg_{error.__name__}": error
    for error in (Exception, BaseException, RuntimeError, StopAsyncIteration, GeneratorExit)
} | {"_dg_KeyErrors": (KeyError, AttributeError)}
_BODY = {
    "function": "_dg_out = {call}",
    "coroutine": "_dg_out = await {call}",
    "generator": "_dg_out = yield from _dg_yields(_dg_call, {call})",
    "async generator": _ASYNC_STREAM,
}


def kind_of(fn: Any) -> str:
    """Which of the four kinds of function this is."""
    if inspect.isasyncgenfunction(fn):
        return "async generator"
    if inspect.isgeneratorfunction(fn):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(fn) else "function"


def _device(contract: Contract, path: str | None, agrees: tuple[bool, bool]) -> str:
    """The expression of the anchor's device; a CPU is compared by `is_cpu` alone, so it is rarely evaluated."""
    if contract.device is not None:
        return "_dg_contract.device"
    return "_dg_p.device" if not contract.guarded or (path is not None and agrees[1]) else "None"


def _anchor_lines(
    contract: Contract, self_name: str, path: str | None, agrees: tuple[bool, bool], device: str
) -> list[str]:
    """How the anchor's dtype, and whether its device is a CPU, get into `_dg_a` and `_dg_cpu`."""
    if not contract.guarded:
        return _FIND.format(self=self_name).splitlines()
    lines = _READ.format(path=path.format(self=self_name), self=self_name).splitlines() if path is not None else []
    dtype = "_dg_p.dtype" if path is not None and agrees[0] else "None"
    dtype = dtype if contract.dtype is None else "_dg_contract.dtype"
    cpu = "_dg_p.is_cpu" if device == "_dg_p.device" else str(contract.device is not None and contract.device.type == "cpu")
    return [*lines, f"_dg_a = {dtype}", f"_dg_cpu = {cpu}"]


def source(
    fn: Any, contract: Contract, path: str | None, agrees: tuple[bool, bool], scoped: bool
) -> tuple[list[str], dict[str, Any], list[str] | None]:
    """The wrapper's source, what it closes over, and the lines that check the arguments, if only those."""
    names, kind = [param.name for param in contract.params], kind_of(fn)
    overridden = contract.dtype is not None or contract.device is not None
    anchored = (path is not None or overridden) if contract.guarded else contract.anchor == "self"
    device = _device(contract, path, agrees)
    writer, arguments, result = _attempt(contract, anchored, device)
    if kind.endswith("generator"):
        arguments = None
    closure = dict(writer.closure)
    closure |= {"_dg_fn": fn, "_dg_enter": enter, "_dg_leave": leave, "_dg_contract": contract, "_dg_find": find}
    closure |= {"_dg_yields": yields, "_dg_yielded": yielded, "_dg_scope": scope, "_dg_note": note, "_dg_slot": None}
    closure |= {"_dg_mend": mend, "_dg_mended": mended}
    closure["_dg_compiling"] = torch.compiler.is_compiling
    closure |= _EXCEPTIONS
    defaults = {param.name: f"_dg_is_{param.name}" for param in contract.params if param.default is not _P.empty}
    closure |= {defaults[param.name]: param.default for param in contract.params if param.name in defaults}
    comma = "," if len(names) == 1 else ""
    values = f"({', '.join(names)}{comma})"
    call = f"_dg_fn({_call_arguments(contract.params)})"

    def body(axes: str) -> list[str]:
        lines = _BODY[kind].format(call=call).splitlines()
        if scoped and kind == "function":
            lines = [f"if _dg_compiling(): {lines[0]}", "else:", f"    with _dg_scope({axes}): {lines[0]}"]
        if contract.guarded:
            noted = [f"    {line}" for line in lines]
            lines = ["try:", *noted, "except _dg_RuntimeError as _dg_error:", f"    _dg_note(_dg_error, {names[0]})"]
            lines += ["    raise"]
        return lines

    enters = [f"_dg_call = _dg_enter(_dg_contract, {values})"]
    slow = [*enters, *([f"{values[1:-1]} = _dg_call.values"] if names else [])]
    slow += body("_dg_call.axes, _dg_call.variadics")
    if kind != "async generator":
        slow += ["return _dg_leave(_dg_call, _dg_out)"]
    prefix = "async def" if kind.startswith(("async", "coroutine")) else "def"
    name = fn.__name__ if fn.__name__.isidentifier() else "wrapper"
    lines = [f"{prefix} {name}({_declaration(contract.params, defaults)}):", "    __tracebackhide__ = True"]
    if arguments is None:
        return [*lines, *(f"    {line}" for line in slow)], closure, None
    head = _anchor_lines(contract, names[0], path, agrees, device) if anchored else []
    checks = [*(f"            {line}" for line in (*(f"{name} = None" for name in writer.initial), *head)), *arguments]
    lines += [f"    {variable} = None" for variable in writer.initial]
    lines += ["    _dg_ok = False", "    try:", "        while True:", *(f"            {line}" for line in head)]
    lines += [*arguments, "            _dg_ok = True", "            break", "    except _dg_Exception: pass"]
    lines += ["    if not _dg_ok:"]
    if kind == "function" and names:
        lines += [f"        {line}" for line in _MEND.format(values=values, call=call.replace("_dg_fn", "_dg_contract.wrapper", 1), names=values[1:-1]).splitlines()]
    lines += [f"        {line}" for line in slow]
    single = {axis: variable for (variadic, axis), (variable, _) in writer.axes.items() if not variadic}
    several = {axis: variable for (variadic, axis), (variable, _) in writer.axes.items() if variadic}
    pairs = [", ".join(f"{axis!r}: {variable}" for axis, variable in part.items()) for part in (single, several)]
    lines += [f"    {line}" for line in body(f"{{{pairs[0]}}}, {{{pairs[1]}}}")]
    if result is not None and contract.returns is None:
        return [*lines, "    return _dg_out"], closure, checks
    if result is not None:
        lines += ["    try:", "        while True:", *result, "            return _dg_out", "    except _dg_Exception: pass"]
    return [*lines, *(f"    {line}" for line in enters), "    return _dg_leave(_dg_call, _dg_out)"], closure, checks


def build(
    fn: Any,
    contract: Contract,
    *,
    path: str | None = None,
    agrees: tuple[bool, bool] = (True, True),
) -> Any:
    """The wrapper of `fn`.

    Args:
        fn: the body.
        contract: what its arguments and result must be.
        path: the expression that reads the anchor, where the module is known; else the first call finds it.
        agrees: whether the module's parameters agree on a dtype, and on a device.
    """
    code = getattr(fn, "__code__", None)
    scoped = code is not None and "isinstance" in code.co_names and not contract.guarded
    lines, closure, arguments = source(fn, contract, path, agrees, scoped)
    inner = "\n".join(f"    {line}" for line in lines)
    closure = {name: value for name, value in closure.items() if name in inner}
    text = f"def _dg_factory({', '.join(closure)}):\n{inner}"
    name = lines[0].partition("(")[0].split()[-1]
    text += f"\n    return {name}\n"
    # Each function has code of its own, under a file name of its own: Dynamo counts recompiles per code object.
    filename = f"<dtypeguard {contract.function} {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), getattr(fn, "__globals__", {}), namespace)
    wrapper = namespace["_dg_factory"](**closure)
    _name_after(wrapper, fn)
    if "_dg_slot" in wrapper.__code__.co_freevars:
        cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("_dg_slot")]
        cell.cell_contents = _first_look(cell)
    contract.wrapper = wrapper
    if arguments is not None and kind_of(fn) == "function":
        contract.right = functools.partial(_right, contract, arguments, closure)
    return wrapper


def _right(contract: Contract, arguments: list[str], closure: dict[str, Any]) -> Any:
    """The check of the arguments as a function of its own, made when the first repair becomes a habit."""
    names = ", ".join(param.name for param in contract.params)
    lines = [f"def _dg_factory({', '.join(closure)}):", f"  def right({names}):", "    try:", "        while True:"]
    lines += [*arguments, "            return True", "    except _dg_Exception: pass", "    return False", "  return right"]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), {}, namespace)
    return namespace["_dg_factory"](**closure)


def _name_after(wrapper: Any, fn: Any) -> None:
    """Names, doc, annotations and attributes of the body, and its real signature; not `__wrapped__` (see `_enforce`)."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(fn, attribute, getattr(wrapper, attribute)))
    wrapper.__code__ = wrapper.__code__.replace(co_name=fn.__name__)
    if hasattr(fn, "__annotate__"):  # PEP 649: stay deferred
        wrapper.__annotate__ = fn.__annotate__
    else:
        wrapper.__annotations__ = dict(getattr(fn, "__annotations__", {}))
    wrapper.__dict__.update(getattr(fn, "__dict__", {}))


def _first_look(cell: Any) -> Callable[[Any], Tensor | None]:
    """Finds the anchor of the first module that comes by, and leaves a fast reader for its like in the cell."""

    def look(module: Any) -> Tensor | None:
        tensor = find(module) if isinstance(module, nn.Module) else None
        if tensor is not None and not torch.compiler.is_compiling():
            text = f"def read(self):\n try: return {str(slot(module)).format(self='self')}\n except (KeyError, AttributeError): return find(self)"
            namespace: dict[str, Any] = {"find": _find_any}
            exec(text, namespace)
            cell.cell_contents = namespace["read"]
        return tensor

    return look


def _find_any(module: Any) -> Tensor | None:
    return find(module) if isinstance(module, nn.Module) else None


# ---------------------------------------------------------------- what generated code calls


def yielded(call: Call, item: Any) -> Any:
    """One item that a generator yields, checked like a result."""
    __tracebackhide__ = True
    if call.contract.yields is None:
        return item
    contract = dataclasses.replace(call.contract, returns=call.contract.yields)
    return leave(dataclasses.replace(call, contract=contract), item)


def yields(call: Call, stream: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """What `yield from stream` does, with every item checked."""
    __tracebackhide__ = True
    step: Callable[[Any], Any] = stream.send
    given: Any = None
    while True:
        try:
            item = step(given)
        except StopIteration as stop:
            return stop.value
        try:
            given = yield yielded(call, item)
            step = stream.send
        except GeneratorExit:
            stream.close()
            raise
        except BaseException as error:
            step, given = stream.throw, error


@contextmanager
def scope(axes: dict[str, Any], variadics: dict[str, Any]) -> Iterator[None]:
    """jaxtyping's own scope with the call's axes, for a body that asks `isinstance(y, Float[Tensor, "b c"])`."""
    from jaxtyping import _storage

    single, several, *_ = _storage.push_shape_memo({})
    single.update({name: size for name, size in axes.items() if size is not None})
    for name, shape in variadics.items():
        if shape is not None:
            several[name] = shape if isinstance(shape, tuple) and isinstance(shape[0], bool) else (False, tuple(shape))
    try:
        yield
    finally:
        _storage.pop_shape_memo()


_TORCH_SAYS = ("dtype", "same device", "scalar type", "Found dtype", "bias type", "device type", "different from other")


def note(error: RuntimeError, module: Any) -> None:
    """Say on torch's own dtype or device error where the guard stood; the error itself is not touched."""
    if not any(words in str(error) for words in _TORCH_SAYS) or getattr(error, "__dtypeguard_noted__", False):
        return
    card = getattr(module, "_dtypeguard", None)
    error.__dtypeguard_noted__ = True  # type: ignore[attr-defined]
    where = card.path if card is not None else type(module).__name__
    advice = card.advice() if card is not None else ""
    error.add_note(f"dtypeguard: raised inside {where}, whose arguments were right{advice}")
