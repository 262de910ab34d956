"""Code that a finding is about: what it computes with, what that comes from, and how it is cast."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst
import torch

from ..._core.base.dtypes import HALF, WIDER, name_of
from ..._engine.watch.rule import Finding
from ..._engine.watch.spots import Spot
from .casts import CASTS, FACTORIES, LITERALS, SHARING, WIDER_INTEGER, Source
from .source import Candidate, Node

Move = Callable[["Place", "At"], Iterator[Candidate]]
MOVES: dict[str, Move] = {}
_OF_SEVERAL = cst.Tuple | cst.List | cst.GeneratorExp | cst.ListComp  # what is computed with are their elements


@dataclass(frozen=True)
class At:
    """An expression or a statement in its file."""

    source: Source
    node: Node

    def cast(self, dtype: torch.dtype, text: str | None = None) -> Candidate:
        """The expression, cast: where it is a cast or says a dtype already, that one is changed."""
        source, node = self.source, self.node
        if not isinstance(node, cst.BaseExpression) or isinstance(node, LITERALS) or source.is_size(node):
            return []
        if isinstance(node, cst.Attribute) and source.code(node.value) == source.torch():  # `torch.float16`
            return []
        if text is None:
            said = source.dtype_argument(node)
            if said is not None:
                whole = dtype is torch.float64 and not source.says_float(node)
                code, given = source.dtype_code(torch.float32 if whole else dtype), source.code(said.value)
                default = source.default_node(node, given)
                if default is not None and source.code(default).startswith(f"{source.torch()}."):
                    return [source.replace(default, code)]  # callers may say another one
                if dtype is torch.float32 and given in source.parameters(node):  # callers may want float64
                    given += f" or {code}" if source.default(node, given) == "None" else ""
                    code = f"{source.torch() or 'torch'}.promote_types({given}, {code})"
                return [source.replace(said.value, code)]
            if source.is_cast(node) and not node.args and dtype in CASTS and isinstance(node.func, cst.Attribute):
                return [source.replace(node.func.attr, CASTS[dtype])]
        if text and text.endswith(".dtype)") and source.makes(node):  # it can say so itself
            return [source.add_argument(node, f"dtype={text.removeprefix('.to(')[:-1]}")]
        return source.after(node, text or source.spelt(dtype))

    def retyped(self, dtype: torch.dtype) -> Iterator[Candidate]:
        """What makes a value have another dtype: without its cast, by the argument of its factory, by a cast."""
        source, node = self.source, self.node
        if not isinstance(node, cst.BaseExpression):
            return
        if isinstance(node, cst.Call):
            inner = source.on(node)
            if isinstance(inner, cst.Call) and source.called(node).endswith("_") and source.called(inner) in FACTORIES:
                yield from At(source, inner).retyped(dtype)  # `torch.empty_like(x).uniform_()` is filled in that dtype
                return
            if source.is_cast(node) and inner is not None:
                if source.is_module(inner):
                    return  # what converts a model converts all of it
                said = source.dtype_argument(node)
                if said is not None and len(node.args) > 1 and source.called(node) == "to":  # it moves to a device too
                    copied = (
                        source.replace(said.value, source.dtype_code(dtype)),
                        source.add_argument(node, "copy=True"),
                    )
                    yield [*copied] if source.shared(node) else [source.without_argument(node, said)]
                elif source.shared(node) and not source.is_fresh(inner):
                    yield [source.uncast(inner, node, f".to({source.dtype_code(dtype)}, copy=True)")]
                else:
                    yield [source.uncast(inner, node, ".clone()" if source.is_snapshot(inner, node) else "")]
            elif source.called(node) in SHARING and any(
                source.root(arg.value) in source.written and not source.is_over(arg.value) for arg in node.args
            ):
                return  # it must go on to share the memory of what is written to
            elif source.torch() and source.code(node.func) == f"{source.torch()}.Tensor" and len(node.args) == 1:
                renamed = source.replace(node.func, f"{source.torch()}.tensor")  # which leaves integers what they are
                yield [renamed]
                yield [renamed, source.add_argument(node, f"dtype={source.dtype_code(dtype)}")]
                return
            elif source.makes(node):
                for name in source.like(node) if dtype in HALF else ():
                    yield [source.add_argument(node, f"dtype={name}.dtype")]
                yield [source.add_argument(node, f"dtype={source.dtype_code(dtype)}")]
                return
        if dtype in HALF and not source.is_cast(node):
            yield from (self.cast(dtype, text) for text in self.in_function())
        yield self.cast(dtype)

    def operands(self, places: bool = False) -> list["At"]:
        """The expressions that a piece of code computes with, but for what it writes to, and where: `places`."""
        source, node = self.source, self.node
        found: list[Node] = []
        match node:
            case cst.BinaryOperation() | cst.BooleanOperation():
                found = [node.left, node.right]
            case cst.Comparison():
                found = [node.left, *(one.comparator for one in node.comparisons)]
            case cst.UnaryOperation():
                found = [node.expression]
            case cst.Call():
                module = not hasattr(torch.Tensor, source.called(node))
                receiver = None if module else source.on(node)
                args = [arg for arg in node.args if not arg.star]
                given = [arg.value for arg in args if places or not source.is_place(node, arg)]
                found = [*([] if receiver is None else [receiver]), *given]
                found = found[1:] if source.called(node).endswith("_") else found  # in place
            case cst.Tuple() | cst.List():
                found = [element.value for element in node.elements]
            case cst.GeneratorExp() | cst.ListComp():
                found = [node.elt]
            case cst.Assign() | cst.AugAssign() | cst.Return() | cst.Expr() | cst.AnnAssign():
                found = [] if node.value is None else [node.value]
            case cst.SimpleStatementLine():
                found = list(node.body)
        rows: list[At] = []
        for one in found:
            if isinstance(one, _OF_SEVERAL) or not isinstance(one, cst.BaseExpression):
                rows += At(source, one).operands(places)
            elif not source.is_constant(one) and not source.is_module(one):
                rows.append(At(source, one))
        return rows

    def used(self, places: bool = False) -> list["At"]:
        """The same; of a statement, those of what it computes too."""
        found = self.operands(places)
        if isinstance(self.node, cst.BaseExpression):
            return found
        return [*found, *(one for part in found for one in part.operands(places))]

    def leaves(self) -> list["At"]:
        """The names and calls that an expression is computed from, to the last."""
        source, node = self.source, self.node
        method = source.on(node) is not None and not source.is_cast(node)
        if source.is_constant(node):
            return []
        if isinstance(node, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison) or method:
            return [leaf for one in self.operands() for leaf in one.leaves()]
        return [self]

    def names(self) -> list["At"]:
        """The variables that an expression reads, `self.table` among them; not modules, nor what is called."""
        found: dict[str, At] = {}
        for node in self.source.below(self.node, cst.Name, cst.Attribute, cst.Subscript):
            parent = self.source.parents.get(node)
            called = isinstance(parent, cst.Call) and parent.func is node
            part = isinstance(parent, cst.Attribute) and (parent.attr is node or self.source.of_self(parent))
            named_argument = isinstance(parent, cst.Arg) and parent.keyword is node
            call = self.source.parents.get(parent) if isinstance(parent, cst.Arg) else None
            place = isinstance(call, cst.Call) and isinstance(parent, cst.Arg) and self.source.is_place(call, parent)
            whole = isinstance(node, cst.Name) or self.source.of_self(node) or self.source.is_entry(node)
            code = self.source.code(node)
            known = code.partition(".")[0] in self.source.modules or self.source.is_constant(node)
            if whole and not (called or part or named_argument or place or known):
                found.setdefault(code, At(self.source, node))
        return list(found.values())

    def origins(self, depth: int = 3) -> list["At"]:
        """What is assigned to the variables of an expression, and to those of that, the nearest first."""
        found: list[At] = []
        waiting: list[tuple[At, int]] = [(self, depth)]
        while waiting:
            one, left = waiting.pop(0)
            for name in one.names() if left else ():
                for value in one.source.definitions(name.node)[:2] if isinstance(name.node, cst.BaseExpression) else ():
                    if not any(value is other.node for other in found):
                        found.append(At(one.source, value))
                        waiting.append((found[-1], left - 1))
        return found

    def casts(self, wide: torch.dtype) -> list["At"]:
        """The casts and factories with a dtype in an expression that may have lost what `wide` keeps, outer ones first.

        Not those that have given digits: without them there would be fewer, the same in the wider dtype.
        """
        source = self.source
        if (
            isinstance(self.node, cst.Call)
            and source.called(self.node) in FACTORIES
            and not source.dtype_argument(self.node)
        ):
            return [self]  # of a default dtype
        calls = [call for call in source.below(self.node, cst.Call) if not source.widens(call)]
        floating = ["half", "bfloat16", "float", "Tensor"] if wide is torch.float64 else ["half", "bfloat16"]
        return [At(source, call) for call in calls if source.called(call) in floating or source.says_float(call)]

    @property
    def says_dtype(self) -> bool:
        return self.source.dtype_argument(self.node) is not None

    def kept_as_it_is(self) -> Iterator[Candidate]:
        """For `self.table = self.table.to(x.dtype)`: the table stays, and is cast at each later use in the function."""
        source = self.source
        for assign in source.below(source.statement(self.node), cst.Assign):
            target, call = source.code(assign.targets[0].target), assign.value
            on = source.on(call)
            if on is None or source.code(on) != target:
                continue
            statement = source.statement(assign)
            holder = source.parents.get(source.parents[statement])
            alone = isinstance(holder, cst.If) and len(source.block(statement)) == 1
            uses = [one for one in source.below(source.scope(statement), cst.Attribute) if source.code(one) == target]
            later = [one for one in uses if source.extent(one)[0] >= source.lines(statement)[1]]
            if later:
                gone = source.without(holder if alone and holder else statement)
                yield [gone, *(source.replace(one, source.code(call)) for one in later)]

    def in_function(self) -> list[str]:
        """`.to(x.dtype)` for what an expression in a function is computed with, or its first argument."""
        return [f".to({name}.dtype)" for name in self.source.like(self.node)]


@dataclass
class Place:
    """A finding, the code that it is about, and the files of the program.

    Attributes:
        finding: the one that stands for its cause.
        names: the parameters and buffers of all findings of the cause.
    """

    finding: Finding
    open: Callable[[str], Source]
    files: list[str]
    names: tuple[str, ...]

    def _at(self, spot: Spot | None) -> At | None:
        if spot is None:
            return None
        source = self.open(spot.file)
        node = source.at(spot)
        return None if node is None else At(source, node)

    @property
    def sources(self) -> list[Source]:
        """The files of the program."""
        return [self.open(file) for file in self.files]

    @functools.cached_property
    def fault(self) -> At | None:
        """The code at fault."""
        return self._at(self.finding.spots[0] if self.finding.spots else None)

    @functools.cached_property
    def birth(self) -> At | None:
        """The code that gave the values their dtype, where that is another."""
        return self._at(self.finding.spots[1] if len(self.finding.spots) > 1 else None)

    @property
    def narrow(self) -> torch.dtype:
        """The narrower one of the two dtypes."""
        known = [dtype for dtype in (self.finding.from_dtype, self.finding.to_dtype) if dtype is not None]
        return min(known, key=lambda dtype: dtype.itemsize, default=torch.float32)

    @property
    def born_half(self) -> bool:
        """Whether half precision rounded, at the line where the values come from."""
        labels = [spot.label for spot in self.finding.spots[1:2]]
        return any(name_of(dtype) in label for label in labels for dtype in HALF)

    @property
    def wide(self) -> torch.dtype:
        """The dtype that keeps what was lost."""
        dtype = self.finding.from_dtype or self.narrow
        if dtype is torch.float64:  # there is none
            return dtype
        if dtype is torch.float32 and self.born_half:
            return dtype
        return WIDER_INTEGER.get(dtype) or WIDER.get(dtype, torch.float32)


def move(function: Move) -> Move:
    """Enter a move into the table, by its name. It gets the finding's place, and the code at fault."""
    MOVES[function.__name__] = function
    return function


def joined(parts: list[Candidate]) -> Candidate:
    return [change for part in parts for change in part]


def each_and_all(parts: list[Candidate]) -> Iterator[Candidate]:
    """Each part alone, then all of them at once."""
    parts = [part for part in parts if part]
    yield from parts
    if len(parts) > 1:
        yield joined(parts)
