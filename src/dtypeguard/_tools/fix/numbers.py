"""What may be written for numbers, integers, and the targets of writes."""

import ast
import itertools
from collections.abc import Iterator

import libcst as cst
import torch

from ..._core.base.dtypes import FLOATING, HALF, name_of
from ..._rules.dg9._forms import rewritten
from .casts import WIDER_INTEGER, Source
from .code import At, Place, each_and_all, joined, move
from .source import Candidate, Change, Node, argument, arguments


@move
def eps_of_dtype(place: Place, at: At) -> Iterator[Candidate]:
    """Takes an eps that the dtype has."""
    source, node = at.source, at.node
    name = next((source.code(one.node) for one in at.names()), None)
    for number in source.below(node, cst.Float):
        if 0 < number.evaluated_value < 1e-4:
            if name is not None and source.torch():
                yield [source.replace(number, f"max({number.value}, {source.torch()}.finfo({name}.dtype).tiny)")]
            yield [source.replace(number, "1e-4")]
    if isinstance(node, cst.Call) and argument(node, "eps") is None:
        yield [source.add_argument(node, "eps=1e-4")]


@move
def copy_bits(place: Place, at: At) -> Iterator[Candidate]:
    """Copies the bits of float8, and not its values."""
    finding, source = place.finding, at.source
    held, given = finding.to_dtype, finding.from_dtype
    if held is None or given is None or given.itemsize > 1 or held.itemsize > 1 or not source.torch():
        return
    for part in at.used():
        yield source.after(part.node, f".view({source.dtype_code(held)})")


_COUNTS = ("sum", "count_nonzero", "bincount")
_SOURCE = 2  # its place among the arguments of these
_INDEXED = ("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add", "index_add_")
_BYTES = (torch.uint8, torch.int8)


@move
def clamp_first(place: Place, at: At) -> Iterator[Candidate]:
    """Clamps to the range of the integers before the cast."""
    dtype, source = place.finding.to_dtype, at.source
    if dtype not in WIDER_INTEGER:
        return
    limits, parts = torch.iinfo(dtype), at.operands()
    if _counts(at):
        return
    if place.finding.from_dtype in FLOATING or (dtype in _BYTES and any(map(_is_arithmetic, parts))):  # a picture
        yield from (source.after(one.node, f".clamp({limits.min}, {limits.max})") for one in parts)


@move
def round_first(place: Place, at: At) -> Iterator[Candidate]:
    """Rounds values that are meant to be whole before the cast."""
    if place.finding.fix.startswith("round first"):
        yield from (at.source.after(one.node, ".round()") for one in at.operands())


@move
def count_in_int64(place: Place, at: At) -> Iterator[Candidate]:
    """Counts in int64."""
    source = at.source
    if place.finding.to_dtype in WIDER_INTEGER and _counts(at):
        added = source.below(source.statement(at.node), cst.AugAssign)  # to a total, which is as narrow
        totals = [At(source, value) for one in added for value in source.definitions(one.target)[:1]]
        yield joined([one.cast(torch.int64) for one in [at, *totals]])


def _counts(at: At) -> bool:
    """Whether what is cast says how many there are."""
    return at.source.is_cast(at.node) and at.source.called(at.operands()[0].node) in _COUNTS


def _is_arithmetic(at: At) -> bool:
    """Whether integers are computed with `+` and the like, which gives pixels; labels, ids and offsets are not."""
    values = [at.node, *(one.node for one in at.origins(1))]
    return any(True for one in values for _ in at.source.below(one, cst.BinaryOperation))


@move
def whole_in_int64(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps whole numbers in int64."""
    given, taken, source = place.finding.from_dtype, place.finding.to_dtype, at.source
    if given is None or taken is None or given in FLOATING or given.itemsize <= taken.itemsize:
        return
    if source.is_cast(at.node):
        yield from at.retyped(torch.int64)
    written = [At(source, value) for one in _targets(at) for value in source.definitions(_base(one))[:1]]
    yield from (one.cast(torch.int64) for one in written if one.says_dtype)


@move
def made_of_integers(place: Place, at: At) -> Iterator[Candidate]:
    """Makes whole numbers integers where they became floats."""
    for call in at.casts(place.wide):
        said = call.source.dtype_argument(call.node)
        if said is not None and call.source.code(said.value).startswith(f"{call.source.torch()}."):
            yield from call.retyped(torch.int64)


@move
def integers_stay(place: Place, at: At) -> Iterator[Candidate]:
    """Makes integers of what whole numbers are joined to."""
    if at.source.range(at.node).end.line in at.source.joined:
        for call in [call for one in at.origins(1) for call in one.casts(place.wide)]:
            yield from call.retyped(torch.int64)


@move
def only_floats(place: Place, at: At) -> Iterator[Candidate]:
    """Casts only what is floating."""
    for one in at.casts(place.wide):
        source, call = one.source, one.node
        inner = source.on(call) if source.is_cast(call) and len(call.args) < 2 else None
        if isinstance(inner, cst.Name) and _is_drawn(source, inner):
            text = f"{source.code(call)} if {inner.value}.is_floating_point() else {inner.value}"
            alone = isinstance(source.parents[call], cst.Assign | cst.Return | cst.BaseComp)
            yield [source.replace(call, text if alone else f"({text})")]


def _is_drawn(source: Source, name: cst.Name) -> bool:
    """Whether a loop or a comprehension gives a variable its values, which may be of several dtypes."""
    node = source.parents.get(name)
    while node is not None:
        loop = node.for_in if isinstance(node, cst.BaseComp) else node
        drawn = source.below(loop.target, cst.Name) if isinstance(loop, cst.CompFor | cst.For) else ()
        if any(one.value == name.value for one in drawn):
            return True
        node = source.parents.get(node)
    return False


@move
def bool_before_inverted(place: Place, at: At) -> Iterator[Candidate]:
    """Makes a mask bool before it is inverted."""
    if isinstance(at.node, cst.UnaryOperation) and isinstance(at.node.operator, cst.BitInvert):
        yield At(at.source, at.node.expression).cast(torch.bool)


@move
def straight_through(place: Place, at: At) -> Iterator[Candidate]:
    """Hands the gradient on past the rounding."""
    source, call = at.source, at.node
    inner = source.on(call) if source.is_cast(call) else None
    if inner is None:
        return
    rounded = [one for one in source.below(inner, cst.Call) if source.called(one) in ("round", "floor")]
    whole = source.code(inner)
    value, whole = (_rounded(source, rounded[-1]), whole) if rounded else (whole, f"{whole}.trunc()")
    text = f"{value} + ({whole} - {value}).detach()"
    alone = isinstance(source.parents[call], cst.Assign | cst.Return | cst.Arg)
    yield [source.replace(call, text if alone else f"({text})")]


def _rounded(source: Source, call: cst.Call) -> str:
    """What a call rounds, as an operand."""
    owner = source.on(call)
    node = owner if owner is not None else call.args[0].value
    code = source.code(node)
    return code if code.startswith("(") or not isinstance(node, cst.BinaryOperation) else f"({code})"


@move
def clamped_integers(place: Place, at: At) -> Iterator[Candidate]:
    """Computes in wider integers and clamps to the range of the dtype."""
    source, node, dtype = at.source, at.node, place.finding.from_dtype
    added = _in_place(at)
    for one in added:
        if (
            dtype is not None
            and dtype in _BYTES
            and isinstance(one.value, cst.BaseNumber)
            and not _counters(at, one, dtype.is_signed)
        ):
            target = source.code(one.target)  # a picture; it may be a view, so it stays one
            limits = torch.iinfo(dtype)
            inner = f"{target}{source.spelt(place.wide)} {_added(source, one)}"
            yield [source.replace(one, f"{target}.copy_(({inner}).clamp({limits.min}, {limits.max}))")]
    sums = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Multiply)
    alone = not isinstance(source.parents[node], cst.BinaryOperation | cst.Attribute)  # a picture, and no part of a sum
    if dtype is not None and dtype is torch.uint8 and sums and alone and not added and not _is_clamped(at):
        back = f".clamp(0, 255).to({source.dtype_code(dtype)})"
        yield from ([*part.cast(place.wide), *source.after(node, back)] for part in at.used())


@move
def votes_in_integers(place: Place, at: At) -> Iterator[Candidate]:
    """Adds masks as integers, where their sum is a count."""
    first = at.node
    while isinstance(first, cst.BinaryOperation) and isinstance(first.operator, cst.Add):
        first = first.left
    if place.finding.from_dtype is torch.bool and first is not at.node:
        yield At(at.source, first).cast(torch.int64)


@move
def wider_integers(place: Place, at: At) -> Iterator[Candidate]:
    """Computes in wider integers."""
    node, dtype = at.node, place.finding.from_dtype
    if dtype is torch.int64 or isinstance(node, cst.UnaryOperation):
        return  # there are none
    added = _in_place(at)
    for one in added if dtype in _BYTES else ():
        signed = dtype is torch.int8
        yield from (value.cast(torch.int64) for value in _counters(at, one, signed))
    if not added:
        yield from _added_at(at, torch.int64)
        yield from each_and_all([part.cast(place.wide) for part in at.used()])
        sums = list(itertools.takewhile(lambda one: isinstance(one, cst.BinaryOperation), at.source.up(node)))
        for whole in sums[-1:]:  # its other terms are of the same dtype
            yield joined([part.cast(place.wide) for part in At(at.source, whole).leaves()])


def _added_at(at: At, dtype: torch.dtype) -> Iterator[Candidate]:
    """Of `total.scatter_add_(dim, index, source)` the total where it is made, and the source, which has its dtype."""
    source, node = at.source, at.node
    given, total = arguments(node), source.on(node)
    if source.called(node) not in _INDEXED or total is None or len(given) <= _SOURCE:
        return
    made = [total] if isinstance(total, cst.Call) else source.definitions(total)[:1]
    cast = At(source, given[_SOURCE].value).cast(dtype)
    yield from (joined([change, cast]) for one in made for change in At(source, one).retyped(dtype))


def _in_place(at: At) -> list[cst.AugAssign]:
    """What the line changes in place, `total += part`; nothing where it is a part of what is added."""
    return [] if _is_added(at) else list(at.source.below(at.source.statement(at.node), cst.AugAssign))


def _is_added(at: At) -> bool:
    """Whether a total gets what the line computes: what wraps around is not the total."""
    outer = (one for one in at.source.up(at.node) if isinstance(one, cst.AugAssign))
    return any(at.source.inside(at.node, one.value) for one in outer)


def _counters(at: At, assign: cst.AugAssign, signed: bool) -> list[At]:
    """What a line adds a number to, where that counts: one of many that gets 1 each time, or one number."""
    source = at.source
    counts = isinstance(assign.target, cst.Subscript) and source.code(assign.value) == "1"  # in one of many counters
    held = assign.target.value if counts and isinstance(assign.target, cst.Subscript) else assign.target
    made = [At(source, value) for value in source.definitions(held)[:1]]
    known = isinstance(assign.value, cst.BaseNumber)
    return [value for value in made if known and value.says_dtype and (signed or counts or _is_number(value))]


def _is_clamped(at: At) -> bool:
    """Whether what an expression gives is clamped later, by the name that it has then."""
    source = at.source
    clamps = [source.on(call) for call in source.of(cst.Call) if source.called(call) in ("clamp", "clip")]
    named = [one for one in clamps if isinstance(one, cst.Name)]
    return any(at.node in source.definitions(one)[:1] for one in named)


def _is_number(value: At) -> bool:
    """Whether a tensor is made of one number."""
    first = next((arg.value for arg in arguments(value.node)), None)
    return isinstance(first, cst.BaseNumber) or (isinstance(first, cst.Tuple) and not first.elements)  # `zeros(())`


@move
def out_of_place(place: Place, at: At) -> Iterator[Candidate]:
    """Makes a new tensor, where the dtype of the old one does not hold the result."""
    source = at.source
    for one in _in_place(at):
        made = source.call_behind(one.target) if isinstance(one.target, cst.Name) else None
        if made is not None and isinstance(one.target, cst.Name) and source.is_read(one.target):
            name = one.target.value
            yield [source.replace(one, f"{name} = {name} {_added(source, one)}")]


def _added(source: Source, assign: cst.AugAssign) -> str:
    """`+ 1` of `x += 1`."""
    sign = source.module.code_for_node(assign.operator).strip().removesuffix("=")
    plain = isinstance(assign.value, cst.BaseNumber)
    return f"{sign} {source.code(assign.value) if plain else source.closed(assign.value)}"


@move
def near_equal(place: Place, at: At) -> Iterator[Candidate]:
    """Asks whether floats are close, not whether they are equal, or rounds both to one dtype, as for their order."""
    source, node = at.source, at.node
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1 and source.torch():
        one = node.comparisons[0]
        if isinstance(one.operator, cst.Equal):
            left, right = source.closed(node.left), source.closed(one.comparator)
            said = place.finding.message
            if any(f"rounded in {name_of(half)}" in said for half in HALF):  # which is too coarse for isclose
                yield [source.replace(one.comparator, f"{right}.to({left}.dtype)")]
                yield [source.replace(node.left, f"{left}.to({right}.dtype)")]
            else:
                written = f"{source.torch()}.isclose({source.code(node.left)}, {right}.to({left}.dtype))"
                yield [source.replace(node, written)]
        else:
            side = node.left if "on the left side" in place.finding.fix else one.comparator
            yield [source.replace(side, f"{source.closed(side)}.to({source.torch()}.float32)")]


@move
def decision(place: Place, at: At) -> Iterator[Candidate]:
    """Compares decisions, not scores."""
    source = at.source
    for call in source.below(at.node, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "amax":
            yield [source.replace(call.func.attr, "argmax")]
    for one in source.below(at.node, cst.Name, cst.Attribute, cst.Subscript, cst.Call):
        if one is not at.node and f"`{source.closed(one)} >= 0.5`" in place.finding.fix:
            yield [source.replace(one, f"({source.closed(one)} >= 0.5)")]
            return


@move
def converted(place: Place, at: At) -> Iterator[Candidate]:
    """Converts values where their bits were read as another dtype."""
    for call in at.source.below(at.node, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "view":
            yield [at.source.replace(call.func.attr, "to")]


@move
def whole_division(place: Place, at: At) -> Iterator[Candidate]:
    """Divides in integers."""
    whole = "//" in place.finding.fix  # else floats are divided, which `//` would make others of
    for one in at.source.below(at.node, cst.BinaryOperation) if whole else ():
        if isinstance(one.operator, cst.Divide):
            yield [at.source.replace(one.operator, "//")]


@move
def stable_form(place: Place, at: At) -> Iterator[Candidate]:
    """Writes the formula so that it keeps its digits."""
    source, statement = at.source, at.source.statement(at.node)
    first = source.line(statement)
    text = source.text[slice(*source.lines(statement))]
    inside = text[:1].isspace()
    try:
        tree = ast.parse(f"if 1:\n{text}" if inside else text)
    except SyntaxError:
        return
    lines = text.splitlines()

    def offset(line: int, column: int) -> int:
        row = line - 1 - inside
        return source.offset(first + row, len(lines[row].encode()[:column].decode()))

    for node, written in rewritten(tree):
        ends = offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)
        yield [Change(source.file, *ends, written)]


@move
def totals_in_float64(place: Place, at: At) -> Iterator[Candidate]:
    """Adds up in float64."""
    source, names = at.source, {at.source.code(name.node) for name in at.names()}
    if place.finding.from_dtype is not torch.float32:
        return
    if isinstance(at.node, cst.Call):
        yield from _added_at(at, torch.float64)
    if not isinstance(at.node, cst.BinaryOperation):
        return
    every = list(_additions(source))
    scopes = {source.scope(total) for total, _ in every if source.code(total) in names}
    changes: Candidate = []
    for total, value in [one for one in every if source.scope(one[0]) in scopes]:
        for made in source.definitions(total):
            if isinstance(made, cst.Call) and not At(source, made).says_dtype:
                changes += next(At(source, made).retyped(torch.float64), [])
                changes += joined([leaf.cast(torch.float64) for leaf in At(source, value).leaves()])
                break
    if changes:
        yield joined([changes, *(one.cast(torch.float32) for one in [at, *_readers(at, names)])])


def _additions(source: Source) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Totals, and what is added to each: `total += x` and `total = total + x`."""
    for one in source.of(cst.AugAssign):
        yield one.target, one.value
    for assign in source.of(cst.Assign):
        total, value = assign.targets[0].target, assign.value
        added = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add)
        if isinstance(value, cst.BinaryOperation) and added and source.code(value.left) == source.code(total):
            yield total, value.right


def _readers(at: At, names: set[str]) -> list[At]:
    """Where else the properties are read that a line reads, but for other ones of these."""
    source, method = at.source, at.source.scope(at.node)
    holder = source.scope(method) if isinstance(method, cst.FunctionDef) else None
    if not isinstance(holder, cst.ClassDef):
        return []
    functions = [one for one in source.below(holder, cst.FunctionDef) if source.scope(one) is holder]
    known = {f"self.{one.name.value}": one for one in functions}
    own = [one for name, one in known.items() if one is not method and name not in names]
    reads = [one for function in own for one in source.below(function, cst.Attribute)]
    return [At(source, one) for one in reads if source.code(one) in names & known.keys()]


@move
def fitting_target(place: Place, at: At) -> Iterator[Candidate]:
    """Allocates the target in the dtype of what is written to it."""
    source, node, finding = at.source, at.node, place.finding
    dtype = finding.from_dtype if finding.from_dtype not in (None, finding.to_dtype) else torch.float32
    receiver = source.on(node)
    if dtype is not None and source.is_cast(node) and not _targets(at):
        yield from At(source, node).retyped(dtype)
    for base in map(_base, [*([] if receiver is None else [receiver]), *_targets(at)]):
        if isinstance(base, cst.BaseExpression) and dtype is not None:
            for value in source.definitions(base)[:2]:
                if isinstance(value, cst.Call):  # what is but another name shares its memory, and is to do so
                    yield from At(source, value).retyped(dtype)
            if base is receiver and not source.called(node).endswith("_"):
                yield At(source, base).cast(dtype)


def _targets(at: At) -> list[Node]:
    """What a line assigns to."""
    statement = at.source.statement(at.node)
    assigned: list[Node] = [one.target for one in at.source.below(statement, cst.AssignTarget)]
    if any(isinstance(one, cst.Tuple) for one in assigned):
        return [at.node] if isinstance(at.node, cst.Subscript) else []
    return [*assigned, *(one.target for one in at.source.below(statement, cst.AugAssign))]


def _item(made: Node) -> Node:
    """What a comprehension makes; else the same."""
    return made.value if isinstance(made, cst.DictComp) else made.elt if isinstance(made, cst.ListComp) else made


def _base(target: Node) -> Node:
    return target.value if isinstance(target, cst.Subscript) else target


@move
def wider_target(place: Place, at: At) -> Iterator[Candidate]:
    """Allocates the target in wider integers."""
    known = (place.finding.from_dtype, place.finding.to_dtype)
    said = [torch.int64] if "`dtype=torch.int64`" in place.finding.fix else []  # by its help
    for wide in [*said, *(WIDER_INTEGER[dtype] for dtype in known if dtype in WIDER_INTEGER)][:1]:
        for name in [] if _is_added(at) else At(at.source, at.source.statement(at.node)).names():
            yield from (At(at.source, _item(value)).cast(wide) for value in at.source.definitions(name.node)[:1])
