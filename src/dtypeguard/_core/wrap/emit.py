"""The lines that check: every form of annotation that the generator speaks, written as Python.

Generated code leaves its `while True` by `break` (inside a loop by raising) as soon as something is not right. A form
that takes more than a few lines raises `Inexpressible`, and the function's calls go to the reference checker.
"""

import ast
import builtins
import dataclasses
import itertools
import keyword
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..base.config import Autocast
from ..base.dtypes import AUTOCAST, FLOATING, HALF
from ..check.axes import differ, surely
from ..contract.anchor import facts
from ..contract.beartyped import bearable, is_own
from ..contract.dims import Dim, DimKind
from ..contract.model import Contract
from ..contract.spec import (
    CollectionSpec,
    FieldsSpec,
    MappingSpec,
    NoneSpec,
    OtherSpec,
    SelfSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    UnpackedSpec,
    ValidatedSpec,
    walk,
)
from .scan import ask, beside, left_alone, scan


class Inexpressible(Exception):
    """A form that only the reference checker knows."""


class _Miss(Exception):
    """Raised by generated code inside a loop: something is not right."""


class Writer:
    """Lines of source, the objects they close over, and the axes bound so far."""

    def __init__(self, contract: Contract, anchored: bool, device: str) -> None:
        self.contract = contract
        self.anchored = anchored
        self.device = device  # the expression of the anchor's device
        self.closure: dict[str, Any] = {"_dg_Miss": _Miss, "_dg_isinstance": isinstance, "_dg_Tensor": Tensor}
        self.closure |= {"_dg_facts": facts, "_dg_type": type, "_dg_beside": beside, "_dg_left": left_alone}
        self.place: int | None = None  # the argument that is in turn; None is the result
        self.lines: list[str] = []
        self.open: list[Spec] = []
        self.axes: dict[tuple[bool, str], tuple[str, bool]] = {}  # (variadic, axis): (variable, surely bound)
        self.pending: dict[tuple[bool, str], str] = {}  # unpacked, but not yet reached from left to right
        self.initial: list[str] = []  # variables that may stay unbound
        self.entry: dict[tuple[bool, str], tuple[str, bool]] = {}  # the axes as they are when the body begins
        self.late = False  # the body may have bound axes by itself
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
        way, indent = "raise _dg_Miss" if self.loops else "break", "    " * self.depth
        before = self.lines[-1] if self.lines else ""
        if before.startswith(f"{indent}if ") and before.endswith(f": {way}"):  # one statement compiles faster than two
            self.lines[-1] = f"{before[: -len(way) - 2]} or {condition}: {way}"
        else:
            self.line(f"if {condition}: {way}")

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

    def block_if(self, needed: Any, condition: str, prefix: str = "") -> AbstractContextManager[None]:
        """A block under a condition, where one is needed; else what follows stands as it is."""
        return self.block(f"{prefix}if {condition}:") if needed else nullcontext()

    # ------------------------------------------------------------ specs

    def spec(self, spec: Spec, var: str) -> None:
        if spec in self.open:  # a recursive class or alias
            raise Inexpressible
        self.open.append(spec)
        _EMITTERS[type(spec)](self, spec, var)
        self.open.pop()

    def ask(self, spec: Spec | None) -> None:
        """Have the reference check the argument (else the result) that is in turn, beside the axes bound so far."""
        known: tuple[list[str], list[str]] = [], []
        for (several, axis), (name, _) in self.axes.items():
            known[several].append(f"{axis!r}: {name}")
        axes = ", ".join("{" + ", ".join(part) + "}" for part in known)
        values = "".join(f"{param.name}, " for param in self.contract.params)
        out = ", _dg_out" if self.place is None else ""
        bound = self.fresh("q")
        self.line(f"{bound} = {self.const(ask, 'ask')}(_dg_contract, {self.place}, ({values}), {axes}{out})")
        self.miss_if(f"{bound} is None")
        held = (dim for part in walk(spec) if isinstance(part, TensorSpec) for dim in part.dims)
        dims = [dim for dim in held if dim.kind is DimKind.NAMED]
        for key in dict.fromkeys((dim.variadic, dim.text) for dim in dims):
            name = self.variable(key)
            if not self.axes[key][1]:
                self.line(f"{name} = {bound}{_from_scope(key)}")

    def tensor(self, spec: TensorSpec, var: str) -> None:
        if not spec.torch_only:
            raise Inexpressible
        if spec.array_type is not Tensor:
            self.instance(var, spec.array_type)
        var = self.plain(var)
        self.dtype(spec, var)
        if self.anchored:
            loose = "" if self.contract.guarded else "_dg_p is None or "
            elsewhere = f"{loose}{var}.device == {self.device} or ({var}.is_cpu and not {var}.ndim)"
            self.miss_if(f"not ({var}.is_cpu if _dg_cpu else {elsewhere})")
        self.dims(spec, var)

    def plain(self, var: str) -> str:
        """The variable to ask: the tensor, or what stands for a subclass that is slow to answer."""
        known = self.fresh("x")
        self.line(f"{known} = {var} if _dg_type({var}) is _dg_Tensor else _dg_facts({var})")
        return known

    def instance(self, var: str, cls: Any) -> None:
        self.miss_if(f"not _dg_isinstance({var}, {self.const(cls, 'C')})")

    def autocast(self, var: str) -> str:
        enabled = self.const(torch.is_autocast_enabled, "enabled")
        module = "_dg_p is not None and " if self.contract.modules_only else ""
        casts = f'{module}{enabled}("cpu" if {var}.is_cpu else {var}.device.type)'
        contract = self.contract
        if not (contract.guarded and self.anchored) or self.place is None:
            return casts
        left = f"{var}.is_cpu and _dg_a in {self.const(HALF, 'half')}"
        if contract.uncast:
            casts += f" and not ({left})"
        elif contract.sides:
            casts += f" and (not ({left}) or {self.side(f'_dg_left(_dg_contract, {contract.params[0].name})')})"
        return casts

    def side(self, opened: str) -> str:
        """An expression that is true, and puts what stands inside of the model around the body; false to ask again."""
        if "_dg_side" not in self.initial:
            self.initial.append("_dg_side")
        return f"(_dg_side := {opened})"

    def dtype(self, spec: TensorSpec, var: str) -> None:
        follow = self.contract.autocast is Autocast.FOLLOW
        concrete = spec.concrete
        if concrete is not None:
            wanted = self.const(concrete, "d")
            chance = ""
            # An enforced method does not know whether its module agrees on a dtype: only the reference does.
            known = self.anchored and self.contract.guarded
            if follow and (concrete is torch.float32 or (known and concrete in AUTOCAST)):
                both, own = self.const(AUTOCAST, "both"), "" if concrete is torch.float32 else f"_dg_a is {wanted} and "
                chance = f" and not ({own}{var}.dtype in {both} and {self.autocast(var)})"
            self.miss_if(f"{var}.dtype is not {wanted}{chance}")
            return
        follows_anchor = self.anchored and (spec.dtypes is None or bool(spec.dtypes & FLOATING))
        if spec.dtypes is None and not follows_anchor:
            return
        dtype = self.fresh("t")
        self.line(f"{dtype} = {var}.dtype")
        if spec.dtypes is not None:
            self.miss_if(f"{dtype} not in {self.const(spec.dtypes, 'f')}")
        if follows_anchor:
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
        if not direct or self.loops or dim.tree or self.late:
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
        loose = f"(({size} == 1) is False or {self.const(surely, 'surely')}({size} != 1)) and " if dim.broadcast else ""
        if dim.kind is DimKind.FIXED:
            self.miss_if(loose + self.differs(size, str(dim.size)))
        elif dim.kind is DimKind.SYMBOLIC:
            self.miss_if(loose + self.differs(size, f"({self.expression(dim)})"))
        else:
            key = (dim.variadic, dim.text)
            name = self.variable(key)
            if name == size:  # unpacked straight into it
                self.axes[key] = (name, True)
                return
            sure = self.axes[key][1]
            if not sure:
                self.line(f"if {loose}{name} is None: {name} = {size}")
            self.miss_if(loose + self.differs(size, name))
            self.axes[key] = (name, sure or not dim.broadcast)

    def recall(self) -> list[str]:
        """Lines that read from jaxtyping's scope what the body has bound of the axes that may be unbound before it."""
        asked = {key: name for key, (name, _) in self.axes.items() if not self.entry.get(key, ("", False))[1]}
        lines = [f"    {name} = _dg_bound{_from_scope(key)}" for key, name in asked.items()]
        return ["if _dg_bound is not None:", *lines] if lines else []

    def differs(self, size: str, wanted: str) -> str:
        """To Dynamo a comparison that may depend on data is no `True`, so it is left to `differ`.

        Small integers are the same object, and `is` is the cheapest comparison.
        """
        cheap = f"{size} is not {wanted} and " if wanted.isidentifier() else ""
        return f"{cheap}({size} == {wanted}) is not True and {self.const(differ, 'differ')}({size}, {wanted})"

    def expression(self, dim: Dim) -> str:
        """A symbolic axis with its names replaced by the variables that hold them."""
        if dim.names is None or dim.braces:
            raise Inexpressible
        tree = ast.parse(dim.text)
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
        options: list[Spec] = [option for option in spec.options if not isinstance(option, NoneSpec)]
        if len(spec.options) == 1:
            raise Inexpressible
        with self.block_if(len(options) < len(spec.options), f"{var} is not None"):
            if len(options) == 1:
                self.spec(options[0], var)
            else:
                self.alternatives(options, var)

    def alternatives(self, options: list[Spec], var: str) -> None:
        """Options that differ in class or in the number of axes; those of the same axes differ in dtype only."""
        classes: list[type] = []
        shapes: dict[tuple[Dim, ...], list[TensorSpec]] = {}
        containers: list[Spec] = []
        for option in options:
            if isinstance(option, OtherSpec) and option.classes is not None:
                classes += option.classes
            elif isinstance(option, TensorSpec) and option.array_type is Tensor:
                shapes.setdefault(option.dims, []).append(option)
            elif isinstance(option, CollectionSpec | TupleSpec | FieldsSpec) and not containers:
                containers.append(option)
            else:
                raise Inexpressible
        several, loose = len(shapes) > 1, any(dim.variadic for dims in shapes for dim in dims)
        if several and (loose or len({len(dims) for dims in shapes}) < len(shapes)):
            raise Inexpressible
        with self.block_if(classes, f"not _dg_isinstance({var}, {self.const((*classes,))})"):
            with self.block_if(shapes and containers, f"_dg_isinstance({var}, _dg_Tensor)"):
                known = self.plain(var) if several else var
                for n, (dims, alike) in enumerate(shapes.items()):
                    dtypes = [option.dtypes for option in alike]
                    joint = None if None in dtypes else frozenset(d for some in dtypes for d in some or ())
                    with self.block_if(several, f"{known}.ndim == {len(dims)}", "el" * (n > 0)):
                        self.tensor(dataclasses.replace(alike[0], dtypes=joint), var)
                if several:
                    self.miss_if(f"{known}.ndim not in {tuple(map(len, shapes))}")
            for option in containers:
                with self.block("else:") if shapes else nullcontext():
                    self.spec(option, var)

    def none(self, spec: NoneSpec, var: str) -> None:
        self.miss_if(f"{var} is not None")

    def other(self, spec: OtherSpec, var: str) -> None:
        if spec.classes is not None:
            self.instance(var, spec.classes)
        else:
            self.miss_if(f"not {self.const(bearable, 'bearable')}({self.const(spec, 'spec')}, {var})")

    def collection(self, spec: CollectionSpec, var: str) -> None:
        if not issubclass(spec.origin, (list, tuple, deque, set, frozenset)):
            raise Inexpressible
        self.instance(var, spec.origin)
        item = self.fresh("i")
        with self.block(f"for {item} in {var}:", loop=True):
            self.spec(spec.item, item)

    def tuple(self, spec: TupleSpec, var: str) -> None:
        if not spec.items:
            raise Inexpressible
        self.instance(var, spec.origin)
        items = [self.fresh("i") for _ in spec.items]
        self.line(f"{', '.join(items)}, = {var}")
        for item_spec, item in zip(spec.items, items, strict=True):
            if item_spec is not None:
                self.spec(item_spec, item)

    def mapping(self, spec: MappingSpec, var: str) -> None:
        self.instance(var, spec.origin)
        for part, way in ((spec.key, ""), (spec.value, ".values()")):
            if part is not None:
                item = self.fresh("i")
                with self.block(f"for {item} in {var}{way}:", loop=True):
                    self.spec(part, item)

    def validated(self, spec: ValidatedSpec, var: str) -> None:
        self.spec(spec.spec, var)
        self.spec(spec.validators, var)

    def own(self, spec: SelfSpec, var: str) -> None:
        params = self.contract.params
        function, first = self.const(self.contract.function, "function"), params[0].name if params else "None"
        self.miss_if(f"not {self.const(is_own, 'own')}({function}, ({first},), {var})")

    def attribute(self, var: str, name: str) -> str:
        """A field by its name, which may be any string."""
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        return f"{var}.{name}" if plain else f"{self.const(getattr, 'getattr')}({var}, {name!r})"

    def fields(self, spec: FieldsSpec, var: str) -> None:
        self.instance(var, spec.origin)
        for name in sorted(spec.required):  # of a TypedDict
            self.miss_if(f"{name!r} not in {var}")
        typed = spec.origin is dict
        for name, field_spec in spec.fields.items():
            item = self.fresh("i")
            with self.block_if(typed and name not in spec.required, f"{name!r} in {var}"):
                self.line(f"{item} = {var}[{name!r}]" if typed else f"{item} = {self.attribute(var, name)}")
                self.spec(field_spec, item)

    def guarded(self, var: str, extra: bool) -> None:
        """An unannotated argument of a guarded forward: inline for a plain tensor, `scan` for all else.

        `beside` sees the whole call: what differs may be a side input.
        """
        if not self.anchored:
            return
        floating = self.const(FLOATING, "floating")
        ways = f"(_dg_t := {var}.dtype) is _dg_a or _dg_t not in {floating}"
        if self.contract.autocast is Autocast.FOLLOW:
            both = self.const(AUTOCAST, "both")
            ways += f" or _dg_t in {both} and _dg_a in {both} and {self.autocast(var)}"
        names = [param.name for param in self.contract.params]
        if var in self.contract.masks:
            wide, half = self.const(torch.float32, "d"), self.const(HALF, "half")
            ways += f" or _dg_t is {wide} and _dg_a in {half}" + " and not need_weights" * ("need_weights" in names)
        place = f"({var}.is_cpu if _dg_cpu else {var}.device == {self.device})"
        right = f"_dg_type({var}) is _dg_Tensor and {place} and ({ways})"
        walk = f"{self.const(scan, 'scan')}({var}, _dg_a, {self.device}, _dg_contract)"
        empty = f"{var} and " if extra else f"{var} is not None and "
        if self.contract.sides:
            seen = [param for param in self.contract.params[1:] if not param.skip]
            free = ", ".join([names[0], *(param.name for param in seen if param.spec is None)])
            told = "".join(f"{param.name}, " for param in seen if param.spec is not None)
            told = self.side(f"_dg_beside(_dg_contract, _dg_a, {self.device}, ({free},), ({told}))")
            walk = f"({walk} or {told})"
        self.miss_if(f"not ({right}) and {empty}not {walk}")


def _from_scope(key: tuple[bool, str]) -> str:
    return f".shape({key[1]!r})" if key[0] else f".axes.get({key[1]!r})"


_EMITTERS: dict[type, Callable[[Writer, Any, str], None]] = {
    TensorSpec: Writer.tensor,
    UnionSpec: Writer.union,
    NoneSpec: Writer.none,
    OtherSpec: Writer.other,
    CollectionSpec: Writer.collection,
    TupleSpec: Writer.tuple,
    MappingSpec: Writer.mapping,
    FieldsSpec: Writer.fields,
    UnpackedSpec: lambda writer, spec, var: writer.spec(spec.whole, var),
    ValidatedSpec: Writer.validated,
    SelfSpec: Writer.own,
}
