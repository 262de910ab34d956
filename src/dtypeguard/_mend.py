"""Repairs made before, made again without the reference checker.

Floor 3. A data loader that yields float64 breaks the same contract at the
same line at every step. Once the reference has repaired a call, what it did
to which dtypes is a plan; a later call with the same dtypes follows it, and
the generated check then says whether the outcome is right. If anything is
unusual the reference is asked again.
"""

import inspect
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ._anchor import floating, owner_of
from ._cast import look_back_at
from ._check import holds, region_of
from ._config import Base, Mode, Verify, base, modes_around
from ._contract import Call, Contract, Edit
from ._errors import caller
from ._records import CastRecord, generation, record_lock
from ._verify import changed, due, narrows

_MOST = 64  # plans for one function
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LENIENT = Mode.LENIENT
_any_autocast = torch._C._is_any_autocast_enabled
_NOWHERE: frozenset[tuple[str, torch.dtype]] = frozenset()


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One argument: what it was, what it becomes."""

    index: int
    source: torch.dtype
    origin: torch.device
    on_cpu: bool
    dtype: torch.dtype | None
    device: torch.device | None
    narrows: bool  # and must leave whole numbers as they are


_Slot = tuple[weakref.ref[nn.Module], str, str]  # the owner, which of its tables, and the name in it


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """The steps of a repair; the record of every line that it was made for."""

    steps: list[Step]
    regions: frozenset[tuple[str, torch.dtype]]  # of the devices concerned, where autocast was on
    generation: int
    base: Base  # whose casting allowed them
    modes: Any  # in force around it
    module: Any  # a weak reference
    slots: list[_Slot]  # the module's floating parameters, which must still agree
    anchor: torch.dtype | None = (
        None  # what unannotated arguments were cast to, if another of that dtype would forbid it
    )
    others: list[tuple[int, Any]] = field(default_factory=list)  # the other arguments, and their defaults
    records: dict[tuple[str, int], list[CastRecord]] = field(default_factory=dict)


Moves = list[tuple[CastRecord, Tensor, Tensor, int]]  # the record, what was given, its copy, the copy's version
_NOTHING: tuple[None, Any, Moves] = (None, (), [])


def mend(contract: Contract, values: tuple[Any, ...]) -> tuple[Plan | None, Any, Moves]:
    """The plan of the usual repair, the values with it, and what was moved; no plan if the reference must look."""
    for plan in contract.plans:
        if _applies(plan, values):
            break
    else:
        return _NOTHING
    if not _current(plan):
        return _NOTHING
    known = plan.base.under is None and plan.modes is modes_around()  # the mode is that of the repair before
    if not known and contract.mode_for(values) is not _LENIENT:
        return _NOTHING
    frame = caller(sys._getframe(1))
    records = None if frame is None else plan.records.get((frame.f_code.co_filename, frame.f_lineno))
    if records is None or (plan.slots and not _agree(plan.slots)):
        return _NOTHING
    if plan.others and _evident(plan, values):
        return _NOTHING
    fresh, moves = list(values), []
    for step, record in zip(plan.steps, records):  # noqa: B905  (as many by construction, and this is the warm path)
        source = values[step.index]
        copy = source.to(dtype=step.dtype, device=step.device, non_blocking=contract.non_blocking)
        if step.narrows and due(source, record.count + 1) and changed(source, copy) is not None:
            return _NOTHING
        fresh[step.index] = copy
        moves.append((record, source, copy, -1 if copy.is_inference() else copy._version))
    return plan, fresh, moves


def count(moves: Moves) -> None:
    """Write the repair of one call down."""
    with record_lock:
        for record, _, copy, _ in moves:
            record.count += 1
            record.bytes += copy.nbytes


def _applies(plan: Plan, values: tuple[Any, ...]) -> bool:
    """Whether the plan was made for such values; expanded tensors and 0-dim ones have ways of their own."""
    if plan.module is not None and plan.module() is not values[0]:
        return False
    seen = None
    for step in plan.steps:
        source = values[step.index]
        if type(source) is not Tensor or source.dtype is not step.source or source.is_cpu is not step.on_cpu:
            return False
        if not step.on_cpu and source.device != step.origin:
            return False
        if source.layout is not torch.strided or source.is_nested or source.is_quantized:
            return False
        if source is seen or not source.dim():
            return False
        if not source.is_contiguous() and 0 in source.stride():
            return False
        seen = source
    return plan.regions == _regions(plan.steps)


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


def _regions(steps: list[Step]) -> frozenset[tuple[str, torch.dtype]]:
    if not _any_autocast():
        return _NOWHERE
    devices = {device.type for step in steps for device in (step.origin, step.device) if device is not None}
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


def look_at(contract: Contract, moves: Moves) -> None:
    """What the body did to the copies of a call repaired by plan."""
    for record, source, copy, version in moves:
        if version >= 0 and (copy._version != version or copy.requires_grad is not source.requires_grad):
            look_back_at(contract, record.argument, source, copy, version)


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
    plan = next((p for p in current if [s.index for s in p.steps] == indexes and _applies(p, values)), None)
    if plan is None:
        steps = [
            Step(index, source.dtype, source.device, source.is_cpu, edit.dtype, edit.device, _looks(contract, edit))
            for index, source, edit in zip(indexes, sources, edits, strict=True)
        ]
        plan = Plan(steps, _regions(steps), generation(), base(), modes_around(), None, [])
        if contract.anchor == "self" and isinstance(values[0], nn.Module):
            plan.module = weakref.ref(values[0], lambda _: forget(contract, plan))
            if contract.dtype is None:
                plan.slots = [
                    (weakref.ref(owner), table, path[-1])
                    for path, _ in floating(values[0])
                    for owner, table in [owner_of(values[0], path)]
                ]
        free = {step.index: step.dtype for step in steps if step.dtype and contract.params[step.index].spec is None}
        if contract.sides and free:
            rest = (i for i, param in enumerate(contract.params) if not param.skip and i not in free)
            plan.others = [(i, contract.params[i].default) for i in rest]
            plan.anchor = next(iter(free.values()))
        # A plan of more steps is tried first: it does not apply where one of fewer does.
        contract.plans[:] = sorted([plan, *current][:_MOST], key=lambda known: -len(known.steps))
    plan.records[frame.f_code.co_filename, frame.f_lineno] = [*call.records]  # the result may add its own


def _looks(contract: Contract, edit: Edit) -> bool:
    return contract.verify is not Verify.NEVER and edit.dtype is not None and narrows(edit.value.dtype, edit.dtype)


def forget(contract: Contract, plan: Plan | None) -> None:
    """A plan goes with its module, or when it turns out to mend only a part."""
    contract.plans[:] = [other for other in contract.plans if other is not plan]
