"""DG701 ranks-disagree: what each rank is about to send, compared before the bytes meet.

The dispatch mode sees the collectives of `torch.distributed`, of DDP's reducer and of FSDP; a backend that a program
calls itself is seen by its methods.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from ..._core.base.log import logger
from ..._core.base.ranks import room
from .._kit import Recorder, Rule, Severity, around, on
from . import _meeting
from ._calls import Collective, brought
from ._meeting import Call, Meeting

RULE = Rule(
    "DG701",
    "ranks-disagree",
    Severity.ERROR,
    summary="Ranks pass different dtypes or shapes to one collective.",
    says="{op}: {ranks}",
    fix=(
        "give every rank the same dtype and shape: `.to(...)` before the collective, `dtype=` where the tensor is made"
    ),
    why=(
        "Collectives send bytes. Where ranks hold different dtypes of one size they compute nonsense "
        "without an error; where sizes differ they hang or abort."
    ),
    unsafe=("narrow_origins",),
    sources=(
        "https://github.com/pytorch/pytorch/issues/150248",
        "https://github.com/modelscope/ms-swift/issues/9550",
    ),
)

# Where results, inputs, the group and the sizes of parts are among the arguments.
_C10D = {
    "c10d::allreduce_": Collective("all_reduce", "like", None, 0, 1),
    "c10d::allreduce_coalesced_": Collective("all_reduce_coalesced", "like", None, 0, 1),
    "c10d::broadcast_": Collective("broadcast", "like", None, 0, 1),
    "c10d::reduce_": Collective("reduce", "like", None, 0, 1),
    "c10d::allgather_": Collective("all_gather", "gather", 0, 1, 2),
    "c10d::_allgather_base_": Collective("all_gather", "gather", 0, 1, 2),
    "c10d::allgather_coalesced_": Collective("all_gather_coalesced", "like", 0, 1, 2),
    "c10d::allgather_into_tensor_coalesced_": Collective("all_gather_coalesced", "like", 0, 1, 2),
    "c10d::reduce_scatter_": Collective("reduce_scatter", "scatter", 0, 1, 2),
    "c10d::_reduce_scatter_base_": Collective("reduce_scatter", "scatter", 0, 1, 2),
    "c10d::reduce_scatter_tensor_coalesced_": Collective("reduce_scatter_coalesced", "like", 0, 1, 2),
    "c10d::gather_": Collective("gather", "gather", 0, 1, 2),
    "c10d::scatter_": Collective("scatter", "scatter", 0, 1, 2),
    "c10d::alltoall_": Collective("all_to_all", "all", 0, 1, 2),
    "c10d::alltoall_base_": Collective("all_to_all_single", "all", 0, 1, 2, 3),
}
_FUNCTIONAL = {
    "_c10d_functional::all_reduce": Collective("all_reduce", "like", None, 0, -1),
    "_c10d_functional::all_reduce_coalesced": Collective("all_reduce_coalesced", "like", None, 0, -1),
    "_c10d_functional::broadcast": Collective("broadcast", "like", None, 0, -1),
    "_c10d_functional::all_gather_into_tensor": Collective("all_gather", "gather", None, 0, -1),
    "_c10d_functional::all_gather_into_tensor_out": Collective("all_gather", "gather", None, 0, -1),
    "_c10d_functional::all_gather_into_tensor_coalesced": Collective("all_gather_coalesced", "like", None, 0, -1),
    "_c10d_functional::reduce_scatter_tensor": Collective("reduce_scatter", "scatter", None, 0, -1),
    "_c10d_functional::reduce_scatter_tensor_coalesced": Collective("reduce_scatter_coalesced", "like", None, 0, -1),
    "_c10d_functional::all_to_all_single": Collective("all_to_all_single", "all", None, 0, -1, 1),
}
# Methods of a backend that a program calls itself, past the dispatcher; they take no group.
_METHODS = {name.removeprefix("c10d::").removesuffix("_"): call for name, call in _C10D.items()}


# ---------------------------------------------------------------- audits, groups

_lock = threading.Lock()
_audits: list[Recorder] = []  # those that are on
_groups: dict[str, tuple[ref[Any], Meeting | None]] = {}  # by name, with the store that they were met on
_backends: WeakKeyDictionary[Any, tuple[Any, Meeting | None]] = WeakKeyDictionary()  # that were made in an audit


def _meetings() -> list[Meeting]:
    return [meeting for _, meeting in (*_groups.values(), *_backends.values()) if meeting is not None]


def _speaks(audit: Recorder) -> bool:
    """Whether it is this one that compares for all: the first of those that take part in this thread."""
    here = [one for one in _audits if one.records_here] or _audits  # a thread of torch's own does not know
    return bool(here) and here[0] is audit and audit.running


class _Leave:
    """Takes an audit off again."""

    def __init__(self, audit: Recorder) -> None:
        self._audit = audit

    def remove(self) -> None:
        with _lock:
            if self._audit in _audits:  # it may be taken off again, after Ctrl-C
                _audits.remove(self._audit)
            if _audits:
                return
            meetings = _meetings()
            _groups.clear()
            _backends.clear()
            _meeting.grace.seconds = _meeting.GRACE
        for meeting in meetings:
            with contextlib.suppress(Exception):  # the rank that keeps the store may be gone
                meeting.close()
        with contextlib.suppress(Exception):
            _own_room().set(f"{_meeting.SIGN}/{dist.get_rank()}", "")


@on("start", RULE)
def join(audit: Recorder) -> None:
    if not dist.is_available():
        return
    audit.handles.append(_Leave(audit))
    with _lock:
        _audits.append(audit)
    _sign()


@on("end", RULE)
def catch_up(audit: Recorder) -> None:
    """What was not compared yet, before the report is closed."""
    if _audits and _audits[0] is audit:
        for meeting in _meetings():
            if not meeting.dead:
                with contextlib.suppress(Exception):  # the rank that keeps the store may be gone
                    for call, verdict in meeting.catch_up():
                        _tell(call, verdict)


def _own_room(store: Any = None) -> Any:
    """A room of our own in a store; default: in that of the default group."""
    return room("dtypeguard.audit", store)


def _sign() -> None:
    """Let the other ranks know that this one audits."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # of a store that is none: those of fake groups
            _own_room().set(f"{_meeting.SIGN}/{dist.get_rank()}", "1")


def _init(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    if audit.running:
        _sign()
    return result


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
            meeting = Meeting(_own_room, name, dist.get_rank(), ranks, base)
        known = _groups[name] = ref(default), meeting
    return known[1]


def _backend(backend: Any) -> Meeting | None:
    """The meeting of a backend without a process group around it."""
    store, meeting = _backends.get(backend, (None, None))
    if store is not None and meeting is None and backend.size() > 1:
        meeting = Meeting(lambda: store, "backend", backend.rank(), list(range(backend.size())), 0)
        _backends[backend] = store, meeting
    return meeting


def _new_store(audit: Recorder, original: Callable[..., Any], self: Any, store: Any, *args: Any, **kwargs: Any) -> None:
    original(self, store, *args, **kwargs)
    if _speaks(audit):
        audit.guarded(_made_here, self, store)


def _made_here(backend: Any, store: Any) -> None:
    store = _own_room(store)
    _backends[backend] = store, None
    store.set(f"{_meeting.SIGN}/{backend.rank()}", "1")


# ---------------------------------------------------------------- calls


def _before(call: Collective, args: tuple[Any, ...], audit: Recorder) -> None:
    """A collective is about to run that goes through torch's dispatcher: those of `torch.distributed`, DDP and FSDP."""
    if _speaks(audit) and dist.is_initialized():
        group: Any = args[call.group]
        c10d: Any = dist.distributed_c10d
        group = c10d._resolve_process_group(group) if isinstance(group, str) else dist.ProcessGroup.unbox(group)
        blocks = call.group > 0 and any(arg is False for arg in args[call.group :])
        _meet(audit, call, _group, group, args, call.sizes, blocks)


def _method(
    call: Collective, audit: Recorder, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    """A method of a backend that the program calls itself."""
    if _speaks(audit) and self in _backends:
        sizes = None if call.sizes is None else call.group  # they stand where others have the group
        audit.guarded(_meet, audit, call, _backend, self, (*args, *kwargs.values()), sizes)
    return original(self, *args, **kwargs)


def _meet(
    audit: Recorder, call: Collective, find: Callable[[Any], Meeting | None], group: Any, args: tuple[Any, ...],
    sizes: int | None, blocks: bool = False,
) -> None:  # fmt: skip
    try:
        meeting = find(group)
        if meeting is None or meeting.dead:
            return
    except Exception:  # stores and groups of other makes lack what is asked of them here
        return
    out, more = None if call.out is None else args[call.out], () if sizes is None else args[sizes : sizes + 2]
    ours = brought(call.way, call.op, out, args[call.given], group.size(), *more)
    site, module = audit.user(), audit.module()
    try:
        for theirs, verdict in meeting.bring(ours, site, module, _meeting.SYNC if blocks else _meeting.ASYNC):
            _tell(theirs, verdict)
    except (RuntimeError, ValueError):  # of the store
        meeting.dead = True


def _tell(call: Call, verdict: tuple[str, Severity, bool]) -> None:
    """Enter a finding in all audits; say it at once where the program may not live to report it."""
    ranks, severity, hangs = verdict
    facts = {"op": call.brought.op, "ranks": ranks}
    with _lock:  # ranks may be threads
        found = [
            audit.find(RULE, call.site, facts=facts, severity=severity, module=call.module, op=call.brought.op)
            for audit in _audits
        ]
    if hangs and any(finding is not None and finding.count == 1 for finding in found):
        logger.error("%s: DG701 %s: %s", call.site, call.brought.op, ranks)


for _name, _call in (_C10D | _FUNCTIONAL).items():
    on("before", RULE, ops=[_name])(functools.partial(_before, _call))
if dist.is_available():
    _c10d, _class = dist.distributed_c10d, sys.modules["torch._C._distributed_c10d"].Backend
    for _owner in (dist, _c10d):
        around(_owner, "init_process_group", rule=RULE, always=True)(_init)
    for _name, _call in _METHODS.items():
        if hasattr(_class, _name):
            around(_class, _name, rule=RULE, always=True)(functools.partial(_method, _call))
    for _name in ("ProcessGroupGloo", "ProcessGroupNCCL", "ProcessGroupUCC", "ProcessGroupXCCL"):
        if isinstance(_kind := getattr(_c10d, _name, None), type):
            around(_kind, "__init__", rule=RULE, always=True)(_new_store)
