"""What may be written around lines: autocast regions, and the default dtype."""

import re
from collections.abc import Iterator

import libcst as cst
import torch

from ..._core.base.dtypes import name_of
from .casts import Source
from .code import At, Place, joined, move
from .source import Candidate, Change, Node

_REGION = re.compile(r"autocast\('(\w+)', enabled=False\)")
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


@move
def float32_island(place: Place, at: At) -> Iterator[Candidate]:
    """Computes the line in float32, outside of the region."""
    source, statement = at.source, at.source.statement(at.node)
    begin, end = source.lines(statement)
    if (
        source.torch()
        and isinstance(statement, cst.SimpleStatementLine)
        and len(source.text[begin:end].splitlines()) == 1
    ):
        head = f"{source.indent(statement)}with {source.torch()}.autocast({source.device()}, enabled=False):"
        step = Change(source.file, begin, begin, f"{head}{source.newline}{source.module.default_indent}")
        yield [step, *joined([one.cast(torch.float32) for one in at.operands()])]


@move
def cast_for_region(place: Place, at: At) -> Iterator[Candidate]:
    """Casts to the region's dtype what no region casts."""
    text = f".to({at.source.torch()}.get_autocast_dtype({at.source.device()}))"
    parts = [one.cast(torch.float32, text) for one in at.used()] if at.source.torch() else []
    yield joined(parts)
    yield from parts


@move
def region_of_device(place: Place, at: At) -> Iterator[Candidate]:
    """Switches autocast off for the device of the tensors, too."""
    source, wanted = at.source, _REGION.search(place.finding.fix)
    statement = source.statement(at.node)
    for item in statement.items if isinstance(statement, cst.With) else ():
        if wanted is not None and source.torch() and source.called(item.item) == "autocast":
            region = f'{source.torch()}.autocast("{wanted[1]}", enabled=False)'
            yield [source.replace(item.item, f"{source.code(item.item)}, {region}")]


@move
def fresh_cache(place: Place, at: At) -> Iterator[Candidate]:
    """Clears autocast's cache where the weights have changed."""
    if at.source.torch() and _entered(place) is None:
        yield [at.source.before_line(at.source.statement(at.node), f"{at.source.torch()}.clear_autocast_cache()")]


@move
def region_per_call(place: Place, at: At) -> Iterator[Candidate]:
    """Enters the region around each call of the model, and leaves it there."""
    source, entered = at.source, _entered(place)
    region = None if entered is None else source.on(entered)
    if entered is None or region is None or not isinstance(at.node, cst.Call):
        return
    code, scope = source.code(at.node.func), source.scope(entered)
    after = source.extent(entered)[1]
    calls = [one for one in source.of(cst.Call) if source.code(one.func) == code and source.extent(one)[0] > after]
    around = dict.fromkeys(source.statement(one) for one in calls if source.scope(one) is scope)
    if source.statement(at.node) in around and all(isinstance(one, cst.SimpleStatementLine) for one in around):
        item = cst.WithItem(region)
        regions = [_rewrite(source, one, [cst.With([item], cst.IndentedBlock([one]))]) for one in around]  # type: ignore[list-item]
        yield [source.without(source.line_of(entered)), *regions]


def _entered(place: Place) -> cst.Call | None:
    """`amp.__enter__()` for a region that nobody leaves, where a line of the file at fault enters it."""
    born, at = place.birth, place.fault
    if born is None or at is None or born.source is not at.source:
        return None
    calls = [one for one in born.source.of(cst.Call) if born.source.called(one) == "__enter__"]
    left = any(born.source.called(one) == "__exit__" for one in born.source.of(cst.Call))
    line = born.source.statement(born.node)
    return None if left else next((one for one in calls if born.source.statement(one) is line), None)


@move
def region_per_item(place: Place, at: At) -> Iterator[Candidate]:
    """Leaves the region before the generator yields."""
    source, region = at.source, at.source.statement(at.node)
    inner = list(region.body.body) if isinstance(region, cst.With) else []
    loop = inner[0] if len(inner) == 1 and isinstance(inner[0], cst.For) else None
    body = list(inner if loop is None else loop.body.body)
    last = body[-1].body[0] if body and isinstance(body[-1], cst.SimpleStatementLine) else None
    value = last.value if isinstance(last, cst.Expr) else None
    given = value.value if isinstance(value, cst.Yield) else None
    if given is None or isinstance(given, cst.From) or len(list(source.below(region, cst.Yield))) != 1:
        return
    kept = cst.parse_statement(f"item = {source.code(given)}")
    made = region.with_changes(body=cst.IndentedBlock([*body[:-1], kept]), leading_lines=())  # type: ignore[list-item]
    parts = [made, cst.parse_statement("yield item")]
    whole = parts if loop is None else [loop.with_changes(body=cst.IndentedBlock(parts))]  # type: ignore[arg-type]
    yield [_rewrite(source, region, whole)]  # type: ignore[arg-type]


def _rewrite(source: Source, statement: Node, nodes: list[Statement], last: Node | None = None) -> Change:
    """Statements in place of others, with their indentation; strings of several lines stay as they are."""
    indent = source.indent(statement)
    shell: list[Statement] = [cst.If(cst.Name("_"), cst.IndentedBlock(nodes, indent=indent))] if indent else nodes
    code = cst.Module(shell, default_newline=source.newline, default_indent=source.module.default_indent).code
    text = code.partition(source.newline)[2] if indent else code
    return Change(source.file, source.lines(statement)[0], source.lines(last or statement)[1], text)


@move
def default_in_finally(place: Place, at: At) -> Iterator[Candidate]:
    """Sets the default dtype back in a `finally`."""
    yield from _restored(place, at, there=True)


@move
def default_given_back(place: Place, at: At) -> Iterator[Candidate]:
    """Sets the default dtype back, or does not change it."""
    yield from _restored(place, at, there=False)
    yield [at.source.without(at.source.line_of(at.node))]


def _restored(place: Place, at: At, there: bool) -> Iterator[Candidate]:
    source, statement = at.source, at.source.line_of(at.node)
    block = list(source.block(statement))
    rest = block[block.index(statement) + 1 :]
    back = [
        one for one in rest if any(source.called(call) == "set_default_dtype" for call in source.below(one, cst.Call))
    ]
    inner = rest[: rest.index(back[0])] if back else rest
    works = any(
        isinstance(node, cst.Call | cst.Yield) for one in inner for node in source.below(one, cst.Call, cst.Yield)
    )
    if bool(back) is there and works:
        code = f"torch.set_default_dtype(torch.{name_of(place.finding.from_dtype)})"
        code = source.text[slice(*source.lines(back[0]))].strip() if back else code
        last = cst.Finally(cst.IndentedBlock([cst.parse_statement(code)]))
        tried = cst.Try(body=cst.IndentedBlock(inner), finalbody=last)  # type: ignore[arg-type]
        yield [_rewrite(source, inner[0], [tried], back[0] if back else inner[-1])]
