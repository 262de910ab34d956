"""What DG9 has in common: a line that spoilt values, and where that was felt."""

import ast
import itertools
import re
from typing import Any

import torch

from ..._core.base.dtypes import HALF, WIDER, name_of
from ..._engine.values.engine import Harm
from ..._engine.values.rows import Cause, Row
from ..._engine.watch.lineage import COPIED
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.spots import Step
from ..._engine.watch.text import outside
from ..._show.text import percent

_SHOWN = 2  # places
_LINES = 6  # of an origin
_LONGEST = 100  # code that is told
_ALSO = 0.1  # an error that one rounding more makes of a result
_CASTS = frozenset(["_to_copy", "copy_"])
_RANGES = "arange", "linspace", "logspace"
_GIVEN = _CASTS | {"tensor"}  # what has more digits comes in here


def wide_of(row: Row) -> str:
    """The dtype of the shadow."""
    return name_of(WIDER.get(row.dtype, torch.float64))


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:.4g}"


def share(error: float) -> str:
    """An error in percent: `0.28 %`; what is more than everything as it is."""
    return percent(error) if error < 10 else "more than 1000 %"


def would_be(row: Row, total: bool = False) -> str:
    """One value, and what the wider dtype has in its place; a `total` may have grown since that was measured."""
    if row.example is None:
        return ""
    value, shadow = row.example
    least = "at least " if total and row.seen != row.visits and abs(shadow) > abs(value) else ""
    return f"{number(value)} where {wide_of(row)} has {least}{number(shadow)}"


def keep(row: Row) -> str | None:
    """Where to act, if that is another line than the one that shows it: digits that were dropped before.

    None where the line itself computes in that half dtype, for then all that it is computed from has few digits; but
    where only autocast has rounded what the line is computed from, it has them all outside.
    """
    rounded = row.rounded()
    if rounded is None or rounded is row:
        return None
    autocast = next((one.autocast for one in row.chain() if one.site is rounded.site and one.autocast), None)
    if row.dtype in HALF:
        since = itertools.takewhile(lambda one: one.site is not rounded.site, row.chain())
        if autocast is None or any(one.autocast or casts(one) for one in since):
            return None
    if rounded.dtype not in HALF and rounded.name not in _GIVEN:
        return None
    what, also = rounded.site.expression or rounded.name, also_rounds(row)
    too = "" if also is None else f"; `{also.site.expression or also.name}` at line {also.site.line} too"
    if autocast is not None:
        return f"compute `{what}` in {wide_of(rounded)} {outside(autocast)}{too}"
    if rounded.name == "tensor" and what.startswith("torch.tensor("):
        wide = f"give `dtype=torch.{wide_of(rounded)}` to `{what}`"
        return f"{wide}, which rounds to {name_of(rounded.dtype)}; whole numbers stay integers"
    if rounded.name in _GIVEN:
        return f"stay in {wide_of(rounded)}: `{what}` rounds{too}"
    if rounded.name in _RANGES:
        return f"give `{what}` the dtype {wide_of(rounded)}, and cast only what is computed from it{too}"
    return f"compute `{what}` in {wide_of(rounded)}, by a cast of what goes in: its result has lost the digits{too}"


def also_rounds(row: Row) -> Row | None:
    """Where half precision rounds once more on the way, if that alone makes the results wrong."""
    rounded = row.rounded()
    if rounded is None or rounded.dtype not in HALF or row.dtype in HALF or not row.incoming:
        return None
    gain = row.error / max(row.incoming, rounded.half_ulp)
    behind = itertools.takewhile(lambda one: one.site is not rounded.site, row.chain())
    return next((one for one in behind if one.dtype in HALF and not one.exact and one.half_ulp * gain > _ALSO), None)


def lost_before(row: Row) -> Row | None:
    """The line behind this one that made roundings so large that its values are others, and did so before it."""
    before = (one for one in row.culprits() if one is not row and one.since <= row.since)
    return next((one for one in before if one.cause is Cause.AMPLIFIED), None)


def casts(row: Row) -> bool:
    """Whether a line casts, and computes nothing."""
    return row.name in _CASTS


def compute(row: Row, why: str = "") -> str:
    """That a line is to be computed in the wider dtype, and not its result alone; or that it is not to cast to it."""
    what = row.site.expression or row.name
    if casts(row):
        return f"stay in {wide_of(row)}: `{what}` rounds"
    rounded, since, wide = None if row.dtype in HALF else row.rounded(), "", wide_of(row)
    if rounded is not None and rounded.site.key != row.site.key:
        since = f", beginning with `{rounded.site.expression or rounded.name}` at line {rounded.site.line},"
        wide = wide_of(rounded) if rounded.dtype in HALF else wide
    return f"compute `{what}` and what it is computed from{since} in {wide}{why and f': {why}'}"


def _birth(row: Row, edit: bool) -> Step | None:
    """The line at which the half dtype was born of what a line computes from, or writes to."""
    node = row.node if row.dtype in HALF else None
    made = None if node is None or node.dtype is not row.dtype else node.made(edit)
    return None if made is None or made.site is None or made.site.key == row.site.key else made


_MAKES = re.compile(r"(?:torch\.|.*\.new_)?(?:zeros|ones|full|empty|tensor|rand|randn)(?:_like)?")
_ONE_DTYPE = re.compile("lerp|index_add|scatter_add|_foreach")  # what mixes no dtypes
_CALLS = re.compile(r"(.*)\.(?:half\(\)|bfloat16\(\)|to\(torch\.\w+\))", re.DOTALL)


def made_wide(row: Row) -> str:
    """The call that makes what a line writes to, with the wider dtype; empty where no dtype is written in one."""
    born, wide = _birth(row, True), f"torch.{wide_of(row)}"
    if _ONE_DTYPE.search(row.name):
        return ""
    code = "" if born is None or born.site is None or row.node is None or converted(row) else born.site.written
    try:
        call = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call) or len(code) > _LONGEST:
        return ""
    if (cast := _CALLS.fullmatch(code)) and row.node is not None and row.node.birth.op == "_to_copy":
        return f"{cast[1]}.to({wide}, copy=True)"  # `to` alone gives a tensor itself, which is written to
    if not _MAKES.fullmatch(ast.unparse(call.func)):
        return ""
    named = next((one for one in call.keywords if one.arg == "dtype"), None)
    if named is None:
        return "" if any(one.arg is None for one in call.keywords) else f"{code[:-1].rstrip(', ')}, dtype={wide})"
    written = ast.get_source_segment(code, named.value) or ""
    return code.replace(f"dtype={written}", f"dtype={wide}") if written.startswith("torch.") else ""


def converted(row: Row) -> str | None:
    """The parameter or buffer that a line writes to, if its half dtype is that of a conversion of its module."""
    node = None if row.dtype not in HALF or row.node is None or row.node.op == COPIED else row.node
    birth = None if node is None else node.birth
    if birth is None or not birth.named or not birth.parents:
        return None
    kind, _, name = birth.op.partition(" ")
    return f"{kind} `{name}`"


def _step(row: Row, here: str | None, edit: bool) -> Step:
    text = f"{row}: {name_of(row.dtype)}"
    return Step(text, row.site, here, edit) if here else Step(text)


def found_at(row: Row, audit: Recorder) -> dict[str, str]:
    """What was found at a line: the rules, and what they say to write."""
    here = row.site.file, row.site.line
    return {one.rule: one.fix for one in audit.findings.rows() if (one.file, one.line) == here}


def enter(
    rule: Rule, audit: Recorder, row: Row, facts: dict[str, Any], harm: Harm | None, severity: Severity | None = None,
    lost: Row | None = None, earlier: bool = True,
) -> None:  # fmt: skip
    """Enter a finding; what nobody has felt is an info. The digits are lost at the line of `lost`, if that is given.

    Whether the line to change is an `earlier` one, where they are lost or rounded, says the rule's advice.
    """
    felt = [] if harm is None else list(dict.fromkeys(what for what, _ in harm.felt))
    reached = f"; it reaches {' and '.join(felt[:_SHOWN])}" if felt else ""
    if harm is not None and not felt:
        severity = Severity.INFO
    itself = row.builds_up and row.dtype in HALF  # it rounds, in each round of a loop
    rounded = lost or (row.rounded() if "{rounded}" in rule.says and not itself else None)
    steps = list(row.chain())[:_LINES]
    shown, stalls = rounded if rounded is not row else None, harm is not None and harm.cause is Cause.STALLED
    if shown is None and row.dtype in HALF and not stalls and not (itself and row.name == "_to_copy"):
        shown = next((one for one in reversed(list(row.chain())) if one.name in _CASTS and one.dtype in HALF), None)
    born = (
        _birth(row, earlier and (stalls or row.builds_up)) if shown is None or shown.site.key == row.site.key else None
    )
    if shown is not None and shown not in steps:
        steps.append(shown)
    here = None if shown is None else f"rounded to {name_of(shown.dtype)} here"
    also = also_rounds(row) if shown is not None and shown is rounded and lost is None else None
    if shown is not None and shown is row.taken:
        here = f"loses digits beside a larger number in {name_of(shown.dtype)} here"
    if lost is not None and lost.cause is not None:
        came, made = share(lost.incoming), share(lost.error)
        grows = lost.incoming and lost.name in ("sub", "add", "rsub")  # which are exact, but for what comes in
        here = f"an error of {came} becomes {made} here" if grows else f"an error of {made} from here"
    earlier = earlier and shown is rounded
    texts, told = {shown: here, also: "also rounded here"}, dict[str, Step]()
    for one in reversed(steps):
        step = _step(one, texts.get(one), earlier and one is shown)
        told[step] = step if step.site is not None else told.get(step, step)
    chain = tuple(told.values())
    chain = chain if born is None else (born, *(step for step in chain if step != born))
    back = ", in backward" if row.backward else ""
    facts = {
        "back": back,
        "what": row.site.expression or row.name,
        "dtype": name_of(row.dtype),
        "wide": wide_of(row),
        "rounded": "" if lost or rounded in (None, row) else f"; rounded in {name_of(rounded.dtype)}: {rounded}",
        "lost": f"; the digits are lost at {lost}" if lost else "",
        **facts,
    }
    audit.find(
        rule, row.site, severity=severity, facts={**facts, "reached": reached}, module=row.module, op=row.name,
        from_dtype=row.dtype, to_dtype=WIDER.get(row.dtype, torch.float64), origin=chain, about=row.name,
        course=tuple(row.course) if stalls else (),
    )  # fmt: skip
