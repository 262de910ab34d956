"""Repairs made before, made again without the reference checker.

Floor 3. A data loader that yields float64 breaks the same contract at the
same line at every step. Once the reference has repaired a call, what it did
to which dtypes is a plan; a later call with the same dtypes follows it, and
the generated check then says whether the outcome is right. If anything is
unusual the reference is asked again.
"""

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ._anchor import floating, table_of
from ._cast import CastRecord, call_key, generation, look_back_at, on_repair, record_lock
from ._config import Mode, Verify, current_mode
from ._contract import Call, Contract
from ._errors import caller

_MOST = 64  # plans for one function


@dataclass(slots=True)
class Plan:
    """Which arguments become what; and the record of every line that this was done for."""

    steps: list[tuple[int, torch.dtype | None, torch.device | None]]
    right: Any
    slots: list[tuple[dict[str, Any], str]]  # the module's floating parameters, which must still agree
    generation: int
    module: Any = None
    records: dict[tuple[str, int], list[CastRecord]] = field(default_factory=dict)


@dataclass(slots=True)
class Known:
    """A call repaired by plan."""

    contract: Contract
    values: Any
    copies: list[tuple[str, Tensor, Tensor, int]]


def mend(contract: Contract, values: tuple[Any, ...]) -> Known | None:
    """The call with its usual repair, or None if the reference must look."""
    if not contract.plans or torch.compiler.is_compiling():
        return None
    plan = contract.plans.get(call_key(values))
    if plan is None or plan.generation != generation() or current_mode(contract.mode) is not Mode.LENIENT:
        return None
    frame = caller(sys._getframe(1))
    records = None if frame is None else plan.records.get((frame.f_code.co_filename, frame.f_lineno))
    if records is None:
        return None
    if plan.slots and not _agree(plan.slots):
        return None
    fresh = list(values)
    for index, dtype, device in plan.steps:
        source = values[index]
        if 0 in source.stride() or any(source is values[other] for other, *_ in plan.steps if other != index):
            return None
        fresh[index] = source.to(dtype=dtype, device=device, non_blocking=contract.non_blocking)
    if not plan.right(*fresh):
        return None
    copies = []
    with record_lock:
        for (index, *_), record in zip(plan.steps, records, strict=True):
            copy = fresh[index]
            record.count += 1
            record.bytes += copy.nbytes
            copies.append((record.argument, values[index], copy, 0 if copy.is_inference() else copy._version))
    return Known(contract, fresh, copies)


def _agree(slots: list[tuple[dict[str, Any], str]]) -> bool:
    table, name = slots[0]
    try:
        dtype = table[name].dtype
        return all(table[name].dtype is dtype for table, name in slots)
    except (KeyError, AttributeError):  # reparametrized meanwhile
        return False


def look_at(known: Known) -> None:
    """What the body did to the copies of a call repaired by plan."""
    for argument, source, copy, version in known.copies:
        if not copy.is_inference() and (copy._version != version or copy.requires_grad is not source.requires_grad):
            look_back_at(known.contract, argument, source, copy, version)


def _remember(call: Call, values: tuple[Any, ...], records: list[CastRecord], frame: FrameType | None) -> None:
    """Make a plan of what the reference just did, if it was simple: whole dense tensors, each cast once."""
    contract = call.contract
    names = [param.name for param in contract.params]
    edits = list(call.edits.values())
    sources = [edit.value for edit in edits]
    if (
        frame is None
        or contract.right is None
        or contract.verify is Verify.ALWAYS
        or len(contract.plans) >= _MOST
        or any(
            edit.path[1:] or type(edit.value) is not Tensor or edit.value.layout is not torch.strided for edit in edits
        )
        or len({id(source) for source in sources}) < len(sources)
        or len(records) != len(edits)
    ):
        return
    key = call_key(values)
    plan = contract.plans.get(key)
    if plan is None or plan.generation != generation():
        steps = [(names.index(str(edit.path[0])), edit.dtype, edit.device) for edit in edits]
        plan = contract.plans[key] = Plan(steps, contract.right(), _slots(contract, values), generation())
        if isinstance(values[0], nn.Module):  # the plan goes with the module whose parameters it looks at
            plan.module = weakref.ref(values[0], lambda _: contract.plans.pop(key, None))
    plan.records[frame.f_code.co_filename, frame.f_lineno] = records


def _slots(contract: Contract, values: tuple[Any, ...]) -> list[tuple[dict[str, Any], str]]:
    """Where the floating parameters of a call's module are; nothing where the anchor is not its own."""
    if contract.anchor != "self" or contract.dtype is not None or not isinstance(values[0], nn.Module):
        return []
    return [(table_of(values[0], path), path[-1]) for path, _ in floating(values[0])]


on_repair(_remember)
