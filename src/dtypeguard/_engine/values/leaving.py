"""Where values enter a program as numbers of Python, and where they leave it: losses, outputs of models, gradients
that a step uses, parameters after it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..watch.events import Call, tensors_in
from ..watch.recorder import Recorder
from .ranges import GRADIENT as OF_GRADIENTS
from .ranges import OUTPUT
from .rows import Cause

LOSS, GRADIENT, PARAMETER = "a loss", "a gradient that a step uses", "a parameter after a step"
TRAINS = frozenset([LOSS, GRADIENT, PARAMETER])  # where NaN from outside does harm; elsewhere it is a gap
_MANY = 16  # tensors of one output that are looked at
_SPOILT = frozenset([Cause.BORN, Cause.STALLED, Cause.FLUSHED])


def begin(audit: Recorder) -> None:
    """Listen where values leave."""
    audit.on["left"].append(_outputs_leave)
    for name in ("backward", "grad"):
        audit.patches.replace(torch.autograd, name, functools.partial(_reading, audit, LOSS))
    for name in ("tolist", "numpy"):
        audit.patches.replace(Tensor, name, functools.partial(_reading, audit, "values that the program reads"))
    audit.patches.replace(torch, "tensor", functools.partial(_making, audit, 0))
    audit.patches.replace(Tensor, "__new__", functools.partial(_making, audit, 1))
    audit.patches.replace(GradScaler, "_unscale_grads_", functools.partial(_unscales, audit))
    audit.handles.append(register_optimizer_step_pre_hook(functools.partial(_hook, audit, _gradients_leave)))
    audit.handles.append(register_optimizer_step_post_hook(functools.partial(_hook, audit, _parameters_stepped)))


def _making(audit: Recorder, place: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.tensor(data)` and `torch.Tensor(data)`."""

    @functools.wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        out = original(*args, **kwargs)
        if audit.records_here and not audit.local.paused and not audit.resting and len(args) > place:
            audit.guarded(audit.values.made, args[place], out)
        return out

    return tensor


def _outputs_leave(call: Call, audit: Recorder) -> None:
    if audit.resting:
        return
    if audit.due("range", call.path):
        for _, tensor in list(tensors_in(call.output))[:_MANY]:
            audit.values.ranges.add(call.path, OUTPUT, tensor)
    if audit.local.modules:
        return
    site, due = audit.here(), audit.due("values", call.path)
    for _, tensor in list(tensors_in(call.output))[:_MANY] if due else ():
        audit.values.felt(f"the output of {call.path}", tensor, site=site)


def _reading(audit: Recorder, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if audit.records_here and not audit.local.paused and not audit.resting and args:
            audit.guarded(_values_leave, audit, what, args[0])
        return original(*args, **kwargs)

    return call


def _values_leave(audit: Recorder, what: str, values: Any) -> None:
    site = audit.here()
    for _, tensor in list(tensors_in(values))[:_MANY]:
        audit.values.felt(what, tensor, site=site)


def _unscales(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The audit does not look into what torch computes with its own scale."""

    @functools.wraps(original)
    def unscale(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        if audit.records_here:
            audit.values.scaled = True
            audit.guarded(_settle, audit, optimizer)
        return result

    return unscale


def _settle(audit: Recorder, optimizer: Optimizer) -> None:
    for parameter in [parameter for group in optimizer.param_groups for parameter in group["params"]]:
        audit.values.settle(parameter.grad)


def _hook(audit: Recorder, function: Callable[..., None], optimizer: Optimizer, arguments: Any, options: Any) -> None:
    if audit.records_here and not audit.local.paused and not audit.resting:
        audit.guarded(function, audit, optimizer)


def _gradients_leave(audit: Recorder, optimizer: Optimizer) -> None:
    if getattr(optimizer, "found_inf", None) is not None or not audit.due("values", id(optimizer)):
        return  # a GradScaler's fused step looks for itself
    site, owners = (
        audit.here(),
        {id(p): path for path, module in audit.modules() for p in module.parameters(recurse=False)},
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    audit.values.together(parameter.grad for parameter in parameters)
    for parameter in parameters:
        audit.values.felt(GRADIENT, parameter.grad, site=site, causes=_SPOILT)
        if id(parameter) in owners:
            audit.values.ranges.add(owners[id(parameter)], OF_GRADIENTS, parameter.grad)


def _parameters_stepped(audit: Recorder, optimizer: Optimizer) -> None:
    """From here on parameters are right as they are, for two runs of a training in two dtypes come apart anyway."""
    site, unseen = audit.here(), type(optimizer).__module__.startswith("torch.")  # the audit does not look inside
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    audit.values.stepped(parameters, f"{type(optimizer).__name__}.step", site)
    for parameter in parameters:
        state = optimizer.state.get(parameter, {}).values() if unseen else ()
        for tensor in (parameter, parameter.grad, *state):
            audit.values.settle(tensor)
