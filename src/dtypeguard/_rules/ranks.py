"""What ranks bring to a collective, whether it agrees, and how they hear of each other.

Every rank writes what it brings into a store that all of them see, and reads what the others brought. Nothing here is a
collective, and nothing waits long: ranks that do not audit are known by their silence, and a rank that comes late finds
what the others wrote. What could not be compared in time is compared at the next occasion.
"""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._base.dtypes import name_of
from .._watch.rule import Severity
from .._watch.sites import Site

SYNC, ASYNC = 10.0, 1.0  # seconds to wait at a collective that blocks, at one that does not
GRACE = 2.0  # seconds, once in an audit, for ranks that show no sign of an audit
SIGN = "sign"  # the key that says so
_PATIENCE = 30.0  # seconds of waiting in vain, in one group
_SLOTS, _PENDING = 64, 16  # of each rank in the store, written again and again; calls to compare later
_SHOWN, _MOST = 3, 64  # tensors of a list: in a message, compared one by one

Part = list[Any]  # dtype, elements, bytes: as it comes out of JSON again
_Args = tuple[Any, ...]


@dataclass(slots=True)
class Brought:
    """What one rank brings to a collective.

    Either all ranks bring the same (`like`), or what one gives another takes: `gives` and `takes` have one part for
    each rank, one part that holds for all of them, or nothing where the rank has no say.
    """

    op: str
    shown: str
    like: list[list[Any]] | None = None  # dtype, elements, bytes, sizes of the axes longer than 1
    gives: list[Part] | None = None
    takes: list[Part] | None = None


# ---------------------------------------------------------------- what a call brings


def _part(tensor: Tensor, divisor: int = 1) -> Part:
    elements = tensor.numel() // divisor
    return [name_of(tensor.dtype), elements, elements * tensor.element_size()]


def _text(tensors: list[Tensor]) -> str:
    texts = [f"{name_of(t.dtype)}[{', '.join(map(str, t.shape))}]" for t in tensors[:_SHOWN]]
    return ", ".join(texts) + f" and {len(tensors) - _SHOWN} more" * (len(tensors) > _SHOWN)


def _flat(value: Any) -> list[Tensor]:
    """Tensors, lists of them and lists of such lists."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, list | tuple) else []


def like(op: str, _out: Any, given: Any, _size: int) -> Brought:
    tensors = _flat(given)
    rows: list[list[Any]] = [[*_part(t), [n for n in t.shape if n != 1]] for t in tensors[:_MOST]]
    if len(tensors) > _MOST:
        rest = tensors[_MOST:]
        rows.append([f"{len(rest)} more", sum(t.numel() for t in rest), sum(t.nbytes for t in rest), []])
    return Brought(op, _text(tensors), like=rows)


def all_gather(op: str, out: Any, given: Any, size: int) -> Brought:
    given, outs = _flat(given), _flat(out)
    takes = [_part(outs[0], size)] if len(outs) == 1 else [_part(t) for t in outs]
    return Brought(op, _text(given), gives=[_part(given[0])], takes=takes or [_part(given[0])])


def reduce_scatter(op: str, out: Any, given: Any, size: int) -> Brought:
    given, outs = _flat(given), _flat(out)
    gives = [_part(given[0], size)] if len(given) == 1 else [_part(t) for t in given]
    return Brought(op, _text(given), gives=gives, takes=[_part(outs[0])] if outs else gives)


def gather(op: str, out: Any, given: Any, _size: int) -> Brought:
    outs = _flat(out)  # the root's
    return Brought(op, _text(_flat(given)), gives=[_part(_flat(given)[0])], takes=[_part(t) for t in outs] or None)


def scatter(op: str, out: Any, given: Any, _size: int) -> Brought:
    gives = [_part(t) for t in _flat(given)]  # the root's
    return Brought(op, _text(_flat(out)), gives=gives or None, takes=[_part(_flat(out)[0])])


def all_to_all(op: str, out: Any, given: Any, _size: int) -> Brought:
    return Brought(op, _text(given), gives=[_part(t) for t in given], takes=[_part(t) for t in out])


def _rows(tensor: Tensor, sizes: Any, size: int) -> list[Part]:
    """One tensor that is cut along its first axis."""
    if not sizes:
        return [_part(tensor, size)]
    row = math.prod(tensor.shape[1:])
    return [[name_of(tensor.dtype), row * int(n), row * int(n) * tensor.element_size()] for n in sizes]


def all_to_all_single(op: str, out: Any, given: Any, size: int, out_sizes: Any = (), sizes: Any = ()) -> Brought:
    gives = _rows(given, sizes, size)
    takes = gives if out is None and not out_sizes else _rows(given if out is None else out, out_sizes, size)
    return Brought(op, _text([given]), gives=gives, takes=takes)


# ---------------------------------------------------------------- what ranks disagree on


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
            gives, takes = _for(one.gives, ranks.index(taker)), _for(other.takes, ranks.index(giver))
            if gives is not None and takes is not None and gives[:2] != takes[:2]:
                pair = f"rank {giver} sends {gives[0]}[{gives[1]}], of which rank {taker} takes {takes[0]}[{takes[1]}]"
                whole = len(one.gives or ()) == 1 and len(set(shown.values())) > 1
                return _listed(shown) if whole else pair, Severity.ERROR, gives[2] != takes[2]
    return None


def _for(parts: list[Part] | None, place: int) -> Part | None:
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
    ranks: dict[str, list[int]] = {}
    for rank in sorted(texts):
        ranks.setdefault(texts[rank], []).append(rank)
    plural = {"has": "have", "calls": "call"}[verb]
    return ", ".join(
        f"rank{'s' * (len(who) > 1)} {', '.join(map(str, who))} {plural if len(who) > 1 else verb} {text or 'nothing'}"
        for text, who in ranks.items()
    )


# ---------------------------------------------------------------- how ranks hear of each other


@dataclass(slots=True)
class Call:
    """A collective of this rank that was not yet compared with all others."""

    number: int
    brought: Brought
    site: Site
    module: str | None


class Meeting:
    """The ranks of one group, as this one hears of them through a store.

    A rank writes to its own keys only: `sign/<rank>` while it audits at all, `<group>/at/<rank>` with the number of
    collectives that the group had seen when this rank's audit met it, and its slots. Ranks whose audits met the group
    at different times have no common numbers, and are not compared.
    """

    def __init__(self, store: Callable[[], Any], name: str, rank: int, ranks: list[int], base: int) -> None:
        self._store, self._name, self._rank, self._ranks, self._base = store, name, rank, ranks, base
        self._count, self._lock, self._patience = 0, threading.Lock(), _PATIENCE
        self._known: set[str] = set()  # keys that exist
        self._pending: deque[Call] = deque(maxlen=_PENDING)
        self._kept: set[int] = set()  # slots that ranks may come to read which did not hear of it yet
        self._alone = False  # some ranks show no sign of an audit
        self.dead = False  # nothing can be compared here
        store().set(f"{SIGN}/{rank}", "1")
        store().set(f"{name}/at/{rank}", str(base))

    def bring(self, brought: Brought, site: Site, module: str | None, limit: float) -> Iterator[tuple[Call, Any]]:
        """Tell what this rank brings; gives the calls, this one or earlier ones, on which ranks disagree."""
        with self._lock:
            call = Call(self._count, brought, site, module)
            self._count += 1
            fields = [brought.op, brought.shown, brought.like, brought.gives, brought.takes]
            self._store().set(self._slot(self._rank, call.number), json.dumps([call.number, *fields]))
        if self._alone and self._count & call.number:  # not a power of two
            return
        yield from self.catch_up()
        said, lost = self._wait(call, min(limit, self._patience))
        yield from self._judge(call, said, lost)

    def _wait(self, call: Call, limit: float) -> tuple[dict[int, Brought], bool]:
        began, pause = time.monotonic(), 0.0005
        while True:
            said, lost = self._said(call)
            if lost or len(said) == len(self._ranks):
                self._alone = False
                return said, lost
            waited = time.monotonic() - began
            if not self._may_come(said, waited) or waited > limit:
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        self._patience -= waited
        if self._alone:
            grace.seconds -= waited
        return said, lost

    def catch_up(self) -> Iterator[tuple[Call, Any]]:
        """Compare what could not be compared before."""
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            yield from self._judge(call, *self._said(call))

    def _judge(self, call: Call, said: dict[int, Brought], lost: bool) -> Iterator[tuple[Call, Any]]:
        verdict = disagreement(said, self._ranks) if len(said) > 1 else None
        if verdict is not None:
            self._kept.add(call.number % _SLOTS)
            yield call, verdict
        elif not lost and len(said) < len(self._ranks):
            self._pending.append(call)

    def close(self) -> None:
        """Leave nothing in the store that a later audit could read."""
        store, slots = self._store(), {*range(min(self._count, _SLOTS))} - self._kept
        keys = f"{SIGN}/{self._rank}", f"{self._name}/at/{self._rank}", *(self._slot(self._rank, n) for n in slots)
        for key in keys:
            store.set(key, "")

    def _slot(self, rank: int, number: int) -> str:
        return f"{self._name}/{self._base}/{number % _SLOTS}/{rank}"

    def _said(self, call: Call) -> tuple[dict[int, Brought], bool]:
        """What ranks bring, and whether some wrote over it since."""
        said, lost = {self._rank: call.brought}, False
        others = {self._slot(rank, call.number): rank for rank in self._ranks if rank != self._rank}
        for key, value in self._values(list(others)).items():
            row: list[Any] = json.loads(value) if value else [-1]
            if row[0] == call.number:
                said[others[key]] = Brought(*row[1:])
            lost = lost or row[0] > call.number
        return said, lost

    def _may_come(self, said: dict[int, Brought], waited: float) -> bool:
        """Whether the ranks that said nothing yet will speak, as far as can be known."""
        silent = [rank for rank in self._ranks if rank not in said]
        at = [int(value) for value in self._values([f"{self._name}/at/{rank}" for rank in silent]).values() if value]
        if any(base > self._base for base in at):
            self.dead = True
            return False
        signs = self._values([f"{SIGN}/{rank}" for rank in silent])
        earlier = any(base < self._base for base in at)  # an audit that began before this one, or is just ending
        self._alone = earlier or not all(signs.get(f"{SIGN}/{rank}") for rank in silent)
        return not self._alone or waited < grace.seconds

    def _values(self, keys: list[str]) -> dict[str, str]:
        """Of the keys that exist; asking for others would block."""
        store, new = self._store(), [key for key in keys if key not in self._known]
        if new and store.check(new):
            self._known.update(new)
        elif len(new) > 1:
            self._known.update(key for key in new if store.check([key]))
        there = [key for key in keys if key in self._known]
        values = store.multi_get(there) if there else []
        return {key: value.decode() for key, value in zip(there, values, strict=True)}


@dataclass
class Grace:
    """Seconds left, in this audit, to wait for ranks that may not audit at all."""

    seconds: float = GRACE


grace = Grace()
