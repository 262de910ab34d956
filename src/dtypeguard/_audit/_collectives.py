"""DG7, collectives: what each rank is about to send, compared before the bytes meet.

Every rank writes what it brings to a collective into the store of the group, and reads what the others brought. Nothing
here is a collective, and nothing waits long: ranks that do not audit are known by their silence, and a rank that comes
late finds what the others wrote. What could not be compared in time is compared at the next occasion.
"""

import contextlib
import functools
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

from .._dtypes import name_of
from .._rules import Severity
from ._events import on
from ._recorder import Recorder
from ._sites import Site

_SLOTS, _PENDING = 64, 16  # of each rank in the store, written again and again; calls to compare later
_SYNC, _ASYNC = 10.0, 1.0  # seconds to wait at a collective that blocks, at one that does not
_GRACE = 2.0  # seconds, once in an audit, for ranks that show no sign of an audit
_PATIENCE = 30.0  # seconds of waiting in vain, in one group
_SHOWN, _MOST = 3, 64  # tensors of a list: in a message, compared one by one
_log = logging.getLogger("dtypeguard")

Part = tuple[str, int, int]  # dtype, elements, bytes
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
    return name_of(tensor.dtype), elements, elements * tensor.element_size()


def _text(tensors: list[Tensor]) -> str:
    texts = [f"{name_of(t.dtype)}[{', '.join(map(str, t.shape))}]" for t in tensors[:_SHOWN]]
    return ", ".join(texts) + f" and {len(tensors) - _SHOWN} more" * (len(tensors) > _SHOWN)


def _flat(value: Any) -> list[Tensor]:
    """Tensors, lists of them and lists of such lists."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, list | tuple) else []


def _like(op: str, _out: Any, given: Any, _size: int) -> Brought:
    tensors = _flat(given)
    rows: list[list[Any]] = [[*_part(t), [n for n in t.shape if n != 1]] for t in tensors[:_MOST]]
    if len(tensors) > _MOST:
        rest = tensors[_MOST:]
        rows.append([f"{len(rest)} more", sum(t.numel() for t in rest), sum(t.nbytes for t in rest), []])
    return Brought(op, _text(tensors), like=rows)


def _all_gather(op: str, out: Any, given: Any, size: int) -> Brought:
    given, outs = _flat(given), _flat(out)
    takes = [_part(outs[0], size)] if len(outs) == 1 else [_part(t) for t in outs]
    return Brought(op, _text(given), gives=[_part(given[0])], takes=takes or [_part(given[0])])


def _reduce_scatter(op: str, out: Any, given: Any, size: int) -> Brought:
    given, outs = _flat(given), _flat(out)
    gives = [_part(given[0], size)] if len(given) == 1 else [_part(t) for t in given]
    return Brought(op, _text(given), gives=gives, takes=[_part(outs[0])] if outs else gives)


def _gather(op: str, out: Any, given: Any, _size: int) -> Brought:
    outs = _flat(out)  # the root's
    return Brought(op, _text(_flat(given)), gives=[_part(_flat(given)[0])], takes=[_part(t) for t in outs] or None)


def _scatter(op: str, out: Any, given: Any, _size: int) -> Brought:
    gives = [_part(t) for t in _flat(given)]  # the root's
    return Brought(op, _text(_flat(out)), gives=gives or None, takes=[_part(_flat(out)[0])])


def _all_to_all(op: str, out: Any, given: Any, _size: int) -> Brought:
    return Brought(op, _text(given), gives=[_part(t) for t in given], takes=[_part(t) for t in out])


def _rows(tensor: Tensor, sizes: Any, size: int) -> list[Part]:
    """One tensor that is cut along its first axis."""
    if not sizes:
        return [_part(tensor, size)]
    row = math.prod(tensor.shape[1:])
    return [(name_of(tensor.dtype), row * int(n), row * int(n) * tensor.element_size()) for n in sizes]


def _all_to_all_single(op: str, out: Any, given: Any, size: int, out_sizes: Any = (), sizes: Any = ()) -> Brought:
    gives = _rows(given, sizes, size)
    takes = gives if out is None and not out_sizes else _rows(given if out is None else out, out_sizes, size)
    return Brought(op, _text([given]), gives=gives, takes=takes)


_Describe = Callable[..., Brought]
# Operations of the dispatcher: what users call them, how they are described, where results, inputs and group are.
_C10D: dict[str, tuple[str, _Describe, int | None, int, int]] = {
    "allreduce_": ("all_reduce", _like, None, 0, 1),
    "allreduce_coalesced_": ("all_reduce_coalesced", _like, None, 0, 1),
    "broadcast_": ("broadcast", _like, None, 0, 1),
    "reduce_": ("reduce", _like, None, 0, 1),
    "allgather_": ("all_gather", _all_gather, 0, 1, 2),
    "_allgather_base_": ("all_gather", _all_gather, 0, 1, 2),
    "allgather_coalesced_": ("all_gather_coalesced", _like, None, 1, 2),
    "allgather_into_tensor_coalesced_": ("all_gather_coalesced", _like, None, 1, 2),
    "reduce_scatter_": ("reduce_scatter", _reduce_scatter, 0, 1, 2),
    "_reduce_scatter_base_": ("reduce_scatter", _reduce_scatter, 0, 1, 2),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_coalesced", _like, None, 1, 2),
    "gather_": ("gather", _gather, 0, 1, 2),
    "scatter_": ("scatter", _scatter, 0, 1, 2),
    "alltoall_": ("all_to_all", _all_to_all, 0, 1, 2),
    "alltoall_base_": ("all_to_all_single", _all_to_all_single, 0, 1, 2),
    # Functional collectives: the group, by name, is the last argument.
    "all_reduce": ("all_reduce", _like, None, 0, -1),
    "all_reduce_coalesced": ("all_reduce_coalesced", _like, None, 0, -1),
    "broadcast": ("broadcast", _like, None, 0, -1),
    "all_gather_into_tensor": ("all_gather", _all_gather, None, 0, -1),
    "all_gather_into_tensor_out": ("all_gather", _all_gather, None, 0, -1),
    "all_gather_into_tensor_coalesced": ("all_gather_coalesced", _like, None, 0, -1),
    "reduce_scatter_tensor": ("reduce_scatter", _reduce_scatter, None, 0, -1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_coalesced", _like, None, 0, -1),
    "all_to_all_single": ("all_to_all_single", _all_to_all_single, None, 0, -1),
}
# Methods of a backend that a program calls itself, past the dispatcher: whether results come before inputs.
_METHODS: dict[str, tuple[str, bool]] = {
    "allreduce": ("allreduce_", False),
    "allreduce_coalesced": ("allreduce_coalesced_", False),
    "broadcast": ("broadcast_", False),
    "reduce": ("reduce_", False),
    "allgather": ("allgather_", True),
    "_allgather_base": ("_allgather_base_", True),
    "allgather_coalesced": ("allgather_coalesced_", True),
    "reduce_scatter": ("reduce_scatter_", True),
    "_reduce_scatter_base": ("_reduce_scatter_base_", True),
    "gather": ("gather_", True),
    "scatter": ("scatter_", True),
    "alltoall": ("alltoall_", True),
    "alltoall_base": ("alltoall_base_", True),
}


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
                return _listed(shown) if len(set(shown.values())) > 1 else pair, Severity.ERROR, gives[2] != takes[2]
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
        self._alone = False  # some ranks show no sign of an audit
        self.dead = False  # nothing can be compared here
        store().set(f"{_SIGN}/{rank}", "1")
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
            _grace.seconds -= waited
        return said, lost

    def catch_up(self) -> Iterator[tuple[Call, Any]]:
        """Compare what could not be compared before."""
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            yield from self._judge(call, *self._said(call))

    def _judge(self, call: Call, said: dict[int, Brought], lost: bool) -> Iterator[tuple[Call, Any]]:
        verdict = disagreement(said, self._ranks) if len(said) > 1 else None
        if verdict is not None:
            yield call, verdict
        elif not lost and len(said) < len(self._ranks):
            self._pending.append(call)

    def close(self) -> None:
        """Leave nothing in the store that a later audit could read."""
        store, slots = self._store(), range(min(self._count, _SLOTS))
        keys = f"{_SIGN}/{self._rank}", f"{self._name}/at/{self._rank}", *(self._slot(self._rank, n) for n in slots)
        for key in keys:
            store.set(key, "")

    def _slot(self, rank: int, number: int) -> str:
        return f"{self._name}/{self._base}/{number % _SLOTS}/{rank}"

    def _said(self, call: Call) -> tuple[dict[int, Brought], bool]:
        """What ranks bring, and whether some wrote over it since."""
        said, lost = {self._rank: call.brought}, False
        others = {self._slot(rank, call.number): rank for rank in self._ranks if rank != self._rank}
        for key, value in self._values(list(others)).items():
            row = json.loads(value) if value else [-1]
            if row[0] == call.number:
                said[others[key]] = Brought(*row[1:])
            lost = lost or row[0] > call.number
        return said, lost

    def _may_come(self, said: dict[int, Brought], waited: float) -> bool:
        """Whether the ranks that said nothing yet will speak, as far as can be known."""
        silent = [rank for rank in self._ranks if rank not in said]
        at = self._values([f"{self._name}/at/{rank}" for rank in silent])
        if any(value not in ("", str(self._base)) for value in at.values()):
            self.dead = True
            return False
        signs = self._values([f"{_SIGN}/{rank}" for rank in silent])
        self._alone = not all(signs.get(f"{_SIGN}/{rank}") for rank in silent)
        return not self._alone or waited < _grace.seconds

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
class _Grace:
    """Seconds left, in this audit, to wait for ranks that may not audit at all."""

    seconds: float = _GRACE


# ---------------------------------------------------------------- audits, groups

_SIGN = "sign"
_lock = threading.Lock()
_audits: list[Recorder] = []  # those that are on; the first one speaks for all
_grace = _Grace()
_groups: dict[str, tuple[ref[Any], Meeting | None]] = {}  # by name, with the store that they were met on
_backends: WeakKeyDictionary[Any, tuple[Any, Meeting | None]] = WeakKeyDictionary()  # that were made in an audit


class _Leave:
    """Takes an audit off again."""

    def __init__(self, audit: Recorder) -> None:
        self._audit = audit

    def remove(self) -> None:
        with _lock:
            _audits.remove(self._audit)
            if _audits:
                return
            meetings = [meeting for _, meeting in (*_groups.values(), *_backends.values()) if meeting is not None]
            _groups.clear()
            _backends.clear()
            _grace.seconds = _GRACE
        for meeting in meetings:
            with contextlib.suppress(Exception):  # the rank that keeps the store may be gone
                meeting.close()
        with contextlib.suppress(Exception):
            _default_store().set(f"{_SIGN}/{dist.get_rank()}", "")


@on("start", "DG701")
def join(audit: Recorder) -> None:
    if not dist.is_available():
        return
    with _lock:
        _audits.append(audit)
    audit.handles.append(_Leave(audit))
    _sign()
    replace, c10d = audit.patches.replace, dist.distributed_c10d
    for owner in (dist, c10d):
        replace(owner, "init_process_group", functools.partial(_init, audit))
    for name in _METHODS:
        replace(torch._C._distributed_c10d.Backend, name, functools.partial(_method, audit, name))
    for name in ("ProcessGroupGloo", "ProcessGroupNCCL", "ProcessGroupUCC", "ProcessGroupXCCL"):
        if isinstance(kind := getattr(c10d, name, None), type):
            replace(kind, "__init__", functools.partial(_made, audit))


@on("end", "DG701")
def catch_up(audit: Recorder) -> None:
    """What was not compared yet, before the report is closed."""
    if _audits and _audits[0] is audit:
        for _, meeting in (*_groups.values(), *_backends.values()):
            if meeting is not None and not meeting.dead:
                with contextlib.suppress(Exception):  # the rank that keeps the store may be gone
                    for call, verdict in meeting.catch_up():
                        _tell(meeting, call, verdict)


def _in(store: Any) -> Any:
    """A room of our own in a store."""
    c10d: Any = dist.distributed_c10d
    return c10d.PrefixStore("dtypeguard.audit", store)


def _default_store() -> Any:
    return _in(dist.distributed_c10d._get_default_store())


def _sign() -> None:
    """Let the other ranks know that this one audits."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # of a store that is none: those of fake groups
            _default_store().set(f"{_SIGN}/{dist.get_rank()}", "1")


def _init(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if audit.live:
            _sign()
        return result

    return init_process_group


def _group(group: Any) -> Meeting | None:
    """The meeting of a process group."""
    name = group.group_name
    default = dist.distributed_c10d._get_default_store()
    known = _groups.get(name)
    if known is None or known[0]() is not default:
        meeting = None
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1 and group._get_backend_name() != "fake":
            base = group._get_sequence_number_for_group()  # backends that do not count raise
            meeting = Meeting(_default_store, name, dist.get_rank(), ranks, base)
        known = _groups[name] = ref(default), meeting
    return known[1]


def _backend(backend: Any) -> Meeting | None:
    """The meeting of a backend without a process group around it."""
    store, meeting = _backends.get(backend, (None, None))
    if store is not None and meeting is None and backend.size() > 1:
        meeting = Meeting(lambda: store, "backend", backend.rank(), list(range(backend.size())), 0)
        _backends[backend] = store, meeting
    return meeting


def _made(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, store: Any, *args: Any, **kwargs: Any) -> None:
        original(self, store, *args, **kwargs)
        if audit.live and _audits[:1] == [audit]:
            audit.guarded(_made_here, self, store)

    return functools.wraps(original)(init)


def _made_here(backend: Any, store: Any) -> None:
    store = _in(store)
    _backends[backend] = store, None
    store.set(f"{_SIGN}/{backend.rank()}", "1")


# ---------------------------------------------------------------- calls


def _before(name: str, args: _Args, audit: Recorder) -> None:
    """A collective is about to run that goes through torch's dispatcher: those of `torch.distributed`, DDP and FSDP."""
    if _audits[:1] != [audit] or not dist.is_initialized():
        return
    op, describe, out, given, at = _C10D[name]
    c10d: Any = dist.distributed_c10d
    group = args[at]
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    elif isinstance(group, Tensor | list | int):
        return  # another library's operation of this name
    else:
        group = dist.ProcessGroup.unbox(group)
    more = args[3:5] if name == "alltoall_base_" else args[1:3] if name == "all_to_all_single" else ()
    blocks = any(arg is False for arg in args[at:]) and at > 0
    result = None if out is None else args[out]
    _meet(audit, _group, group, lambda size: describe(op, result, args[given], size, *more), blocks)


def _method(audit: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a backend that the program calls itself."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if audit.live and _audits[:1] == [audit] and self in _backends:
            audit.guarded(_called, audit, name, self, [*args, *kwargs.values()])
        return original(self, *args, **kwargs)

    return functools.wraps(original)(call)


def _called(audit: Recorder, name: str, backend: Any, values: list[Any]) -> None:
    inner, results = _METHODS[name]
    op, describe, *_ = _C10D[inner]
    given = values[1 if results else 0]
    out = values[0] if results else None
    more = values[2:4] if name == "alltoall_base" else ()
    _meet(audit, _backend, backend, lambda size: describe(op, out, given, size, *more), False)


def _meet(
    audit: Recorder, find: Callable[[Any], Meeting | None], group: Any, describe: Callable[[int], Brought], blocks: bool
) -> None:
    try:
        meeting = find(group)
        if meeting is None or meeting.dead:
            return
    except Exception:  # stores and groups of other makes lack what is asked of them here
        return
    brought = describe(group.size())
    site, module = audit.here(), audit.module()
    try:
        for call, verdict in meeting.bring(brought, site, module, _SYNC if blocks else _ASYNC):
            _tell(meeting, call, verdict)
    except (RuntimeError, ValueError):  # of the store
        meeting.dead = True


def _tell(meeting: Meeting, call: Call, verdict: tuple[str, Severity, bool]) -> None:
    """Enter a finding in all audits; say it at once where the program may not live to report it."""
    ranks, severity, hangs = verdict
    facts = {"op": call.brought.op, "ranks": ranks}
    found = [
        audit.find("DG701", call.site, facts=facts, severity=severity, module=call.module, op=call.brought.op)
        for audit in _audits
    ]
    if hangs and any(finding is not None and finding.count == 1 for finding in found):
        _log.error("%s: DG701 %s: %s", call.site, call.brought.op, ranks)


for _name in _C10D:
    on("before", "DG701", ops=[_name])(functools.partial(_before, _name))
