"""DG109, of masks: bits that are flipped where a mask is inverted, and votes that are added in bool."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._kit import LARGEST, Node, Op, Recorder, Suspect, name_of, on, readable, some
from .dg109_integer_wraps import RULE as WRAPS
from .dg109_integer_wraps import TARGET, wrapping

_COPIES = frozenset("bitwise_not _to_copy cat stack index repeat clone".split())
# What takes it for a mask: bits that were flipped on purpose go to operations on bits.
_AS_MASK = frozenset("_to_copy mul mul_ sum mean any all ne logical_not logical_and logical_or logical_xor".split())
_BY_INDEX = frozenset(["index", "index_put", "index_put_"])


@dataclass
class Inverted:
    """A mask of 0 and 1 of which the bits were flipped."""

    suspect: Suspect
    said: bool = False


@on("after", WRAPS, ops=["bitwise_not"])
def mask_inverted(event: Op, audit: Recorder) -> None:
    source, node = event.inputs[0], audit.lineage.get(event.out)
    if source.dtype is torch.bool or node is None or not event.readable or not source.numel():
        return
    least, most = some(source).aminmax()
    if int(least) < 0 or int(most) != 1:  # 0 and 255 are inverted as they should be
        return
    zero = torch.iinfo(source.dtype).max if source.dtype is torch.uint8 else -1
    detail = f"of 0 and 1 in {name_of(source.dtype)} it makes {zero} and {zero - 1}, which both are true"
    node.cause = Inverted(wrapping(event, detail, "invert a bool mask: `~mask.bool()`", audit))
    audit.integers.add(source.dtype)


@on("integer", WRAPS)
def mask_used(event: Op, audit: Recorder) -> None:
    """Only what takes it for a mask shows that it was meant as one."""
    name, out = event.name, event.out
    if name in _AS_MASK and not (name == "_to_copy" and out.dtype in audit.integers):
        found = event.inputs
    elif name in _BY_INDEX:
        found = [index for index in event.args[1] if index is not None and _is_mask_of(event.args[0], index)]
    else:
        return
    for tensor in found:
        inverted = _inversion_behind(audit.lineage.get(tensor))
        if inverted is not None and not inverted.said:
            inverted.said = True
            inverted.suspect.find(audit)


def _is_mask_of(tensor: Tensor, index: Tensor) -> bool:
    return index.dtype is torch.uint8 or (index.numel() > 2 and index.shape == tensor.shape[: index.ndim])


def _inversion_behind(node: Node | None) -> Inverted | None:
    while node is not None and not isinstance(node.cause, Inverted):
        node = node.parents[0] if node.parents and node.op in _COPIES else None
    return None if node is None else node.cause


# ---------------------------------------------------------------- votes

_AGAIN = 3  # times that a line adds, as in a loop
_COMPARED = "ge gt eq ne le lt".split()
_ORDERS = "argmax argmin topk sort argsort max".split()
_SUMS = ("add", "add_")


@dataclass
class Votes:
    """Sums in bool: a mask, unless they are compared as numbers."""

    suspect: Suspect
    times: int = 0  # that some of them were of True and True
    said: bool = False


@dataclass
class Elections:
    lines: dict[Any, Votes] = field(default_factory=dict)


@on("before", WRAPS, ops=["add_"])
def votes_before(args: Any, audit: Recorder) -> Any:
    target, other = args[:2]
    bools = isinstance(other, Tensor) and target.dtype is other.dtype is torch.bool
    return target & other if bools and readable(target) and 1 < target.numel() <= LARGEST else None


@on("after", WRAPS, ops=["add_"])
def votes_added(event: Op, audit: Recorder) -> None:
    """`votes += hit`; that of two masks is the union of them."""
    for both in event.kept or ():
        if isinstance(both, Tensor) and event.out.dtype is torch.bool:
            _count(event, both, f"{TARGET} `dtype=torch.int64`; of masks write `|=`", audit)


@on("after", WRAPS, ops=["add"])
def votes_summed(event: Op, audit: Recorder) -> None:
    """`a + b`."""
    out = event.out
    if out.dtype is torch.bool and event.readable and 1 < out.numel() <= LARGEST and len(event.inputs) == 2:
        both = event.inputs[0] & event.inputs[1]
        _count(event, both, "add integers: `.int()` on the first; of masks write `|`", audit)


def _count(event: Op, both: Tensor, advice: str, audit: Recorder) -> None:
    node, known, times = audit.lineage.get(event.out), audit.state(Elections).lines, int(both.sum())
    if node is None:
        return
    detail = f"{times} of {both.numel()} sums are of True and True, which is True in bool"
    if event.site not in known:
        known[event.site] = Votes(wrapping(event, detail, advice, audit))
    votes = node.cause = known[event.site]
    votes.times += times > 0
    if times:
        votes.suspect.facts["detail"] = detail


@on("after", WRAPS, ops=[*_COMPARED, *_ORDERS])
def votes_compared(event: Op, audit: Recorder) -> None:
    """With another number than 0 and 1, or with each other."""
    if not audit.state(Elections).lines:
        return
    number = event.args[1] if event.name in _COMPARED else None
    least = _AGAIN if number is None else 1
    if isinstance(number, Tensor) or (number is not None and not number > 1):
        return
    for votes in _votes_behind(audit.lineage.get(event.inputs[0])):
        if votes.times >= least and not votes.said:
            votes.said = True
            votes.suspect.find(audit)


@on("after", WRAPS, ops=["div", "div_"])
def votes_divided(event: Op, audit: Recorder) -> None:
    """By how many there are: their sum is a count."""
    if audit.state(Elections).lines and event.inputs[0].dtype is torch.bool and event.args[1] != 1:
        for votes in _votes_behind(audit.lineage.get(event.inputs[0])):
            if votes.times and not votes.said:
                votes.said = True
                votes.suspect.find(audit)


def _votes_behind(node: Node | None) -> Iterator[Votes]:
    """The sums in bool among what numbers were added up from."""
    if node is not None:
        if isinstance(node.cause, Votes):
            yield node.cause
        for parent in node.parents if node.op in _SUMS or node.op in _COPIES else ():
            yield from _votes_behind(parent)
