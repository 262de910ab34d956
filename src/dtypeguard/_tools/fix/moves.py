"""What may be written in place of an expression: each move gives candidates, the best first, and a run decides."""

import itertools
import re
from collections.abc import Iterator

import libcst as cst
import torch

from ..._core.base.dtypes import FLOATING, HALF, name_of
from .casts import SUMS, Source
from .code import At, Place, each_and_all, joined, move
from .source import Candidate, Change

_REFUSED_INDEX = re.compile(r"for index\b|'ind(ex|ices)'|as indices")  # in messages of PyTorch's
_TO_INTEGERS = re.compile(r"\.(?:long|int)\(\)$|\.to\(torch\.int\d+\)$")
_HALVES = frozenset(["half", *map(name_of, HALF)])
_NO_TENSORS = frozenset(["zip", "enumerate", "range"])


@move
def cast_at_birth(place: Place, at: At) -> Iterator[Candidate]:
    """Converts where the dtype is born."""
    half = place.narrow in HALF
    if half and name_of(place.narrow) in place.finding.fix:  # as its help says
        return
    inline = [part for part in at.used() if _looks_wide(part)] if half else []
    for birth in inline if place.birth is None else [place.birth]:
        yield from birth.retyped(torch.float32 if half else place.narrow)


@move
def narrow_at_birth(place: Place, at: At) -> Iterator[Candidate]:
    """Converts to the narrower dtype where it is born."""
    birth = place.birth
    if birth is None:
        return
    assigned = next((one.value for one in birth.source.up(birth.node) if isinstance(one, cst.Assign)), birth.node)
    if place.narrow in HALF and birth.source.is_cast(birth.node) and assigned is not birth.node:
        yield At(birth.source, assigned).cast(place.narrow)  # `x.float().std()` means float32
    else:
        yield from birth.retyped(place.narrow)


@move
def cast_operands(place: Place, at: At) -> Iterator[Candidate]:
    """Casts an operand where it is used."""
    finding = place.finding
    parts = at.used(places=_REFUSED_INDEX.search(finding.message) is not None)
    floating = finding.from_dtype in FLOATING
    for text in _like_layers(at) if floating and finding.to_dtype in FLOATING else ():
        yield from (part.cast(place.narrow, text) for part in parts)
    if floating and {finding.from_dtype, finding.to_dtype} & set(HALF):
        yield from _like_others(at, parts)
    targets = [finding.to_dtype, finding.from_dtype, torch.float32]
    if not floating:
        targets = [finding.to_dtype, torch.float32, torch.int64, torch.bool]
    elif finding.to_dtype not in FLOATING:  # a mask, or indices, which half precision has rounded by now
        targets = [] if finding.from_dtype in HALF else [finding.to_dtype or torch.int64]
    others, again = _siblings(at), _again(at, parts)
    for dtype in dict.fromkeys(targets):
        if dtype is not None and dtype is not torch.float64:
            yield joined([part.cast(dtype) for part in others])
            yield from each_and_all([part.cast(dtype) for part in parts])
            yield joined([part.cast(dtype) for part in again])
    if finding.from_dtype in HALF and finding.to_dtype is torch.float32 and isinstance(at.node, cst.BaseExpression):
        for text in [*at.in_function(), at.source.spelt(finding.from_dtype)]:  # and back, for what goes on with it
            yield joined([*(part.cast(torch.float32) for part in parts), at.source.after(at.node, text)])


def _like_others(at: At, parts: list[At]) -> Iterator[Candidate]:
    """Casts operands to the dtype of the last or the first: code in a function may run in other dtypes as well."""
    names = [part for part in parts if isinstance(part.node, cst.Name) or at.source.of_self(part.node)]
    alike = len(names) == len(parts) or isinstance(at.node, cst.BinaryOperation)
    if names and alike and len(parts) > 1 and isinstance(at.source.scope(at.node), cst.FunctionDef):
        for target in (names[-1], names[0]):
            text = f".to({at.source.code(target.node)}.dtype)"
            yield joined([part.cast(torch.float32, text) for part in parts if part is not target])


def _siblings(at: At) -> list[At]:
    """What all calls of a line compute with that call the same, where they are several."""
    source, name = at.source, at.source.called(at.node)
    calls = [call for call in source.below(source.statement(at.node), cst.Call) if name and source.called(call) == name]
    nested = any(source.inside(one, other) for one in calls for other in calls if one is not other)
    return [part for call in calls for part in At(source, call).used()] if len(calls) > 1 and not nested else []


def _again(at: At, parts: list[At]) -> list[At]:
    """The operands of which a line calls several methods: `image.min(), image.max()`."""
    source, codes = at.source, {at.source.code(part.node) for part in parts}
    inner = [source.on(call) for call in source.below(source.statement(at.node), cst.Call)]
    found = [At(source, one) for one in inner if one is not None and source.code(one) in codes]
    return found if len(found) > 1 else []


def _like_layers(at: At) -> list[str]:
    """`.to(self.layer.weight.dtype)` for a layer that is called in a method: code that has no dtype of its own."""
    call = at.node
    layer = call.func if isinstance(call, cst.Call) and isinstance(at.source.scope(call), cst.FunctionDef) else None
    if layer is None or not at.source.of_self(layer):
        return []
    code = at.source.code(layer)
    return [f".to({code}.weight.dtype)", f".to(next({code}.parameters()).dtype)"]


@move
def cast_to_narrow(place: Place, at: At) -> Iterator[Candidate]:
    """Casts the wider operand, or the result, to the narrower dtype."""
    parts = [*at.used(), at]
    parts += [inner for part in parts for inner in part.operands() if isinstance(part.node, cst.Call)]
    parts = list({id(part.node): part for part in parts}.values())
    for one in parts:
        yield from (one.cast(place.narrow, text) for text in one.in_function())
    for one in at.used():
        beside = [text for other in at.used() if other.node is not one.node for text in _like_layers(other)[:1]]
        yield from (one.cast(place.narrow, text) for text in beside)
    yield from (one.cast(place.narrow) for one in parts)


@move
def narrow_operands(place: Place, at: At) -> Iterator[Candidate]:
    """Casts what is wider where it is used."""
    if place.narrow in HALF and place.finding.severity != "error":
        return  # what is not refused may want its digits
    parts = sorted(at.used(), key=lambda part: not _looks_wide(part))
    yield from (part.cast(place.narrow) for part in parts)
    for part in filter(_looks_wide, parts):  # what the function is given may be of either dtype
        yield from (part.cast(place.narrow, text) for text in part.in_function())
    yield joined([part.cast(place.narrow) for part in parts])


def _looks_wide(at: At) -> bool:
    """Whether an expression speaks of NumPy or float64."""
    names = [name for name, module in at.source.modules.items() if module.partition(".")[0] == "numpy"]
    words = re.findall(r"\w+", at.source.code(at.node))
    return any(word in (*names, "from_numpy", "float64", "double") for word in words)


@move
def cast_to_wide(place: Place, at: At) -> Iterator[Candidate]:
    """Casts the narrower operand to the wider dtype."""
    known = [dtype for dtype in (place.finding.from_dtype, place.finding.to_dtype) if dtype is not None]
    for part in at.used() if known else ():
        yield part.cast(max(known, key=lambda dtype: dtype.itemsize))


@move
def float32_at_birth(place: Place, at: At) -> Iterator[Candidate]:
    """Converts where the float64 is born."""
    if place.birth is not None and torch.float64 in (place.finding.from_dtype, place.finding.to_dtype):
        yield from place.birth.retyped(torch.float32)


@move
def floats_at_birth(place: Place, at: At) -> Iterator[Candidate]:
    """Makes floats of integers where they are born."""
    given, wanted = place.finding.from_dtype, place.finding.to_dtype
    if place.birth is not None and wanted is torch.float32 and given in (torch.int32, torch.int64):
        yield from place.birth.retyped(torch.float32)


@move
def cast_in_loop(place: Place, at: At) -> Iterator[Candidate]:
    """Converts at the top of the loop, or where a data set makes it."""
    born = place.birth or at
    source, loop = born.source, born.source.statement(born.node)
    if place.narrow in HALF or not isinstance(loop, cst.For) or not isinstance(loop.body, cst.IndentedBlock):
        return
    for other in place.sources:
        numpy = next((name for name, module in other.modules.items() if module == "numpy"), None)
        items = [one for one in other.of(cst.FunctionDef) if numpy and one.name.value == "__getitem__"]
        for part in [
            part for item in items for one in other.below(item, cst.Return) for part in At(other, one).operands()
        ]:
            yield other.around(part.node, f"{numpy}.{name_of(place.narrow)}(", ")")
    names = [source.code(name.node) for name in At(source, loop.target).names()]
    for name in names:
        yield [source.before_line(loop.body.body[0], f"{name} = {name}{source.spelt(place.narrow)}")]


@move
def retype_inside(place: Place, at: At) -> Iterator[Candidate]:
    """Gives a cast or a factory in the line a wider dtype, or takes the cast out."""
    # What is wrong in float64 nobody would see: there a cast may only go, or keep integers as they are.
    seen = place.wide is not torch.float64 or place.finding.fix.startswith("keep integers")
    for call in at.casts(place.wide):
        yield from itertools.islice(call.retyped(place.wide), None if seen else 1)
    made = at.source.on(at.node) if at.source.called(at.node).endswith("_") else None
    if isinstance(made, cst.Call) and place.wide is not torch.float64:  # what is written to it has to be as wide
        parts = [At(at.source, made), *(one for part in at.used() for one in part.origins(1)[:1])]
        yield joined([next(call.retyped(place.wide), []) for part in parts for call in part.casts(place.wide)])


@move
def called_in_wider(place: Place, at: At) -> Iterator[Candidate]:
    """Calls the function with a wider dtype, and casts what it returns."""
    function = at.source.scope(at.node)
    if place.wide is torch.float64 or not isinstance(function, cst.FunctionDef):
        return
    parts: list[tuple[Candidate, Candidate]] = []
    for source in place.sources:
        for call in source.of(cst.Call):
            named = [arg.value for arg in call.args if source.code(arg.value).rpartition(".")[2] in _HALVES]
            if source.called(call) == function.name.value and len(named) == 1:
                back = source.after(call, f".to({source.code(named[0])})")
                parts.append(([source.replace(named[0], source.dtype_code(place.wide))], back))
    yield joined([part for both in parts for part in both])
    yield joined([wider for wider, _ in parts])


@move
def widen_sum(place: Place, at: At) -> Iterator[Candidate]:
    """Sums in a wider dtype."""
    if at.source.called(at.node) in SUMS:
        yield from (one.cast(place.wide) for one in at.operands()[:1])


@move
def widen_operands(place: Place, at: At) -> Iterator[Candidate]:
    """Computes the line in a wider dtype."""
    if place.wide is torch.float64 and place.finding.rule == "DG902":
        return  # nobody would see what is wrong in float64
    parts = at.used()
    # `torch.stack([norm**2 for norm in norms])`: the squares are as large as their sum.
    lists = [part.elt for one in parts for part in at.source.below(one.node, cst.ListComp)]
    for one in [At(at.source, elt) for elt in lists if isinstance(elt, cst.BinaryOperation)]:
        yield from (leaf.cast(place.wide) for leaf in one.leaves()[:1])
    deep = [leaf for one in parts for leaf in one.leaves()]
    if [one.node for one in deep] != [one.node for one in parts]:
        yield joined([leaf.cast(place.wide) for leaf in deep])
    every = [one.cast(place.wide) for one in parts]
    yield joined(every)
    yield from every if len(every) > 1 else ()
    yield joined([leaf.cast(place.wide) for one in _siblings(at) for leaf in one.leaves()])
    if place.finding.from_dtype in HALF and isinstance(at.node, cst.BaseExpression) and place.finding.rule != "DG113":
        for text in [*at.in_function(), at.source.spelt(place.narrow)]:
            yield joined([*every, at.source.after(at.node, text)])


@move
def whole_numbers(place: Place, at: At) -> Iterator[Candidate]:
    """Computes whole numbers as integers, or in a dtype that has them all."""
    if place.wide is not torch.float64 or not place.finding.fix.endswith(WHOLE):
        return
    rounding, source = place.birth or at, (place.birth or at).source
    whole = rounding.node
    while isinstance(source.parents[whole], cst.BinaryOperation):
        whole = source.parents[whole]
    deep = [leaf for one in At(source, whole).used() for leaf in one.leaves()]
    casts = [call for leaf in deep for call in leaf.casts(place.wide) if source.on(call.node) is not None]
    yield joined([next(call.retyped(place.wide), []) for call in casts])
    yield from (leaf.cast(place.wide) for leaf in deep)


@move
def widen_rounding(place: Place, at: At) -> Iterator[Candidate]:
    """Stays in the wider dtype where digits were dropped."""
    if place.birth is not None:
        yield from place.birth.kept_as_it_is()
        single = place.wide is torch.float64 and "float32" not in place.finding.spots[1].label  # half is rounded there
        for call in place.birth.casts(place.wide):
            yield from call.retyped(torch.float32 if single else place.wide)


@move
def narrow_behind_difference(place: Place, at: At) -> Iterator[Candidate]:
    """Subtracts in float64, and rounds the difference."""
    birth = place.birth
    if birth is None or place.wide is not torch.float64:
        return
    source, made = birth.source, birth.node
    if not (birth.says_dtype or source.is_cast(made) or source.makes(made)):
        return  # what was computed is as it is
    assign = next((one for one in source.up(birth.node) if isinstance(one, cst.Assign)), None)
    target = None if assign is None else assign.targets[0].target
    if assign is None or not isinstance(target, cst.Name):
        return
    scope, end = source.scope(assign), source.extent(assign)[1]
    for node in source.below(scope, cst.BinaryOperation):
        sides = [(side, source.root(side) == target.value) for side in (node.left, node.right)]
        if isinstance(node.operator, cst.Subtract) and source.extent(node)[0] >= end and any(same for _, same in sides):
            wide = [source.code(side) if same else f"{source.closed(side)}.double()" for side, same in sides]
            for born in birth.retyped(torch.float64):
                yield [*born, source.replace(node, f"({' - '.join(wide)}).float()")]
                yield [*born, *source.after(node, ".float()")]
            return


@move
def float64_inside(place: Place, at: At) -> Iterator[Candidate]:
    """Computes in float64 inside the function."""
    birth = place.birth if place.wide is torch.float64 else None
    function = None if birth is None else birth.source.scope(birth.node)
    if birth is None or not isinstance(function, cst.FunctionDef):
        return
    source = birth.source
    returned = [one.value for one in source.below(function, cst.Return) if source.scope(one) is function]
    computed = len(returned) == 1 and returned[0] is not birth.node and not isinstance(returned[0], cst.Tuple)
    if computed and returned[0] is not None:
        whole = _TO_INTEGERS.search(source.code(returned[0])) is not None
        for born in birth.retyped(torch.float64):
            yield born if whole else [*born, *source.after(returned[0], ".float()")]


@move
def widen_behind(place: Place, at: At) -> Iterator[Candidate]:
    """Computes the line that loses the digits in a wider dtype."""
    finding = place.finding
    if place.birth is not None and "beside a larger number" in (finding.edit.label if finding.edit else ""):
        yield joined([one.cast(place.wide) for one in place.birth.used()])
    if place.birth is None or finding.edit != finding.spots[1]:
        return
    if place.born_half:
        yield joined([one.cast(torch.float32) for one in place.birth.used()])
        yield place.birth.cast(torch.float32)  # of autocast's result: what comes of it is wide
    elif "from here" in finding.spots[1].label:  # what came in was right; else nobody would see it in float64
        for call in place.birth.casts(place.wide):
            yield from call.retyped(place.wide)
        yield from widen_operands(place, place.birth)


@move
def widen_origins(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps what the line is computed from in a wider dtype."""
    yield from _made_as(at.origins(), place.wide)
    birth = place.birth  # which may be further away than definitions are looked through
    call = birth.node if birth is not None and birth.says_dtype else None
    if birth is not None and call is not None and not isinstance(birth.source.on(call), cst.Call):
        yield from _made_as([birth], place.wide)  # not of `Net().to(dtype)`, which converts all of a model


@move
def narrow_origins(place: Place, at: At) -> Iterator[Candidate]:
    """Makes what the line is computed from in the narrower dtype."""
    yield from _made_as(at.origins(), place.narrow)


def _made_as(made: list[At], dtype: torch.dtype) -> Iterator[Candidate]:
    for one in [other for found in made for other in _operands_of(found)]:
        if one.source.is_module(one.node) or one.source.called(one.node) in _NO_TENSORS:
            continue
        yield from one.kept_as_it_is()
        calls = one.casts(torch.float64 if dtype is torch.float64 else torch.float32)
        for call in calls:
            yield from call.retyped(dtype)
        if not calls and (dtype is not torch.float64 or one.says_dtype):  # nobody would see what is wrong in float64
            whole = list(one.retyped(dtype))
            given = _given_to(one, dtype) if dtype is torch.float32 else []
            yield from whole
            yield from ([*change, *given] for change in whole if given)


def _given_to(copied: At, dtype: torch.dtype) -> Candidate:
    """The arguments of each call of a model's copy, cast: `average = copy.deepcopy(model)`."""
    source, node = copied.source, copied.node
    assign = source.parents.get(node)
    if source.called(node) != "deepcopy" or not isinstance(assign, cst.Assign):
        return []
    names = [source.code(target.target) for target in assign.targets]
    calls = [call for call in source.of(cst.Call) if source.code(call.func) in names]
    return joined([part.cast(dtype) for call in calls for part in At(source, call).operands()])


def _operands_of(at: At) -> list[At]:
    """An expression; of a comprehension what it makes; nothing for a model that an optimizer trains."""
    node = at.node
    parent = next((one for one in at.source.up(node) if isinstance(one, cst.Assign)), None)
    names = [] if parent is None else [at.source.code(target.target) for target in parent.targets]
    made = [call for call in at.source.of(cst.Call) if at.source.called(call)[:1].isupper()]  # optimizers
    given = [at.source.code(arg.value) for call in made for arg in call.args]
    if any(f"{name}.parameters()" in given for name in names):
        return []
    inner = node.value if isinstance(node, cst.DictComp) else node.elt if isinstance(node, cst.BaseSimpleComp) else None
    return [at] if inner is None else [At(at.source, inner), at]


@move
def cast_once(place: Place, at: At) -> Iterator[Candidate]:
    """Converts it where it is made, once."""
    dtype, source = place.finding.to_dtype, at.source
    for one in at.operands()[:1] if dtype is not None else ():
        code = source.code(one.node)
        uses = [node for node in source.of(cst.Name, cst.Attribute) if source.code(node) == code]
        if len(uses) == 2:  # where it is made and where it is cast; others may want it as it is
            yield from (made.cast(dtype) for made in one.origins(1) if dtype is not None)


@move
def without_copy(place: Place, at: At) -> Iterator[Candidate]:
    """Writes to the tensor itself and not to a cast copy of it."""
    source, call = at.source, at.node
    target = None if isinstance(source.parents[call], cst.Expr) else source.on(call)
    if target is not None:
        yield [source.replace(call, source.code(target))]


WHOLE = "or make it of integers"  # the help, where whole numbers are lost that float64 has
_VIEWS = frozenset("detach clone contiguous cpu float view reshape flatten squeeze unsqueeze".split())
_DRAWN = re.compile(r"`(\w+\[\w+\]) = ")  # where a loop has a value from: what DG103 says to write to


@move
def keep_result(place: Place, at: At) -> Iterator[Candidate]:
    """Keeps the result of the cast."""
    source, call = at.source, at.node
    target = source.on(call) if isinstance(source.parents[call], cst.Expr) else None
    if target is not None and _is_held_by_others(source, target):
        return
    read = isinstance(target, cst.Attribute | cst.Subscript) or (
        isinstance(target, cst.Name) and source.is_read(target)
    )
    drawn = None if read else _DRAWN.search(place.finding.fix)
    if target is not None and (read or drawn):
        begin = source.extent(call)[0]
        yield [Change(source.file, begin, begin, f"{drawn[1] if drawn else source.code(target)} = ")]


def _is_held_by_others(source: Source, target: cst.BaseExpression) -> bool:
    """Whether to write there changes what the caller has, or the weights and buffers of a module."""
    if isinstance(target, cst.Attribute):
        name = target.attr.value
        if name in ("data", "grad") or (source.of_self(target) and source.buffers(name)):
            return True
    return not isinstance(target, cst.Name) and source.root(target) in source.others(target)


@move
def without_cast(place: Place, at: At) -> Iterator[Candidate]:
    """Deletes the cast that nothing reads."""
    source, call = at.source, at.node  # not where it is all that a loop or a function does
    target = source.on(call) if isinstance(source.parents[call], cst.Expr) else None
    while isinstance(target, cst.Call) and source.called(target) in _VIEWS:
        target = source.on(target)
    if isinstance(target, cst.Name | cst.Attribute | cst.Subscript) and len(source.block(source.statement(call))) > 1:
        yield [source.without(source.line_of(call))]
