"""Walks over unannotated arguments of a guarded forward, for what is too long to be generated.

They return True if everything is right; at False the reference checker looks again.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from ..base import private
from ..base.config import Autocast
from ..base.dtypes import AUTOCAST, FLOATING, HALF
from ..check.reference import check_one, contains_dtype, same_device
from ..check.scope import scope
from ..check.state import is_returned
from ..contract.anchor import is_count, quiet
from ..contract.containers import SCALARS, are_scalars
from ..contract.model import Contract
from ..repair.plans import is_repaired


def scan(value: Any, dtype: torch.dtype | None, device: torch.device | None, contract: Contract) -> bool:
    """Whether everything in an unannotated argument surely is right; on False the reference checker looks again."""
    if type(value) is Tensor and dtype not in (None, value.dtype) and value.dtype in FLOATING and value.ndim:
        return False  # the usual case, after generated code has asked about autocast
    return _scan(value, dtype, device, device is not None and device.type == "cpu", contract)


def _scan(value: Any, dtype: Any, device: Any, cpu: bool, contract: Contract) -> bool:
    kind = type(value)
    if kind is tuple or kind is list:
        if kind is list and are_scalars(value):
            return True
        for item in value:
            if type(item) is Tensor and item.dtype is dtype and (item.is_cpu if cpu else item.device == device):
                continue
            if type(item) is tuple:  # key/value pairs: one level without a call
                for part in item:
                    if type(part) is not Tensor or part.dtype is not dtype:
                        break
                    if not (part.is_cpu if cpu else part.device == device):
                        break
                else:
                    continue
            if type(item) not in SCALARS and not _scan(item, dtype, device, cpu, contract):
                return False
        return True
    if isinstance(value, Tensor):
        if quiet(value):
            return _scan_tensor(value, dtype, device, contract)
        with private.no_function():
            return _scan_tensor(value, dtype, device, contract)
    if kind is dict:
        return all(_scan(item, dtype, device, cpu, contract) for item in value.values())
    return kind in SCALARS


def _scan_tensor(value: Tensor, dtype: Any, device: Any, contract: Contract) -> bool:
    found = value.dtype
    if found in FLOATING:
        if dtype is not None and found is not dtype:
            follows = contract.autocast is Autocast.FOLLOW and found in AUTOCAST and dtype in AUTOCAST
            if value.is_cpu and dtype in HALF and (contract.sides or contract.uncast):
                follows = False
            if not (follows and torch.is_autocast_enabled(value.device.type)) and not is_count(value, dtype):
                return False
    elif value.is_cpu and not contract.move_args:
        return True
    return device is None or same_device(value.device, device) or (value.is_cpu and not value.ndim)


def ask(contract: Contract, index: int | None, *known: Any) -> scope | None:
    """The axes after the reference has checked one argument, or the result; None if it must check the whole call."""
    call = None if torch.compiler.is_compiling() else check_one(contract, index, *known)
    return None if call is None else scope({}, call.axes, call.variadics)


def beside(
    contract: Contract,
    dtype: torch.dtype | None,
    device: torch.device | None,
    free: tuple[Any, ...],
    told: tuple[Any, ...],
) -> Any:
    """Whether what differs from the anchor's dtype are side inputs; if so, what to run the body in.

    `free` are the module and the arguments without an annotation, `told` the annotated ones.
    """
    card = free[0].__dict__.get("_dtypeguard")
    if dtype is None or card is None:
        return False
    shown, cpu = False, device is not None and device.type == "cpu"
    others = [*told]  # that may hold tensors somewhere
    for value in free[1:]:
        if value is None:
            continue
        if type(value) is Tensor:
            shown = shown or (value.dtype is dtype and value.ndim > 0 and not is_returned(free[0], value))
            if not (value.is_cpu if cpu else _scan_tensor(value, None, device, contract)):
                return False
        elif not _scan(value, None, device, cpu, contract):
            return False
        else:
            others.append(value)
    if not shown and not others:
        return False
    if not torch.compiler.is_compiling() and is_repaired(sys._getframe(1)):
        return False  # what was repaired cannot show whether the caller knows the model's dtype
    if not shown:
        with private.no_function():
            shown = any(contains_dtype(free[0], value, dtype) for value in others)
    if not shown:
        return False
    return left_alone(contract, free[0])


def left_alone(contract: Contract, module: Any) -> Any:
    """What to run the body in, where modules inside may refuse what the model lets pass; False to look again.

    True where that is nothing: Dynamo enters no context manager of ours, not even one that does nothing.
    """
    card = module.__dict__.get("_dtypeguard")
    if card is None or not card.follows:
        return True
    return card.opened(module) if not torch.compiler.is_compiling() and contract.wrapper is not None else False
