"""What ranks bring to a collective, and whether it agrees."""

import json
import math
from typing import Any, NamedTuple

from torch import Tensor

from ..._core.base.ranks import rank_names
from ..._core.contract.containers import tensors_in
from .._kit import Severity, name_of

_SHOWN, _MOST = 3, 64  # tensors of a list: in a message, compared one by one

Part = list[Any]  # dtype, elements, bytes: as it comes out of JSON again


class Collective(NamedTuple):
    """An operation of the dispatcher: what users call it, which way data goes, where its arguments are."""

    op: str
    way: str  # "like": all bring the same; "gather": each gives one part to all; "scatter": each takes one; "all"
    out: int | None
    given: int
    group: int
    sizes: int | None = None  # of what is taken; those of what is given are next to them


class Brought(NamedTuple):
    """What one rank brings to a collective.

    Either all ranks bring the same (`like`), or what one gives another takes: `gives` and `takes` have one part for
    each rank, one part that holds for all of them, or nothing where the rank has no say.
    """

    op: str
    shown: str
    like: list[list[Any]] | None = None  # dtype, elements, bytes, sizes of the axes longer than 1
    gives: list[Part] | None = None
    takes: list[Part] | None = None


def brought(way: str, op: str, out: Any, given: Any, size: int, out_sizes: Any = (), sizes: Any = ()) -> Brought:
    """What a call brings; `out` is None where nobody knows it yet, and then like what is given."""
    if way == "like":
        return _like(op, list(tensors_in(given)))
    gives = takes = _list_parts(given, 1 if way == "gather" else size, sizes)
    if out is not None or out_sizes:
        takes = _list_parts(given if out is None else out, 1 if way == "scatter" else size, out_sizes)
    return Brought(op, _tensors_text(list(tensors_in(out if op == "scatter" else given))), gives=gives, takes=takes)


def _like(op: str, tensors: list[Tensor]) -> Brought:
    rows: list[list[Any]] = [[*_part(t), [n for n in t.shape if n != 1]] for t in tensors[:_MOST]]
    if len(tensors) > _MOST:
        rest = tensors[_MOST:]
        rows.append([f"{len(rest)} more", sum(t.numel() for t in rest), sum(t.nbytes for t in rest), []])
    return Brought(op, _tensors_text(tensors), like=rows)


def _list_parts(value: Any, size: int, sizes: Any) -> list[Part] | None:
    """Those of a list of tensors, or of one that is cut along its first axis; of a root's, where it is one."""
    tensors = list(tensors_in(value))
    if sizes:
        row = math.prod(tensors[0].shape[1:])
        counts = [row * int(n) for n in sizes]
        return [[name_of(tensors[0].dtype), count, count * tensors[0].element_size()] for count in counts]
    return [_part(t, size if len(tensors) == 1 else 1) for t in tensors] or None


def _part(tensor: Tensor, divisor: int = 1) -> Part:
    elements = tensor.numel() // divisor
    return [name_of(tensor.dtype), elements, elements * tensor.element_size()]


def _tensors_text(tensors: list[Tensor]) -> str:
    texts = [f"{name_of(t.dtype)}[{', '.join(map(str, t.shape))}]" for t in tensors[:_SHOWN]]
    return ", ".join(texts) + f" and {len(tensors) - _SHOWN} more" * (len(tensors) > _SHOWN)


def disagreement(said: dict[int, Brought], ranks: list[int]) -> tuple[str, Severity, bool] | None:
    """What ranks have, how bad it is, and whether it hangs or aborts, if they do not agree."""
    if len({one.op for one in said.values()}) > 1:
        text = {rank: f"{one.op} of {one.shown}" if one.shown else one.op for rank, one in said.items()}
        return _listed(text, "calls"), Severity.ERROR, True
    shown = {rank: one.shown for rank, one in said.items()}
    likes = {json.dumps([row[:3] for row in one.like]) for one in said.values() if one.like is not None}
    if likes:
        if len(likes) > 1:
            hangs = len({tuple(row[2] for row in one.like or ()) for one in said.values()}) > 1
            return _listed(shown), Severity.ERROR, hangs
        if _transposed([one.like or [] for one in said.values()]):
            return _listed(shown), Severity.WARNING, False
        return None
    for giver, one in said.items():
        for taker, other in said.items():
            gives, takes = _part_at(one.gives, ranks.index(taker)), _part_at(other.takes, ranks.index(giver))
            if gives is not None and takes is not None and gives[:2] != takes[:2]:
                pair = f"rank {giver} sends {gives[0]}[{gives[1]}], of which rank {taker} takes {takes[0]}[{takes[1]}]"
                whole = len(one.gives or ()) == 1 and len(set(shown.values())) > 1
                return _listed(shown) if whole else pair, Severity.ERROR, gives[2] != takes[2]
    return None


def _part_at(parts: list[Part] | None, place: int) -> Part | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts[place] if place < len(parts) else None


def _transposed(likes: list[list[list[Any]]]) -> bool:
    """As many elements in another order: [2, 3] and [3, 2], not [6] and [2, 3]."""
    return any(
        len({tuple(row[3]) for row in rows}) > 1 and all(len(row[3]) > 1 for row in rows)
        for rows in zip(*likes, strict=True)
    )


def _listed(texts: dict[int, str], verb: str = "has") -> str:
    """rank 0 has float32[3], ranks 1, 2 have float16[3]"""
    holders: dict[str, list[int]] = {}
    for rank in sorted(texts):
        holders.setdefault(texts[rank], []).append(rank)
    verbs = verb, {"has": "have", "calls": "call"}[verb]
    return ", ".join(f"{rank_names(who)} {verbs[len(who) > 1]} {text or 'nothing'}" for text, who in holders.items())
