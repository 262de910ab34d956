"""DG302, DG305 and DG4: optimizers, which the audit notices where they are built, and where they step.

The rules are those of `amp.watch`.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .._core.check.regions import autocast_enabled
from .._engine.watch.events import Call, on, tell
from .._engine.watch.recorder import Recorder
from .._engine.watch.rule import Rule
from .._engine.watch.sites import Site
from ..amp._names import Names
from ..amp._optimizer import SELDOM, WatchedOptimizer, compare
from ..amp._watch import OWN, has_closure, not_eager
from .optimizers import Met, Optimizers, roots
from .scalers import Scalers

_RULES = [f"DG4{n:02}" for n in (1, 2, 3, 4, 5, 6, 8)] + [f"DG3{n:02}" for n in range(1, 15)]


@dataclass(eq=False)
class Suspicion:
    """A claim that holds if no optimizer that has the missing parameters was met by the end."""

    rule: Rule
    optimizer: str
    facts: dict[str, Any]
    site: Site
    names: list[str]
    missing: list[weakref.ref[Tensor]]
    early: bool
    looks: int = 1


@dataclass(eq=False)
class Training:
    """What is known of the program's training besides its optimizers and scalers."""

    sixteen: set[int] = field(default_factory=set)  # ids of parameters that float16 autocast has cast
    suspicions: dict[tuple[WatchedOptimizer, Rule], Suspicion] = field(default_factory=dict)


@on("start", *_RULES)
def replace(audit: Recorder) -> None:
    optimizers = audit.state(Optimizers)
    for optimizer in audit.optimizers:
        optimizers.meet(audit, optimizer, early=True)
    audit.patches.replace(Optimizer, "__init__", functools.partial(_built, audit))
    audit.handles.append(register_optimizer_step_pre_hook(functools.partial(_hook, audit, _before_step)))
    audit.handles.append(register_optimizer_step_post_hook(functools.partial(_hook, audit, _after_step)))
    for owner, names in OWN:  # what a watch of the program's own does with tensors is no work of the program
        for name in names:
            audit.patches.replace(owner, name, functools.partial(_quiet, audit))


def _quiet(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with audit.paused():
            return original(*args, **kwargs)

    return quiet


def _built(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    optimizers = audit.state(Optimizers)

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if audit.records_here:
            audit.guarded(optimizers.meet, audit, self, True)

    return build


def _hook(audit: Recorder, function: Callable[..., None], optimizer: Optimizer, arguments: Any, options: Any) -> None:
    if audit.records_here and not not_eager():
        audit.guarded(_call_if_met, audit, function, optimizer, has_closure(arguments, options))


def _call_if_met(audit: Recorder, function: Callable[..., None], optimizer: Optimizer, closure: bool) -> None:
    met = audit.state(Optimizers).meet(audit, optimizer)
    if met is not None:
        function(audit, met, closure)


def _before_step(audit: Recorder, met: Met, closure: bool) -> None:
    watched = met.watched
    for scaled in audit.state(Scalers):
        scaled.past(watched)
    _half_without_scaler(audit, met)
    if watched.due(SELDOM, ahead=1):
        _compare_with_models(audit, met, stepping=not closure)
    watched.before_step(closure)


def _after_step(audit: Recorder, met: Met, closure: bool) -> None:
    if closure and met.watched.due(SELDOM):
        _compare_with_models(audit, met, stepping=True)
    met.watched.after_step()


@on("end", *_RULES)
def close(audit: Recorder) -> None:
    training, optimizers = audit.state(Training), audit.state(Optimizers)
    held = optimizers.held()
    for suspicion in training.suspicions.values():
        missing = [parameter for ref in suspicion.missing if (parameter := ref()) is not None]
        told = suspicion.early or suspicion.looks > 1
        if told and not any(id(parameter) in held for parameter in missing):
            title = suspicion.optimizer
            facts, fields = {"optimizer": title, **suspicion.facts}, {"about": title, "op": f"{title}.step"}
            audit.find(suspicion.rule, suspicion.site, facts=facts, parameters=suspicion.names, **fields)
    training.suspicions.clear()
    for met in optimizers:
        tell("over", met.watched)
    optimizers.forget()


# ---------------------------------------------------------------- DG305: what float16 autocast has cast


@on("entered", "DG305")
def region(call: Call, audit: Recorder) -> None:
    """Which parameters a layer casts to float16, to train them."""
    module, sixteen = call.module, audit.state(Training).sixteen
    cast = audit.autocast()
    if not (cast or sixteen) or not module.training or not torch.is_grad_enabled():
        return
    for parameter in module._parameters.values():
        if parameter is not None and parameter.ndim > 1 and parameter.requires_grad:
            device = parameter.device.type
            half = cast and autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16
            (sixteen.add if half else sixteen.discard)(id(parameter))


def _half_without_scaler(audit: Recorder, met: Met) -> None:
    sixteen = audit.state(Training).sixteen
    if not sixteen:
        return
    mine = [parameter for parameter in met.watched.parameters() if id(parameter) in sixteen]
    sixteen.difference_update(map(id, mine))
    enabled = [scaled.enabled for scaled in audit.state(Scalers)]
    if mine and met.watched.due(ahead=1) and not any(enabled):
        tell("alone", met.watched, torch.float16, mine[0].device.type, bool(enabled))


# ---------------------------------------------------------------- DG401, DG402


def _compare_with_models(audit: Recorder, met: Met, stepping: bool) -> None:
    """Optimizers that were built before the audit are met when they step, so the verdict is given at the end."""
    held = audit.state(Optimizers).held()
    met.names.refresh()
    names: Names = met.names if met.names.models() else _unheld(audit, met, held)
    suspicions = audit.state(Training).suspicions

    def suspect(rule: Rule, watched: WatchedOptimizer, facts: Any, wrong: list[Tensor], missing: list[Tensor]) -> None:
        if (watched, rule) in suspicions:
            suspicions[watched, rule].looks += 1
            return
        refs = [weakref.ref(parameter) for parameter in missing]
        said = list(dict.fromkeys(map(names.of, wrong)))
        suspicions[watched, rule] = Suspicion(rule, watched.title, facts, audit.user(), said, refs, met.early)

    if names.models():
        compare(names, [met.watched], held, stepping, suspect)


def _unheld(audit: Recorder, met: Met, held: set[int]) -> Names:
    """Models with gradients for nobody, beside an optimizer that gets none."""
    if any(p.is_leaf and p.grad is not None for p in met.watched.parameters()):
        return Names([])
    models = {}
    for path, root in roots(audit):
        trainable = [parameter for parameter in root.parameters() if parameter.requires_grad]
        if any(p.is_leaf and p.grad is not None for p in trainable) and not any(id(p) in held for p in trainable):
            models[path] = root
    return Names(list(models.values()), list(models))
