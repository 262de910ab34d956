"""What comes into an operation: how wrong it is already, and whether it comes from the last round of a loop."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF
from ..ops import ACCUMULATES, Cancels, Operator
from .memory import ShadowStorage, measure
from .rows import Cause, Row

SINGLE_ERROR = 2.0**-13  # what is larger is no rounding of float32
_WHOLE = 4.0  # what an error in whole numbers counts for, beside one that was rounded anew
_ROUND = 6  # operations from one round of an accumulation to the next, with a cast to the state and one back
_NARROWS = frozenset(["copy_", "_to_copy"])

Given = dict[int, tuple[Tensor, ShadowStorage | None]]  # by id: inputs that can have a shadow, and it


@dataclass(slots=True)
class Incoming:
    """An input: its error, and where it was computed."""

    tensor: Tensor
    error: float  # as a share of what it was computed from
    held: ShadowStorage
    row: Row | None
    cancellation: float

    @classmethod
    def of(cls, tensor: Tensor, held: ShadowStorage) -> "Incoming":
        """With its error as it was measured last."""
        return cls(tensor, held.error, held, held.row, held.cancellation)

    def comes_of(self, total: Row) -> bool:
        """Whether it comes from the last round of a total, and its error too: `state += rate * (1 - state)`."""
        row = self.row
        return row is not None and loops(row, total) and row.comes_from(total)


def all_incoming(given: Given, targets: list[Incoming]) -> list[Incoming]:
    """What is written to, and what comes in beside it."""
    written = {id(one.tensor) for one in targets}
    return targets + [
        Incoming.of(tensor, held) for key, (tensor, held) in given.items() if held is not None and key not in written
    ]


def look_at(
    incoming: list[Incoming], beside: Iterable[tuple[Tensor, ShadowStorage]] = (), reader: Row | None = None
) -> list[Row]:
    """Measure inputs anew, and others at the same time; the rows that were spoilt since they were measured."""
    spoilt = []
    measure([*((one.tensor, one.held) for one in incoming), *beside])
    for one in incoming:
        held, error = one.held, one.held.error_of(one.tensor)
        held.error = one.error = error.relative(held.floor, of_a_row=True) / held.cancellation
        held.whole = error.relative(held.floor) / held.cancellation
        if one.row is not None:
            one.row.ends(one.tensor, held.like)
            if one.row is not reader and one.row.grew(one.error, error.spread):
                one.row.shows(one.tensor, held.like(one.tensor))
                spoilt.append(one.row)
    return spoilt


def wrong(incoming: Iterable[Incoming], error: float = 1.0) -> bool:
    """Whether what comes in is so wrong, by itself, that it makes at least half of an error."""
    return any(one.held.error_of(one.tensor).relative() > error / 2 for one in incoming)


def suspicion(one: Incoming) -> float:
    """How likely an input is where an error comes from: whole numbers that are others have a small one."""
    culprit = None if one.row is None else next(one.row.culprits(), None)
    return one.error * (_WHOLE if culprit is not None and culprit.cause is Cause.COLLIDED else 1.0)


def carried(op: Operator, row: Row, incoming: list[Incoming]) -> dict[int, float]:
    """What inputs have of earlier differences, by the id of each; a total in half precision takes none over.

    It rounds by itself what comes with more digits than it keeps.
    """
    totals = op.name in ACCUMULATES and row.dtype in HALF
    return {
        id(one.tensor): 1.0 if totals and one.error * one.cancellation < row.half_ulp else _narrowed(one, row)
        for one in incoming
    }


def _narrowed(one: Incoming, row: Row) -> float:
    """What an earlier difference excuses, in roundings of a narrower dtype."""
    if row.dtype not in HALF or one.tensor.dtype in HALF or one.tensor.dtype is row.dtype:
        return one.cancellation
    error = max(one.error, torch.finfo(one.tensor.dtype).eps)
    return min(one.cancellation, max(1.0, one.cancellation * error / row.half_ulp))


def leads_in(source: Incoming | None, suspects: list[Incoming], row: Row) -> Row | None:
    """The row that an error comes from; where it is of this one's last round, what else comes in and was spoilt since.

    What a model computes leads to its parameters, and these lead to all that it has computed in training.
    """
    if source is None or source.row is None or not source.row.comes_from(row):
        return None if source is None else source.row
    for one in sorted(suspects, key=attrgetter("error"), reverse=True):
        if one.row is not None and not loops(one.row, row):
            since = takewhile(lambda step: step is not row, one.row.chain())
            if any(step.cause for step in since):
                return one.row
    return None


def loops(row: Row | None, to: Row) -> bool:
    """Whether a row comes soon after another one of an accumulation."""
    for _ in range(_ROUND):
        if row is to:
            return True
        row = None if row is None else row.previous
    return False


def builds_up(op: Operator, row: Row, incoming: list[Incoming]) -> bool:
    """Whether rounding builds up from one round of a loop to the next, so that the line is judged by what is new.

    A total in half precision, a state that is rounded to it, or a wide one and a factor that was.
    """
    half, outside = row.dtype in HALF, [one for one in incoming if not loops(one.row, row)]
    if len(outside) == len(incoming):
        return False
    if half:
        return op.name in ACCUMULATES or op.name in _NARROWS
    return op.cancels in (Cancels.PRODUCT, Cancels.NUMERATOR) and any(one.error > SINGLE_ERROR for one in outside)
