"""DG7, collectives: what each rank is about to send, compared before the bytes meet.

The dispatch mode sees the collectives of `torch.distributed`, of DDP's reducer and of FSDP; a backend that a program
calls itself is seen by its methods.
"""

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from .._watch.events import on
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from . import ranks as _ranks
from .ranks import Brought, Meeting

_log = logging.getLogger("dtypeguard")
_Args = tuple[Any, ...]
_Describe = Callable[..., Brought]
# Operations of the dispatcher: what users call them, how they are described, where results, inputs and group are.
_C10D: dict[str, tuple[str, _Describe, int | None, int, int]] = {
    "c10d::allreduce_": ("all_reduce", _ranks.like, None, 0, 1),
    "c10d::allreduce_coalesced_": ("all_reduce_coalesced", _ranks.like, None, 0, 1),
    "c10d::broadcast_": ("broadcast", _ranks.like, None, 0, 1),
    "c10d::reduce_": ("reduce", _ranks.like, None, 0, 1),
    "c10d::allgather_": ("all_gather", _ranks.all_gather, 0, 1, 2),
    "c10d::_allgather_base_": ("all_gather", _ranks.all_gather, 0, 1, 2),
    "c10d::allgather_coalesced_": ("all_gather_coalesced", _ranks.like, None, 1, 2),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather_coalesced", _ranks.like, None, 1, 2),
    "c10d::reduce_scatter_": ("reduce_scatter", _ranks.reduce_scatter, 0, 1, 2),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", _ranks.reduce_scatter, 0, 1, 2),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter_coalesced", _ranks.like, None, 1, 2),
    "c10d::gather_": ("gather", _ranks.gather, 0, 1, 2),
    "c10d::scatter_": ("scatter", _ranks.scatter, 0, 1, 2),
    "c10d::alltoall_": ("all_to_all", _ranks.all_to_all, 0, 1, 2),
    "c10d::alltoall_base_": ("all_to_all_single", _ranks.all_to_all_single, 0, 1, 2),
    # Functional collectives: the group, by name, is the last argument.
    "_c10d_functional::all_reduce": ("all_reduce", _ranks.like, None, 0, -1),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce_coalesced", _ranks.like, None, 0, -1),
    "_c10d_functional::broadcast": ("broadcast", _ranks.like, None, 0, -1),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", _ranks.all_gather, None, 0, -1),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", _ranks.all_gather, None, 0, -1),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather_coalesced", _ranks.like, None, 0, -1),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", _ranks.reduce_scatter, None, 0, -1),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter_coalesced", _ranks.like, None, 0, -1),
    "_c10d_functional::all_to_all_single": ("all_to_all_single", _ranks.all_to_all_single, None, 0, -1),
}
# Methods of a backend that a program calls itself, past the dispatcher: whether results come before inputs.
_METHODS: dict[str, tuple[str, bool]] = {
    "allreduce": ("c10d::allreduce_", False),
    "allreduce_coalesced": ("c10d::allreduce_coalesced_", False),
    "broadcast": ("c10d::broadcast_", False),
    "reduce": ("c10d::reduce_", False),
    "allgather": ("c10d::allgather_", True),
    "_allgather_base": ("c10d::_allgather_base_", True),
    "allgather_coalesced": ("c10d::allgather_coalesced_", True),
    "reduce_scatter": ("c10d::reduce_scatter_", True),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", True),
    "gather": ("c10d::gather_", True),
    "scatter": ("c10d::scatter_", True),
    "alltoall": ("c10d::alltoall_", True),
    "alltoall_base": ("c10d::alltoall_base_", True),
}


# ---------------------------------------------------------------- audits, groups

_lock = threading.Lock()
_audits: list[Recorder] = []  # those that are on
_groups: dict[str, tuple[ref[Any], Meeting | None]] = {}  # by name, with the store that they were met on
_backends: WeakKeyDictionary[Any, tuple[Any, Meeting | None]] = WeakKeyDictionary()  # that were made in an audit


def _speaks(audit: Recorder) -> bool:
    """Whether it is this one that compares for all: the first of those that take part in this thread."""
    here = [one for one in _audits if one.live] or _audits  # a thread of torch's own does not know
    return bool(here) and here[0] is audit and audit.running


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
            _ranks.grace.seconds = _ranks.GRACE
        for meeting in meetings:
            with contextlib.suppress(Exception):  # the rank that keeps the store may be gone
                meeting.close()
        with contextlib.suppress(Exception):
            _default_store().set(f"{_ranks.SIGN}/{dist.get_rank()}", "")


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
        replace(sys.modules["torch._C._distributed_c10d"].Backend, name, functools.partial(_method, audit, name))
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
            _default_store().set(f"{_ranks.SIGN}/{dist.get_rank()}", "1")


def _init(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if audit.running:
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
        if _speaks(audit):
            audit.guarded(_made_here, self, store)

    return functools.wraps(original)(init)


def _made_here(backend: Any, store: Any) -> None:
    store = _in(store)
    _backends[backend] = store, None
    store.set(f"{_ranks.SIGN}/{backend.rank()}", "1")


# ---------------------------------------------------------------- calls


def _before(name: str, args: _Args, audit: Recorder) -> None:
    """A collective is about to run that goes through torch's dispatcher: those of `torch.distributed`, DDP and FSDP."""
    if not _speaks(audit) or not dist.is_initialized():
        return
    op, describe, out, given, at = _C10D[name]
    c10d: Any = dist.distributed_c10d
    group: Any = args[at]
    group = c10d._resolve_process_group(group) if isinstance(group, str) else dist.ProcessGroup.unbox(group)
    more = (
        args[3:5]
        if name == "c10d::alltoall_base_"
        else args[1:3]
        if name == "_c10d_functional::all_to_all_single"
        else ()
    )
    blocks = any(arg is False for arg in args[at:]) and at > 0
    result = None if out is None else args[out]
    _meet(audit, _group, group, lambda size: describe(op, result, args[given], size, *more), blocks)


def _method(audit: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a backend that the program calls itself."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _speaks(audit) and self in _backends:
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
    site, module = audit.user(), audit.module()
    try:
        for call, verdict in meeting.bring(brought, site, module, _ranks.SYNC if blocks else _ranks.ASYNC):
            _tell(meeting, call, verdict)
    except (RuntimeError, ValueError):  # of the store
        meeting.dead = True


def _tell(meeting: Meeting, call: _ranks.Call, verdict: tuple[str, Severity, bool]) -> None:
    """Enter a finding in all audits; say it at once where the program may not live to report it."""
    ranks, severity, hangs = verdict
    facts = {"op": call.brought.op, "ranks": ranks}
    with _lock:  # ranks may be threads
        found = [
            audit.find("DG701", call.site, facts=facts, severity=severity, module=call.module, op=call.brought.op)
            for audit in _audits
        ]
    if hangs and any(finding is not None and finding.count == 1 for finding in found):
        _log.error("%s: DG701 %s: %s", call.site, call.brought.op, ranks)


for _name in _C10D:
    on("before", "DG701", ops=[_name])(functools.partial(_before, _name))
