"""Steps of optimizers: what PyTorch's own do inside is not recorded.

Operations in there are many, and nobody's mistake. Hooks after a step do not run when it raises, so its end is known
from the function that ends torch's own record of it.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _python_dispatch

from .._watch.events import on
from .._watch.recorder import Recorder
from ..amp._optimizer import is_torchs
from ..amp._watch import Hooks, has_closure

_NAME = "Optimizer.step#"  # of a step's record


@dataclass(eq=False)
class Step:
    """One that is running, or something else that is not recorded."""

    record: Any
    paused: bool = False
    popped: bool = False  # the mode is off
    over: bool = False  # what follows are hooks


class Steps(threading.local):
    """Those of each thread, one in another."""

    def __init__(self) -> None:
        self.running: list[Step] = []

    @property
    def inside(self) -> bool:
        """Whether an optimizer is at work, and not its hooks."""
        return any(not step.over for step in self.running)


@on("start")
def replace(audit: Recorder) -> None:
    record = torch.autograd.profiler.record_function
    audit.patches.replace(record, "__enter__", functools.partial(_begins, audit))
    audit.patches.replace(record, "__exit__", functools.partial(_ends, audit))
    audit.patches.replace(Optimizer, "_optimizer_step_code", functools.partial(_done, audit))
    audit.handles.append(register_optimizer_step_pre_hook(functools.partial(_pause, audit)))


def _begins(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    steps = audit.state(Steps)

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if audit.live and self.name.startswith(_NAME):
            steps.running.append(Step(self))
        return original(self)

    return enter


def _ends(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    steps = audit.state(Steps)

    @functools.wraps(original)
    def leave(self: Any, *error: Any) -> Any:
        if any(step.record is self for step in steps.running):
            step = None
            while step is None or step.record is not self:
                step = steps.running.pop()
                _resume(audit, step)
        return original(self, *error)

    return leave


def _done(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for what torch calls between a step and the hooks after it."""
    steps = audit.state(Steps)

    @functools.wraps(original)
    def _optimizer_step_code(self: Any) -> Any:
        if steps.running:
            steps.running[-1].over = True
            _resume(audit, steps.running[-1])
        return original(self)

    return _optimizer_step_code


def _pause(audit: Recorder, optimizer: Optimizer, arguments: Any, options: Any) -> None:
    running = audit.state(Steps).running
    if not running or not audit.live or has_closure(arguments, options) or not is_torchs(optimizer):
        return
    if not all(isinstance(getattr(hook, "__self__", None), Hooks) for hook in _hooks(optimizer)):
        return  # somebody's own code comes before the step
    _rest(audit, running[-1])


def _rest(audit: Recorder, step: Step) -> None:
    step.paused = True
    audit.local.paused += 1
    if _python_dispatch._get_current_dispatch_mode() is audit._mode:
        step.popped = True
        _python_dispatch._pop_mode()  # it costs time, and foreach operations count no versions below it


def _hooks(optimizer: Optimizer) -> Iterable[Any]:
    return getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()


def _resume(audit: Recorder, step: Step) -> None:
    if step.popped:
        step.popped = False
        _python_dispatch._push_mode(audit._mode)
    if step.paused:
        step.paused = False
        audit.local.paused -= 1


@contextlib.contextmanager
def unseen(audit: Recorder) -> Iterator[None]:
    """What is in here is torch's own work."""
    step = Step(None)
    _rest(audit, step)
    try:
        yield
    finally:
        _resume(audit, step)
