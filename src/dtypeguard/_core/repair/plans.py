"""Repairs made before, made again without the reference checker.

A data loader that yields float64 breaks the same contract at the
same line at every step. Once the reference has repaired a call, what it did
to which dtypes is a plan; a later call with the same dtypes follows it: the
wrapper is called once more, with the repaired values. If anything is
unusual the reference is asked again.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..base import private
from ..base.config import Base, Mode, Verify, base, modes_around, scoped
from ..base.dtypes import Casting
from ..base.frames import caller
from ..check.names import keeps_digits
from ..check.reference import dtype_is_shown
from ..check.regions import region_of
from ..check.state import CallState, Edit
from ..check.verify import changed, narrows, whole
from ..contract.anchor import floating, owner_of
from ..contract.model import Contract
from .cast import warn_of_copy
from .records import CastRecord, record_lock, registry

_MOST = 64  # plans for one function, and lines for one plan
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LENIENT = Mode.LENIENT
_FILE = "<dtypeguard repairs>"  # of the code that is generated here

MISSED: Any = object()  # instead of a result: no plan made the call right, and the body did not run
_Slot = tuple[weakref.ref[nn.Module], str, str]  # the owner, which of its tables, and the name in it


@dataclass(slots=True, eq=False, repr=False)
class RepairPlan:
    """What a repair does; the record of every line that it was made for."""

    key: tuple[Any, ...]  # which arguments it repairs, what they are and what they become
    call: Callable[["RepairPlan", tuple[Any, ...], FrameType], Any]  # written for these arguments
    devices: frozenset[str]  # that these arguments come from and go to
    regions: frozenset[tuple[str, torch.dtype]]  # of these devices, where autocast was on
    generation: object
    base: Base  # whose casting allowed them
    modes: Any  # in force around it
    casting: Casting
    scoped: bool  # whether these depend on the file of a contract
    module: Any = None  # a weak reference
    slots: list[_Slot] = field(default_factory=list)  # the module's floating parameters, which must still agree
    anchor: torch.dtype | None = None  # what unannotated arguments became, unless another argument has that dtype
    records: dict[tuple[int, int], tuple[Any, list[CastRecord]]] = field(default_factory=dict)


_UNKNOWN: tuple[None, None] = (None, None)


def is_repaired(wrapper: FrameType) -> bool:
    """Whether the running wrapper was called by a plan, with repaired values."""
    around = wrapper.f_back
    return around is not None and around.f_code.co_filename == _FILE


def follow(contract: Contract, values: tuple[Any, ...], wrapper: FrameType) -> Any:
    """The result of a call whose usual repair is known; MISSED if the reference must look."""
    autocast = private.any_autocast()
    for plan in contract.plans:
        if (plan.regions == _regions(plan.devices) if autocast else not plan.regions) and (
            plan.module is None or plan.module() is values[0]
        ):
            result = plan.call(plan, values, wrapper)
            if result is not MISSED:
                return result
    return MISSED


def _records_for(
    contract: Contract, plan: RepairPlan, values: tuple[Any, ...], wrapper: FrameType
) -> list[CastRecord] | None:
    """The records of a plan for the user's line; None if the plan may not be followed now, or not from there."""
    if not _current(plan):
        return None
    known = not plan.scoped and plan.modes is modes_around()  # mode and casting are those of the repair before
    if not known and (contract.mode_for(values), contract.casting_for(values)) != (_LENIENT, plan.casting):
        return None
    frame = caller(wrapper.f_back)
    if frame is None or (plan.slots and not _agree(plan.slots)):
        return None
    code, records = plan.records.get((id(frame.f_code), frame.f_lasti), _UNKNOWN)
    if code is not frame.f_code:
        return None
    if plan.anchor is not None:  # what would be cast are side inputs if another argument has that dtype
        with private.no_function():
            return None if dtype_is_shown(contract, values, plan.anchor) else records
    return records


def _current(plan: RepairPlan) -> bool:
    """Whether nothing was set or reset since a plan was made."""
    return plan.generation is registry().generation and plan.base is base()


def _regions(devices: frozenset[str]) -> frozenset[tuple[str, torch.dtype]]:
    return frozenset((kind, dtype) for kind in devices if (dtype := region_of(kind)) is not None)


def _agree(slots: list[_Slot]) -> bool:
    try:
        return len({vars(owner())[table][name].dtype for owner, table, name in slots}) < 2
    except (KeyError, AttributeError, TypeError):  # reparametrized or replaced meanwhile
        return False


def remember(call: CallState, values: tuple[Any, ...]) -> None:
    """Make a plan of what the reference just did, if it was simple: at most two whole dense tensors, each cast once."""
    contract, edits, frame = call.contract, list(call.edits.values()), caller()
    names = [param.name for param in contract.params]
    sources = [edit.value for edit in edits]
    if (
        frame is None
        or contract.wrapper is None
        or contract.verify is Verify.ALWAYS
        or any(edit.path[1:] or type(edit.value) is not Tensor or keeps_digits(edit.path, edit.dtype) for edit in edits)
        or len({id(source) for source in sources}) < len(sources)
        or len(edits) > 2
        or any(param.kind not in _POSITIONAL for param in contract.params)
    ):
        return
    current = [plan for plan in contract.plans if _current(plan)]
    indexes = [names.index(str(edit.path[0])) for edit in edits]
    devices = frozenset(
        str(device.type)
        for source, edit in zip(sources, edits, strict=True)
        for device in (source.device, edit.device)
        if device is not None
    )
    regions = _regions(devices)
    module = values[0] if contract.anchor == "self" and isinstance(values[0], nn.Module) else None
    facts = tuple((e.value.dtype, e.value.device, e.dtype, e.device) for e in edits)
    key = (tuple(indexes), facts, regions)
    alike = (plan for plan in current if plan.key == key)
    plan = next((plan for plan in alike if module is None or plan.module() is module), None)
    if plan is None:
        written = _compile_plan(contract, indexes, edits)
        plan = RepairPlan(
            key, written, devices, regions, registry().generation, base(), modes_around(), call.casting, scoped()
        )
        if module is not None:
            plan.module = weakref.ref(module, functools.partial(_forget, contract, plan))
            if contract.dtype is None:
                plan.slots = [
                    (weakref.ref(owner), table, path[-1])
                    for path, _, _ in floating(module)
                    for owner, table in [owner_of(module, path)]
                ]
        free = [e.dtype for i, e in zip(indexes, edits, strict=True) if e.dtype and contract.params[i].spec is None]
        if contract.sides and free and sum(not param.skip for param in contract.params) > len(free):
            plan.anchor = free[0]
        # The plan that casts most arguments is tried first; where fewer are wrong, the next one applies.
        contract.plans[:] = sorted([plan, *current][:_MOST], key=lambda known: -len(known.key[0]))
    if len(plan.records) >= _MOST:
        plan.records.clear()  # a line that is compiled anew for each call is another one each time
    # An instruction is known at once, while Python counts up to its line. The result may add records of its own.
    plan.records[id(frame.f_code), frame.f_lasti] = frame.f_code, [*call.records]


# What a plan does is written out for its arguments: expanded tensors and 0-dim ones have ways of their own.
_APPLIES = """\
    x{i} = values[{i}]
    if type(x{i}) is not Tensor or x{i}.dtype is not source{i} or x{i}.{is_on}: return missed
    if x{i}.layout is not strided or x{i}.is_nested or not x{i}.dim(): return missed
    dense{i} = x{i}.is_contiguous()
    if not dense{i} and 0 in x{i}.stride(): return missed
"""
_ONCE = "    if x{0} is x{1}: return missed\n"
_KNOWN = "    known = records_for(contract, plan, values, wrapper)\n    if known is None: return missed\n"
_TO = {torch.float32: "float()", torch.float16: "half()", torch.bfloat16: "bfloat16()"}  # a fifth quicker than `to`
_COPY = "    record{i} = known[{n}]\n    copy{i} = x{i}.{to}\n"
_LOOK = "    if {why} and changed(x{i}, copy{i}) is not None: return missed\n"
# What raises is the body: the checks are silent, so its repair was made. A plan that mends a part makes its copies in
# vain at each such call.
_CALL = """\
    result = None
    try:
        result = contract.wrapper({fresh})
        return result
    finally:
        if result is missed: forget(contract, plan)
        else:
            with lock: {counts}
{looks}
"""
_COUNT = "record{i}.count += 1; record{i}.bytes += copy{i}.nbytes"
# A copy made in inference mode counts no versions; one of such a source is not of version 0 when new.
_LOOK_BACK = """\
        try: touched = copy{i}._version > 0 or copy{i}.requires_grad is not x{i}.requires_grad
        except Error: touched = False
        if touched and not x{i}.is_inference(): look_back(contract, record{i}.argument, x{i}, copy{i}, 0)
"""


def _compile_plan(contract: Contract, indexes: list[int], edits: list[Edit]) -> Any:
    """The function `call` of a plan."""
    names: dict[str, Any] = {"Tensor": Tensor, "strided": torch.strided, "changed": changed, "missed": MISSED}
    names |= {"contract": contract, "records_for": _records_for, "forget": _forget}
    names |= {"lock": record_lock, "look_back": warn_of_copy, "Error": RuntimeError}
    applies, copies = [], []
    for n, (i, edit) in enumerate(zip(indexes, edits, strict=True)):
        source: Tensor = edit.value
        names |= {f"source{i}": source.dtype, f"origin{i}": source.device, f"dtype{i}": edit.dtype}
        names |= {f"device{i}": edit.device, f"whole{i}": whole(source.dtype, source.is_cpu)}
        applies.append(_APPLIES.format(i=i, is_on="is_cpu is False" if source.is_cpu else f"device != origin{i}"))
        to = _TO.get(edit.dtype, f"to(dtype=dtype{i})")
        if edit.device is not None:
            to = f"to(dtype=dtype{i}, device=device{i}, non_blocking={contract.non_blocking})"
        copies.append(_COPY.format(i=i, to=to, n=n))
        if contract.verify is not Verify.NEVER and edit.dtype is not None and narrows(source.dtype, edit.dtype):
            copies.append(_LOOK.format(i=i, why=f"whole{i}(x{i}, record{i}.count + 1, dense{i})"))
    fresh = "".join(f"copy{n}, " if n in indexes else f"values[{n}], " for n in range(len(contract.params)))
    counts = "; ".join(_COUNT.format(i=i) for i in indexes)
    text = ["def call(plan, values, wrapper):\n", *applies]
    text += [_ONCE.format(*indexes)] if len(indexes) > 1 else []
    text += [_KNOWN, *copies]
    text += [_CALL.format(fresh=fresh, counts=counts, looks="".join(_LOOK_BACK.format(i=i) for i in indexes))]
    exec(compile("".join(text), _FILE, "exec"), names)
    return names["call"]


def _forget(contract: Contract, plan: RepairPlan | None, _: object = None) -> None:
    contract.plans[:] = [other for other in contract.plans if other is not plan]
