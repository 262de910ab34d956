"""Code that a finding is about: what it computes with, what that comes from, and how it is cast."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst
import torch

from ..._core.base.dtypes import HALF, WIDER, name_of
from ..._engine.watch.rule import Finding
from ..._engine.watch.spots import Spot
from .names import Source
from .source import Change, Node, argument

Candidate = list[Change]
Move = Callable[["Place", "At"], Iterator[Candidate]]
MOVES: dict[str, Move] = {}

CASTS = {
    torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16", torch.float64: "double",
    torch.int64: "long", torch.int32: "int", torch.bool: "bool", torch.int16: "short", torch.uint8: "byte",
}  # fmt: skip
CASTING = frozenset([*CASTS.values(), "to", "type", "type_as"])
_FACTORIES = frozenset(
    """tensor as_tensor asarray zeros ones empty full arange linspace logspace eye rand randn zeros_like ones_like
    empty_like full_like rand_like randn_like new_zeros new_ones new_full new_empty new_tensor hann_window
    hamming_window""".split()
)
_OF_MODULES = ("parameters", "named_parameters", "state_dict", "load_state_dict", "train", "eval", "modules")
_TENSORS = ("Tensor", "Parameter", "Buffer")
_SHARING = frozenset("from_numpy as_tensor asarray frombuffer from_dlpack".split())
SUMS = frozenset("sum mean prod cumsum cumprod var std norm logsumexp".split())
WIDER_INTEGER = {torch.uint8: torch.int32, torch.int8: torch.int32, torch.int16: torch.int32, torch.int32: torch.int64}
_VIEWS = frozenset("detach view reshape flatten t transpose permute squeeze unsqueeze expand contiguous".split())
_TRAINED = re.compile(r"\b(detach|data|state_dict|params|\w*parameters)\b")  # what is read off a model
_NUMBERS = frozenset("size numel nelement dim ndimension item tolist".split())  # methods that give no tensors
_LITERALS = (cst.Integer, cst.Float, cst.BaseString, cst.Imaginary, cst.Lambda, cst.Dict, cst.Slice)


@dataclass(frozen=True)
class At:
    """An expression or a statement in its file."""

    source: Source
    node: Node


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
    def wide(self) -> torch.dtype:
        """The dtype that keeps what was lost."""
        dtype = self.finding.from_dtype or self.narrow
        return WIDER_INTEGER.get(dtype) or WIDER.get(dtype, torch.float32)


def move(function: Move) -> Move:
    """Enter a move into the table, by its name. It gets the finding's place, and the code at fault."""
    MOVES[function.__name__] = function
    return function


# ---------------------------------------------------------------- casts


def dtype_code(dtype: torch.dtype, source: Source) -> str:
    """`torch.float32`, by the file's own name for torch."""
    return f"{source.torch() or 'torch'}.{name_of(dtype)}"


def spelt(dtype: torch.dtype, source: Source) -> str:
    """`.half()`, or `.to(torch.int16)` for a dtype without a method."""
    return f".{CASTS[dtype]}()" if dtype in CASTS else f".to({dtype_code(dtype, source)})"


def cast(at: At, dtype: torch.dtype, text: str | None = None) -> Candidate:
    """The expression, cast: where it is a cast or says a dtype already, that one is changed."""
    source, node = at.source, at.node
    if not isinstance(node, cst.BaseExpression) or isinstance(node, _LITERALS) or _is_size(source, node):
        return []
    if isinstance(node, cst.Attribute) and source.code(node.value) == source.torch():  # `torch.float16`
        return []
    if isinstance(node, cst.Call) and text is None:
        said = dtype_argument(source, node)
        if said is not None:
            whole = dtype is torch.float64 and not _says_float(source, node)
            code, given = dtype_code(torch.float32 if whole else dtype, source), source.code(said.value)
            if dtype is torch.float32 and given in source.parameters(node):  # callers may want float64
                given += f" or {code}" if source.default(node, given) == "None" else ""
                code = f"{source.torch() or 'torch'}.promote_types({given}, {code})"
            return [source.replace(said.value, code)]
        if is_cast(source, node) and not node.args and dtype in CASTS and isinstance(node.func, cst.Attribute):
            return [source.replace(node.func.attr, CASTS[dtype])]
    if isinstance(node, cst.Call) and makes(source, node) and text and text.endswith(".dtype)"):  # it can say so itself
        return [add_argument(source, node, f"dtype={text.removeprefix('.to(')[:-1]}")]
    return source.after(node, text or spelt(dtype, source))


def is_cast(source: Source, node: Node) -> bool:
    return isinstance(node, cst.Call) and source.called(node) in CASTING and source.on(node) is not None


def dtype_argument(source: Source, call: cst.Call) -> cst.Arg | None:
    """The argument of a call that says a dtype."""
    said = argument(call, "dtype")
    if said is not None or source.called(call) not in ("to", "type"):
        return said
    for arg in call.args:
        code = source.code(arg.value)
        if arg.keyword is None and (code.endswith("dtype") or code.startswith(f"{source.torch()}.")):
            return arg
    return None


def retyped(at: At, dtype: torch.dtype) -> Iterator[Candidate]:
    """What makes a value have another dtype: without its cast, by the argument of its factory, by a cast."""
    source, node = at.source, at.node
    if not isinstance(node, cst.BaseExpression):
        return
    if isinstance(node, cst.Call):
        inner = source.on(node)
        if isinstance(inner, cst.Call) and source.called(node).endswith("_") and source.called(inner) in _FACTORIES:
            yield from retyped(At(source, inner), dtype)  # `torch.empty_like(x).uniform_()` is filled in that dtype
            return
        if is_cast(source, node) and inner is not None:
            if is_module(At(source, inner)):
                return  # what converts a model converts all of it
            said = dtype_argument(source, node)
            if said is not None and len(node.args) > 1 and source.called(node) == "to":  # it moves to a device too
                copies = [add_argument(source, node, "copy=True")] if source.shared(node) else []
                yield (
                    [source.replace(said.value, dtype_code(dtype, source)), *copies]
                    if copies
                    else [source.without_argument(node, said)]
                )
            elif source.shared(node) and not _is_fresh(source, inner):
                yield [uncast(source, inner, node, f".to({dtype_code(dtype, source)}, copy=True)")]
            else:
                yield [uncast(source, inner, node, ".clone()" if _is_snapshot(source, inner, node) else "")]
        elif source.called(node) in _SHARING and any(
            source.root(arg.value) in source.written and not source.is_over(arg.value) for arg in node.args
        ):
            return  # it must go on to share the memory of what is written to
        elif source.torch() and source.code(node.func) == f"{source.torch()}.Tensor" and len(node.args) == 1:
            renamed = source.replace(node.func, f"{source.torch()}.tensor")  # which leaves integers what they are
            yield [renamed]
            yield [renamed, add_argument(source, node, f"dtype={dtype_code(dtype, source)}")]
            return
        elif makes(source, node):
            for name in like(source, node) if dtype in HALF else ():
                yield [add_argument(source, node, f"dtype={name}.dtype")]
            yield [add_argument(source, node, f"dtype={dtype_code(dtype, source)}")]
            return
    if dtype in HALF and not is_cast(source, node):
        yield from (cast(at, dtype, text) for text in in_function(at))
    yield cast(at, dtype)


def _is_fresh(source: Source, node: Node) -> bool:
    """Whether nobody else has what an expression gives."""
    made = (_FACTORIES - _SHARING) | {"clone"}
    return isinstance(node, cst.BinaryOperation | cst.UnaryOperation) or source.called(node) in made


def _is_snapshot(source: Source, inner: cst.BaseExpression, outer: cst.Call) -> bool:
    """Whether a cast has made a copy of what a model trains, which without it would be the model's own memory."""
    node: Node = inner
    while isinstance(node, cst.Call) and source.called(node) in _VIEWS and isinstance(node.func, cst.Attribute):
        node = node.func.value
    around = [one for one in source.up(outer) if isinstance(one, cst.BaseComp)]
    code = source.code(around[-1] if around else outer)
    return isinstance(node, cst.Name | cst.Attribute | cst.Subscript) and _TRAINED.search(code) is not None


def uncast(source: Source, inner: cst.BaseExpression, outer: cst.Call, text: str = "") -> Change:
    """What is cast in place of the cast, or with another one; without parentheses that nothing needs then."""
    begin, end = source.extent(inner)
    alone = (
        not text
        and isinstance(source.parents[outer], cst.Assign | cst.Arg | cst.Return | cst.AnnAssign)
        and not outer.lpar
    )
    if alone and len(inner.lpar) == 1 and source.text[begin] == "(" and "\n" not in source.text[begin:end]:
        return source.replace(outer, source.text[begin + 1 : end - 1].strip())
    return Change(source.file, end, source.extent(outer)[1] - len(outer.rpar), text)


def add_argument(source: Source, call: cst.Call, text: str) -> Change:
    """One more argument of a call, behind the others."""
    if not call.args:
        end = source.extent(call)[1] - len(call.rpar) - 1
        return Change(source.file, end, end, text)
    end = source.extent(call.args[-1].value)[1]
    return Change(source.file, end, end, f", {text}")


def keyword(source: Source, call: cst.Call, name: str, value: str) -> Candidate:
    """A call with a keyword argument of this value."""
    said = argument(call, name)
    return [add_argument(source, call, f"{name}={value}") if said is None else source.replace(said.value, value)]


# ---------------------------------------------------------------- what code computes with


def operands(at: At, places: bool = False) -> list[At]:
    """The expressions that a piece of code computes with, but for what it writes to, and where: `places`."""
    source, node = at.source, at.node
    found: list[Node] = []
    match node:
        case cst.BinaryOperation() | cst.BooleanOperation():
            found = [node.left, node.right]
        case cst.Comparison():
            found = [node.left, *(one.comparator for one in node.comparisons)]
        case cst.UnaryOperation():
            found = [node.expression]
        case cst.Call():
            receiver = source.on(node) if hasattr(torch.Tensor, source.called(node)) else None  # else it is a module
            args = [arg for arg in node.args if not arg.star]
            given = [arg.value for arg in args if places or not _is_place(source, node, arg)]
            found = [*([] if receiver is None else [receiver]), *given]
            found = found[1:] if source.called(node).endswith("_") else found  # in place
        case cst.Tuple() | cst.List():
            found = [element.value for element in node.elements]
        case cst.Assign() | cst.AugAssign() | cst.Return() | cst.Expr() | cst.AnnAssign():
            found = [] if node.value is None else [node.value]
        case cst.SimpleStatementLine():
            found = list(node.body)
    rows: list[At] = []
    for one in found:
        if isinstance(one, cst.Tuple | cst.List) or not isinstance(one, cst.BaseExpression):
            rows += operands(At(source, one), places)
        elif not _constant(source, one) and not is_module(At(source, one)):
            rows.append(At(source, one))
    return rows


def _is_place(source: Source, call: cst.Call, arg: cst.Arg) -> bool:
    """Whether an operator of PyTorch takes no values there: an index, an axis, a size."""
    name, receiver = source.called(call), source.on(call)
    if receiver is None and source.code(call.func) != f"{source.torch()}.{name}":
        return False
    where = arg.keyword.value if arg.keyword else call.args.index(arg) + (receiver is not None)
    return hasattr(torch.Tensor if receiver is not None else torch, name) and where in _places(name)


@functools.cache
def _places(name: str) -> frozenset[int | str]:
    """The arguments of an operator, by position and name, that are no values in any of its overloads."""
    packet = getattr(torch.ops.aten, name, None)
    schemas = [getattr(packet, one)._schema.arguments for one in packet.overloads()] if packet else []
    values, others = set[int | str](), set[int | str]()
    for arguments in schemas:
        for number, one in enumerate(arguments):
            index = one.name in ("index", "indices")
            (values if "Tensor" in str(one.type) and not index else others).update((number, one.name))
    return frozenset(others - values)


def is_module(at: At) -> bool:
    """Whether a name stands for a module, which a cast would convert in place, for all; no tensor is ever called."""
    source, code = at.source, at.source.code(at.node)
    if not isinstance(at.node, cst.Name) and not source.of_self(at.node):
        return False
    called = [source.code(call.func) for call in source.of(cst.Call)]
    made = source.called(source.call_behind(at.node) or at.node)
    return (
        code in called
        or any(one in (f"{code}.{method}" for method in _OF_MODULES) for one in called)
        or (made[:1].isupper() and not made.endswith(_TENSORS))
    )


def used(at: At, places: bool = False) -> list[At]:
    """The same; of a statement, those of what it computes too."""
    found = operands(at, places)
    if isinstance(at.node, cst.BaseExpression):
        return found
    return [*found, *(one for part in found for one in operands(part, places))]


def _constant(source: Source, node: Node) -> bool:
    """What is no tensor: a literal, a name of a module's, a dtype, a number that Python has."""
    if isinstance(node, cst.UnaryOperation):
        return _constant(source, node.expression)
    if isinstance(node, cst.BinaryOperation):
        return _constant(source, node.left) and _constant(source, node.right)
    code = source.code(node)
    known = code.partition(".")[0] in source.modules and not isinstance(node, cst.Call)
    named_so = code in ("True", "False", "None") or code.endswith((".dtype", ".device"))
    return isinstance(node, _LITERALS) or known or named_so or _is_size(source, node)


def _is_size(source: Source, node: Node, depth: int = 4) -> bool:
    """Whether code is a number or a shape that Python has, by name too: `x.shape[0]`, `len(x)`, `x.item()`."""
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name):
            return node.func.value in ("float", "int", "len")
        return source.on(node) is not None and source.called(node) in _NUMBERS
    if isinstance(node, cst.Subscript):
        return _is_size(source, node.value, depth)
    if isinstance(node, cst.BinaryOperation):
        return all(isinstance(one, cst.BaseNumber) or _is_size(source, one, depth) for one in (node.left, node.right))
    if isinstance(node, cst.Attribute) and node.attr.value in ("shape", "ndim"):
        return True
    if isinstance(node, cst.Name) or source.of_self(node):
        added = any(source.code(one.target) == source.code(node) for one in source.of(cst.AugAssign))  # maybe a tensor
        made = source.definitions(node) if depth and not added else []
        return bool(made) and all(isinstance(one, cst.BaseNumber) or _is_size(source, one, depth - 1) for one in made)
    return False


def leaves(at: At) -> list[At]:
    """The names and calls that an expression is computed from, to the last."""
    source, node = at.source, at.node
    method = isinstance(node, cst.Call) and source.on(node) is not None and not is_cast(source, node)
    if _constant(source, node):
        return []
    if isinstance(node, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison) or method:
        return [leaf for one in operands(at) for leaf in leaves(one)]
    return [at]


def joined(parts: list[Candidate]) -> Candidate:
    return [change for part in parts for change in part]


def each_and_all(parts: list[Candidate]) -> Iterator[Candidate]:
    """Each part alone, then all of them at once."""
    parts = [part for part in parts if part]
    yield from parts
    if len(parts) > 1:
        yield joined(parts)


def names_in(at: At) -> list[At]:
    """The variables that an expression reads, `self.table` among them; not modules, nor what is called."""
    found: dict[str, At] = {}
    for node in at.source.below(at.node, cst.Name, cst.Attribute, cst.Subscript):
        parent = at.source.parents.get(node)
        called = isinstance(parent, cst.Call) and parent.func is node
        part = isinstance(parent, cst.Attribute) and (parent.attr is node or at.source.of_self(parent))
        named_argument = isinstance(parent, cst.Arg) and parent.keyword is node
        call = at.source.parents.get(parent) if isinstance(parent, cst.Arg) else None
        place = isinstance(call, cst.Call) and isinstance(parent, cst.Arg) and _is_place(at.source, call, parent)
        whole = isinstance(node, cst.Name) or at.source.of_self(node) or at.source.is_entry(node)
        code = at.source.code(node)
        known = code.partition(".")[0] in at.source.modules or _constant(at.source, node)
        if whole and not (called or part or named_argument or place or known):
            found.setdefault(code, At(at.source, node))
    return list(found.values())


def origins(at: At, depth: int = 3) -> list[At]:
    """What is assigned to the variables of an expression, and to those of that, the nearest first."""
    found: list[At] = []
    waiting = [(at, depth)]
    while waiting:
        one, left = waiting.pop(0)
        for name in names_in(one) if left else ():
            for value in one.source.definitions(name.node)[:2] if isinstance(name.node, cst.BaseExpression) else ():
                if not any(value is other.node for other in found):
                    found.append(At(one.source, value))
                    waiting.append((found[-1], left - 1))
    return found


def casts_in(at: At, wide: torch.dtype) -> list[At]:
    """The casts and factories with a dtype in an expression that may have lost what `wide` keeps, outer ones first.

    Not those that have given digits: without them there would be fewer, the same in the wider dtype.
    """
    source = at.source
    if isinstance(at.node, cst.Call) and source.called(at.node) in _FACTORIES and not dtype_argument(source, at.node):
        return [at]  # of a default dtype
    calls = [call for call in source.below(at.node, cst.Call) if not _widens(source, call)]
    floating = ["half", "bfloat16", "float", "Tensor"] if wide is torch.float64 else ["half", "bfloat16"]
    return [At(source, call) for call in calls if source.called(call) in floating or _says_float(source, call)]


def _widens(source: Source, call: cst.Call) -> bool:
    """Whether a cast is to float32 or float64, at a line where floats became wider."""
    code = source.code(call).rpartition(".")[2]
    wide = source.called(call) in ("float", "double") or code.startswith(("float32", "float64"))
    return wide and is_cast(source, call) and source.range(call).end.line in source.widened


def _says_float(source: Source, call: cst.Call) -> bool:
    said = dtype_argument(source, call)
    return said is not None and not source.code(said.value).endswith(("int64", "long", "int32", "int", "bool", "uint8"))


def says_dtype(at: At) -> bool:
    return isinstance(at.node, cst.Call) and dtype_argument(at.source, at.node) is not None


def kept_as_it_is(at: At) -> Iterator[Candidate]:
    """For `self.table = self.table.to(x.dtype)`: the table stays, and is cast at each later use in the function."""
    source = at.source
    for assign in source.below(source.statement(at.node), cst.Assign):
        target, call = source.code(assign.targets[0].target), assign.value
        on = source.on(call) if isinstance(call, cst.Call) else None
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


def in_function(at: At) -> list[str]:
    """`.to(x.dtype)` for what an expression in a function is computed with, or its first argument."""
    return [f".to({name}.dtype)" for name in like(at.source, at.node)]


def like(source: Source, node: Node) -> list[str]:
    """What has the dtype that an expression in a function should have: code that has no dtype of its own.

    What a factory's result is added to, or multiplied by, or else the first argument of the function.
    """
    names, parent = source.others(node), source.parents.get(node)
    if isinstance(parent, cst.BinaryOperation) and makes(source, node) and source.parameters(node):
        other = parent.right if parent.left is node else parent.left
        names = [source.code(other), *names] if isinstance(other, cst.Name) or source.of_self(other) else names
    return names[:1]


def makes(source: Source, node: Node) -> bool:
    """Whether a call makes a tensor, and says no dtype."""
    known = isinstance(node, cst.Call) and source.called(node) in _FACTORIES and source.torch() is not None
    return known and isinstance(node, cst.Call) and dtype_argument(source, node) is None
