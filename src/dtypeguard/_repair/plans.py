"""Repairs made before, made again without the reference checker.

A data loader that yields float64 breaks the same contract at the
same line at every step. Once the reference has repaired a call, what it did
to which dtypes is a plan; a later call with the same dtypes follows it, and
the generated check then says whether the outcome is right. If anything is
unusual the reference is asked again.
"""

import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._base.config import Base, Mode, Verify, base, modes_around
from .._base.frames import caller
from .._check.reference import holds, region_of
from .._contract.anchor import floating, owner_of
from .._contract.model import Call, Contract, Edit
from .records import CastRecord, generation, record_lock
from .settle import look_back_at
from .verify import changed, narrows, whole

_MOST = 64  # plans for one function, and lines for one plan
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LENIENT = Mode.LENIENT
_any_autocast = torch._C._is_any_autocast_enabled

Moves = tuple[tuple[CastRecord, Tensor, Tensor], ...]  # the record, what was given, its copy
Made = tuple[tuple[Any, ...], Moves]  # the values that the body gets
_Slot = tuple[weakref.ref[nn.Module], str, str]  # the owner, which of its tables, and the name in it


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """What a repair does; the record of every line that it was made for."""

    indexes: list[int]  # of the arguments that it repairs
    applies: Callable[[tuple[Any, ...]], bool]  # whether it was made for such values
    repair: Callable[
        [tuple[Any, ...], list[CastRecord]], list[Tensor] | None
    ]  # the copies; None if one of them changed whole numbers
    devices: frozenset[str]  # that these arguments come from and go to
    regions: frozenset[tuple[str, torch.dtype]]  # of these devices, where autocast was on
    generation: int
    base: Base  # whose casting allowed them
    modes: Any  # in force around it
    module: Any  # a weak reference
    slots: list[_Slot]  # the module's floating parameters, which must still agree
    anchor: torch.dtype | None = None  # what unannotated arguments became, unless another argument has that dtype
    others: list[tuple[int, Any]] = field(default_factory=list)  # the other arguments, and their defaults
    records: dict[tuple[int, int], tuple[Any, list[CastRecord]]] = field(default_factory=dict)


_NOTHING: tuple[None, Any, Moves] = (None, (), ())
_UNKNOWN: tuple[None, list[CastRecord]] = (None, [])


def mend(contract: Contract, values: tuple[Any, ...]) -> tuple[Plan | None, Any, Moves]:
    """The plan of the usual repair, the values with it, and what was moved; no plan if the reference must look."""
    autocast = _any_autocast()
    for plan in contract.plans:
        if (plan.regions == _regions(plan.devices) if autocast else not plan.regions) and _applies(plan, values):
            break
    else:
        return _NOTHING
    if not _current(plan):
        return _NOTHING
    known = plan.base.under is None and plan.modes is modes_around()  # the mode is that of the repair before
    if not known and contract.mode_for(values) is not _LENIENT:
        return _NOTHING
    frame = caller(sys._getframe(1))
    if frame is None or (plan.slots and not _agree(plan.slots)):
        return _NOTHING
    code, records = plan.records.get((id(frame.f_code), frame.f_lasti), _UNKNOWN)
    if code is not frame.f_code:
        return _NOTHING
    if plan.others and _evident(plan, values):
        return _NOTHING
    made = plan.repair(values, records)
    return _NOTHING if made is None else (plan, *made)


def settle(contract: Contract, moves: Moves, made: bool) -> None:
    """Write the repair of one call down, if it was made, and say what the body did to the copies."""
    with record_lock:
        for record, _, copy in moves if made else ():
            record.count += 1
            record.bytes += copy.nbytes
    for record, source, copy in moves:
        try:
            touched = copy._version > 0 or copy.requires_grad is not source.requires_grad
        except RuntimeError:  # made in inference mode, it counts no versions
            continue
        if touched and not source.is_inference():  # a copy of such a source is not of version 0 when new
            look_back_at(contract, record.argument, source, copy, 0)


def _applies(plan: Plan, values: tuple[Any, ...]) -> bool:
    return (plan.module is None or plan.module() is values[0]) and plan.applies(values)


def _current(plan: Plan) -> bool:
    """Whether nothing was set or reset since a plan was made."""
    return plan.generation == generation() and plan.base is base()


def _evident(plan: Plan, values: tuple[Any, ...]) -> bool:
    """Whether another argument has the dtype that the plan casts to: what it would cast are side inputs then."""
    given = [values[index] for index, default in plan.others if values[index] is not default]
    if not given:
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return any(holds(value, plan.anchor) for value in given)


def _regions(devices: frozenset[str]) -> frozenset[tuple[str, torch.dtype]]:
    return frozenset((kind, dtype) for kind in devices if (dtype := region_of(kind)) is not None)


def _agree(slots: list[_Slot]) -> bool:
    dtype = None
    try:
        for owner, table, name in slots:
            found = vars(owner())[table][name].dtype
            dtype = dtype or found
            if found is not dtype:
                return False
    except (KeyError, AttributeError, TypeError):  # reparametrized or replaced meanwhile
        return False
    return True


def remember(call: Call, values: tuple[Any, ...]) -> None:
    """Make a plan of what the reference just did, if it was simple: at most two whole dense tensors, each cast once."""
    contract, edits, frame = call.contract, list(call.edits.values()), caller()
    names = [param.name for param in contract.params]
    sources = [edit.value for edit in edits]
    if (
        frame is None
        or contract.trial is None
        or contract.verify is Verify.ALWAYS
        or any(edit.path[1:] or type(edit.value) is not Tensor for edit in edits)
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
    plan = next((p for p in current if p.indexes == indexes and p.regions == regions and _applies(p, values)), None)
    if plan is None:
        applies, repair = _written(contract, indexes, edits)
        plan = Plan(indexes, applies, repair, devices, regions, generation(), base(), modes_around(), None, [])
        if contract.anchor == "self" and isinstance(values[0], nn.Module):
            plan.module = weakref.ref(values[0], lambda _: forget(contract, plan))
            if contract.dtype is None:
                plan.slots = [
                    (weakref.ref(owner), table, path[-1])
                    for path, _ in floating(values[0])
                    for owner, table in [owner_of(values[0], path)]
                ]
        free = {
            index: edit.dtype
            for index, edit in zip(indexes, edits, strict=True)
            if edit.dtype and contract.params[index].spec is None
        }
        if contract.sides and free:
            rest = (i for i, param in enumerate(contract.params) if not param.skip and i not in free)
            plan.others = [(i, contract.params[i].default) for i in rest]
            plan.anchor = next(iter(free.values()))
        # A plan of more steps is tried first: it does not apply where one of fewer does.
        contract.plans[:] = sorted([plan, *current][:_MOST], key=lambda known: -len(known.indexes))
    if len(plan.records) >= _MOST:
        plan.records.clear()  # a line that is compiled anew for each call is another one each time
    # An instruction is known at once, while Python counts up to its line. The result may add records of its own.
    plan.records[id(frame.f_code), frame.f_lasti] = frame.f_code, [*call.records]


# What a plan does is written out for its arguments: expanded tensors and 0-dim ones have ways of their own.
_APPLIES = """\
    x = values[{index}]
    if type(x) is not Tensor or x.dtype is not source{index} or x.{is_on} or x.layout is not strided: return False
    if x.is_nested or not x.dim() or not x.is_contiguous() and 0 in x.stride(): return False
"""
_ONCE = "    if values[{0}] is values[{1}]: return False\n"
_CAST = {torch.float32: "float()", torch.float16: "half()", torch.bfloat16: "bfloat16()"}  # a fifth quicker than `to`
_REPAIR = "    copy{index} = values[{index}].{to}\n"
_LOOK = """\
    if whole{index}(values[{index}], records[{n}].count + 1) and changed(values[{index}], copy{index}) is not None:
        return None
"""


def _written(contract: Contract, indexes: list[int], edits: list[Edit]) -> tuple[Any, Any]:
    """The functions `applies` and `repair` of a plan."""
    applies, repair = [_ONCE.format(*indexes)] if len(indexes) > 1 else [], []
    names: dict[str, Any] = {"Tensor": Tensor, "strided": torch.strided, "changed": changed}
    for n, (index, edit) in enumerate(zip(indexes, edits, strict=True)):
        source: Tensor = edit.value
        names |= {f"source{index}": source.dtype, f"origin{index}": source.device, f"dtype{index}": edit.dtype}
        names |= {f"device{index}": edit.device, f"whole{index}": whole(source.dtype, source.is_cpu)}
        is_on = "is_cpu is False" if source.is_cpu else f"device != origin{index}"
        applies.append(_APPLIES.format(index=index, is_on=is_on))
        to = _CAST.get(edit.dtype, f"to(dtype=dtype{index})")
        if edit.device is not None:
            to = f"to(dtype=dtype{index}, device=device{index}, non_blocking={contract.non_blocking})"
        repair.append(_REPAIR.format(index=index, to=to))
        if contract.verify is not Verify.NEVER and edit.dtype is not None and narrows(source.dtype, edit.dtype):
            repair.append(_LOOK.format(index=index, n=n))
    fresh = "".join(f"copy{n}, " if n in indexes else f"values[{n}], " for n in range(len(contract.params)))
    moves = "".join(f"(records[{n}], values[{index}], copy{index}), " for n, index in enumerate(indexes))
    text = f"def applies(values):\n{''.join(applies)}    return True\n"
    text += f"def repair(values, records):\n{''.join(repair)}    return ({fresh}), ({moves})\n"
    exec(text, names)
    return names["applies"], names["repair"]


def forget(contract: Contract, plan: Plan | None) -> None:
    """A plan goes with its module, or when it turns out to mend only a part."""
    contract.plans[:] = [other for other in contract.plans if other is not plan]
