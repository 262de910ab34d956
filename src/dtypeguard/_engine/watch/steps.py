"""Which steps of a program an audit looks at; in between its dispatch mode is off, so that they cost nothing."""

import threading
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

POWERS = "2^k"
_NOTHING = 3  # operations with which no step begins: the ends of what an optimizer records, of `step` and `zero_grad`


class Enough(SystemExit):
    """Ends a program of which enough was seen; nothing of it went wrong."""


class Steps:
    """Counts steps, and switches the mode on and off between them.

    A step of a training ends when all optimizers that have stepped before have done so again, or one of them twice.
    Until one has, each call of an outermost module begins a step; later on such a call without gradients, as of a
    validation, is a step of its own. Only the thread in which the audit began has steps.

    Attributes:
        trained: steps that have ended.
        resting: whether this step is not looked at.
        last: the step after which the program is to end; None for none.
    """

    def __init__(self, audit: Any, every: str | int) -> None:
        self._audit = audit
        self.every: str | int = every
        self.trained: int = 0
        self._looked, self._since = 0, 0
        self.resting: bool = False
        self.last: int | None = None
        self._calls = 0
        self._thread = 0
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._stepped: WeakSet[Optimizer] = WeakSet()  # in this step

    @property
    def number(self) -> int:
        """Of the step that runs, from 1."""
        return self.trained + 1 if self.trained else max(self._calls, 1)

    @property
    def looked(self) -> int:
        """Steps and calls that were looked at; not one in which nothing has run yet."""
        ran = self._audit.operations - self._since > _NOTHING
        return self._looked - (self._looked > 1 and not self.resting and not ran)

    @property
    def asleep(self) -> bool:
        """Whether no call of a module ends this: the program trains, and its step is not looked at."""
        return self.resting and self.trained > 0 and torch.is_grad_enabled()

    def begin(self) -> None:
        """The first step is looked at."""
        self._audit.handles.append(register_optimizer_step_post_hook(self._optimized))
        self._looked, self._thread = 1, threading.get_ident()

    def _due(self, number: int) -> bool:
        if isinstance(self.every, int):
            return (number - 1) % self.every == 0
        return number & (number - 1) == 0

    def _optimized(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._audit.records_here or self._audit.local.paused or threading.get_ident() != self._thread:
            return
        again = optimizer in self._stepped
        self._stepped.add(optimizer)
        if again or self._stepped >= self._optimizers:
            self._optimizers = self._stepped
            self._stepped = WeakSet()
            self.trained += 1
            if self.trained == self.last:
                raise Enough
            self._switch(self._due(self.trained + 1))
        self._optimizers.add(optimizer)

    def enters(self) -> bool | None:
        """An outermost module is called; what to hand to `leaves`."""
        if (self.trained and torch.is_grad_enabled()) or threading.get_ident() != self._thread:
            return None
        self._calls += 1
        rested = self.resting if self.trained else None
        if self._calls > 1 or self.trained:
            self._switch(self._due(self._calls))
        return rested

    def leaves(self, rested: bool | None) -> None:
        """It has returned: a validation is over."""
        if rested is not None:
            self._switch(not rested)

    def _switch(self, on: bool) -> None:
        """Look at what comes, or do not; values are known anew where steps were not looked at."""
        if on:
            self._looked, self._since = self._looked + 1, self._audit.operations
        if on is not self.resting:
            return
        audit = self._audit
        if on:
            self.resting = False
            audit.guarded(audit.values.wake)
            audit.mode_on()
        else:
            audit.mode_off()
            self.resting = True
            audit.guarded(audit.values.rest)
