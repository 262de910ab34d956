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

from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _python_dispatch

from .._engine.watch.events import on
from .._engine.watch.patches import around
from .._engine.watch.recorder import Recorder
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
    audit.handles.append(register_optimizer_step_pre_hook(functools.partial(_pause, audit)))


@around(record_function, "__enter__", always=True)
def _begins(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    if audit.records_here and self.name.startswith(_NAME):
        audit.state(Steps).running.append(Step(self))
    return original(self)


@around(record_function, "__exit__", always=True)
def _ends(audit: Recorder, original: Callable[..., Any], self: Any, *error: Any) -> Any:
    running = audit.state(Steps).running
    if any(step.record is self for step in running):
        step = None
        while step is None or step.record is not self:
            step = running.pop()
            _resume(audit, step)
    return original(self, *error)


@around(Optimizer, "_optimizer_step_code", always=True)
def _done(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    """Stands in for what torch calls between a step and the hooks after it."""
    running = audit.state(Steps).running
    if running:
        running[-1].over = True
        _resume(audit, running[-1])
    return original(self)


def _pause(audit: Recorder, optimizer: Optimizer, arguments: Any, options: Any) -> None:
    running = audit.state(Steps).running
    if not running or not audit.records_here or has_closure(arguments, options) or not is_torchs(optimizer):
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
