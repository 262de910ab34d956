"""DG121 count-in-bool."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._engine.watch.lineage import Debt
from .._kit import LARGEST, Op, Recorder, Rule, Severity, Suspect, on, readable

RULE = Rule(
    "DG121",
    "count-in-bool",
    Severity.WARNING,
    summary="A sum of bool tensors counts no further than 1.",
    says="`{what}` adds bool tensors: {both} of {count} values are True in both, and their sum is True, a count of 1",
    fix="count in integers: make the total with `dtype=torch.int64`, or `.int()` on what is added",
    why=(
        "`+` of two bool tensors is a logical or. A total that is made like a mask (`torch.zeros_like(mask)`) has the "
        "dtype of the mask, so votes that are added to it are 0 or 1, and their share of all is too small."
    ),
    sources=("https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",),
)


@dataclass(eq=False)
class Counted(Debt):
    """A sum of bool tensors: a count, if it is divided by how many there are, and else a mask."""

    suspect: Suspect | None = None
    both: int = 0


@on("before", RULE, ops=["add", "add_"])
def adds(args: Any, audit: Recorder) -> Any:
    """How many values are True in both, before the first is written to."""
    one, other = args[:2]
    if not isinstance(other, Tensor) or one.dtype is not torch.bool or other.dtype is not torch.bool:
        return None
    return int((one & other).sum()) if readable(one, other) and 0 < one.numel() <= LARGEST else None


@on("after", RULE, ops=["add", "add_"])
def added(event: Op, audit: Recorder) -> None:
    both = next((one for one in event.kept or () if type(one) is int), 0)
    node = audit.lineage.get(event.out) if both else None
    if node is not None:
        facts = {"what": event.site.expression or event.name, "both": both, "count": event.out.numel()}
        node.owes((Counted(suspect=audit.suspect(RULE, event, event.inputs[1], "add", **facts)),))


@on("after", RULE, ops=["div", "div_"])
def divided(event: Op, audit: Recorder) -> None:
    if event.inputs[0].dtype is torch.bool and event.args[1] != 1:
        node = audit.lineage.get(event.inputs[0])
        for debt in () if node is None else node.debts:
            if isinstance(debt, Counted) and debt.suspect is not None and not debt.settled:
                debt.settled = True
                debt.suspect.find(audit)
