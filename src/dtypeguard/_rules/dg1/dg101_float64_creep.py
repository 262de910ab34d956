"""DG101 float64-creep."""

import re
from typing import Any

import torch

from ..._core.base.dtypes import HALF
from ..._engine.watch.lineage import CONVERTED, FIRST
from ..._engine.watch.text import operand, uncast
from .._kit import Node, Op, Recorder, Rule, Severity, Site, name_of, on
from .._refusals import Refused, Turn, explains
from ._promotions import Promoted, like, open_promotions, rows, tell

_OTHERS = 2  # lines that are told besides the first one

RULE = Rule(
    "DG101",
    "float64-creep",
    Severity.WARNING,
    summary="A float64 operand turns results into float64.",
    says="`{what}` {how} {double} and {other}{size}",
    fix="{advice}",
    why=(
        "NumPy and Python compute in float64, models in float32 or less. One float64 operand makes every "
        "result float64: twice the memory and a fraction of the speed on a GPU, nothing at all on MPS; a "
        "layer refuses it. Where all that comes of it is cast back, it is an info: nothing leaves in float64, but the "
        "time and the memory are lost all the same."
    ),
    at_birth=True,
    safe=("cast_at_birth", "cast_in_loop", "narrow_operands"),
    unsafe=("narrow_at_birth", "cast_to_narrow"),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/pytorch/pytorch/issues/36553",
        "https://github.com/sgl-project/sglang/issues/29011",
    ),
)


@on("after", RULE, ops="add_ sub_ copy_ lerp_ addcmul_ addcdiv_ index_add_ scatter_add_ index_put_".split())
def gathered(event: Op, audit: Recorder) -> None:
    """`mean += (x - mean) / n`: nothing comes of it but what somebody keeps in float64 on purpose."""
    if audit.promotions and event.inputs[0].dtype is torch.float64:
        node = audit.lineage.get(event.inputs[0])
        for tensor in event.inputs[1:] if node is not None and _was_made_so(node) else ():
            for promoted in open_promotions(tensor, audit, torch.float64):
                promoted.row.gathered += 1
                promoted.close()


@on("ended", RULE)
def ended(event: Op, audit: Recorder) -> None:
    """Noise in float64 on logits, for an argmax: integers and bools are no float64."""
    for tensor in event.inputs:
        for promoted in open_promotions(tensor, audit, torch.float64):
            if promoted.row.asked:
                promoted.close(settled=False)


@on("scalar", RULE)
def reduced(event: Op, audit: Recorder) -> None:
    """A loss is one number: of half operands it is best in float32."""
    for promoted in open_promotions(event.out, audit, torch.float64):
        promoted.row.reduced = True


def _was_made_so(node: Node) -> bool:
    """Whether somebody asked for its dtype: it came neither from NumPy's data, nor from a promotion or its results."""
    birth = node.birth
    promoted = isinstance(birth.cause, Promoted) or any(isinstance(debt, Promoted) and debt.open for debt in node.debts)
    return not promoted and (birth.op != "tensor" or "dtype" in birth.site.written)


@on("end", RULE)
def judge(audit: Recorder) -> None:
    for row in rows(audit):
        if row.creeps:
            wider = row.pair[0] in HALF and (row.autocast or row.reduced)
            narrow = torch.float32 if wider else row.pair[0]  # as the model has it
            facts = _creep(row.nodes, row.pair, row.site, row.code, narrow)
            born = row.nodes[0].birth.site if row.nodes else row.site
            off, at_birth = audit.lineage.off.get(born.key), True
            if off and not row.off:  # a difference of times: what it is computed from needs the digits
                cast, at_birth = f".to(torch.{name_of(like(row.pair[1], narrow))})", False
                facts["advice"] = (
                    f"cast where it is used: `{operand(row.code) or 'the float64 operand'}{cast}`; float32"
                )
                facts["advice"] += f" is off by up to {off:.3g} at line {born.line}"
            elif row.off:
                facts["advice"] += f"; float32 is off by up to {row.off:.3g} there: subtract an offset before"
            elif not row.harms and row.asked:
                facts["advice"] += ", unless the digits of float64 are meant there"
            tell(RULE, row, audit, at_birth, **facts)


@explains(Turn.FLOAT64)
def refused(it: Refused) -> bool:
    """float64 that is not what the model is in."""
    if torch.float64 not in it.floats or len(it.floats) < 2 or it.models is torch.float64:
        return False
    nodes = tuple(o.node for o in it.odd if o.node is not None and o.dtype is torch.float64)
    narrow = it.models or min(it.floats, key=lambda dtype: dtype.itemsize)
    facts = {**_creep(nodes, (narrow, torch.float64), it.event.site), "how": "was refused: it mixes"}
    doubles = [o for o in it.odd if o.dtype is torch.float64]
    kept = [o for o in doubles if o.owned or (o.node is not None and o.node.named)]  # by a module: no argument is wrong
    odd = sorted(it.odd, key=lambda o: o.node is None or o.dtype is not torch.float64)  # the first one's line is told
    return it.tell(RULE, odd, **facts, size="".join(f"; {o}" for o in kept))


def _creep(
    nodes: tuple[Node, ...], pair: tuple[torch.dtype, torch.dtype], site: Site, code: str = "",
    narrow: torch.dtype | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The facts of DG101 at a line; `code` is what is float64 there where it was not seen being born.

    `narrow` is what to convert to.
    """
    birth = nodes[0].birth if nodes else None
    birth = birth and (birth.conversion or birth)
    other, double = pair
    narrow = narrow or other
    narrow = narrow if narrow.is_floating_point or narrow.is_complex else torch.float32
    cast, where = f".to(torch.{name_of(like(double, narrow))})", "where the float64 is born"
    if birth is None or birth.op == FIRST:
        made, where = operand(code), "the float64 where it comes from, or here"  # it is older than the audit
        advice = f"`{made}{cast}`" if made else f"`{cast}` on the float64 operand, in the data set if it is data"
    elif birth.named:
        advice = f"`{birth.op.partition(' ')[2].strip('`')}{cast}`"
    elif loop := birth.site.loop:  # what it draws is born there, which is no tensor
        whole = loop.isidentifier() and not re.search(rf"\b{loop}\[", site.source)  # not a dict that is drawn
        how = f"`{loop} = {loop}{cast}`" if whole else f"`{cast}` on what is float64 of `{loop}`"
        advice = f"in the data set, or {how} at the top of the loop"
    else:
        made = operand(uncast(birth.site.expression))
        there = f" in place of `.{birth.site.calls}()`" if not made and birth.op.startswith(CONVERTED) else ""
        advice = f"`{made}{cast}`{there}"
    if others := _others(nodes, birth):
        advice += f"; float64 comes from {' and '.join(others[:_OTHERS])}, too"
    advice = f"convert {where}: {advice}"
    return {"how": "mixes", "double": name_of(double), "other": name_of(other), "advice": advice}


def _others(nodes: tuple[Node, ...], birth: Node | None) -> list[str]:
    """What else is float64 of its own: a change of one alone changes nothing."""
    sources = [one for node in nodes for one in node.sources() if one.op != FIRST and not _same_line(one, birth)]
    return list(dict.fromkeys(f"`{one.site.expression or one.op}` at {one.site}" for one in sources))


def _same_line(node: Node, other: Node | None) -> bool:
    return other is not None and node.site.key == other.site.key
