"""The optimizers that an audit has met, under the rules of `amp.watch`."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._engine.watch.ledger import Add
from .._engine.watch.recorder import Recorder
from .._engine.watch.rule import Rule
from .._engine.watch.sites import Site
from ..amp._names import Names
from ..amp._optimizer import WatchedOptimizer
from ..amp._watch import under_watch


def add_to(audit: Recorder) -> Add:
    """What stands in an audit for the ledger of a watch: nothing is warned of or raised."""

    def add(rule: Rule, where: Any, subject: str, facts: Any, *, site: Site | None = None, **fields: Any) -> None:
        audit.find(rule, site or audit.user(), facts=facts, about=repr(where), **fields)

    return add


class Known(Names):
    """The parameters of one optimizer by name, as far as modules were seen that have them."""

    def __init__(self, audit: Recorder, optimizer: Optimizer) -> None:
        self._audit, self._optimizer = audit, weakref.ref(optimizer)
        self._seen = 0
        super().__init__([])

    def refresh(self) -> None:
        optimizer, every = self._optimizer(), dict(roots(self._audit))
        held = set() if optimizer is None else {id(parameter) for parameter in parameters_of(optimizer)}
        mine = {path: root for path, root in every.items() if any(id(p) in held for p in root.parameters())}
        self._hold(list(mine.values()), list(mine))
        self._seen = len(every)
        super().refresh()

    def of(self, parameter: Tensor) -> str:
        if not self.has(parameter) and self._seen != sum(1 for _ in roots(self._audit)):
            self.refresh()
        return super().of(parameter)


def roots(audit: Recorder) -> Iterator[tuple[str, nn.Module]]:
    """Modules that no other one holds, as far as they were seen."""
    return ((path, module) for path, module in audit.modules() if "." not in path)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


@dataclass(eq=False)
class Met:
    """An optimizer that was seen."""

    ref: weakref.ref[Optimizer]
    watched: WatchedOptimizer
    names: Known
    early: bool  # it was handed over, or built while the audit was on
    scaler: Any = None  # what is known of the scaler that was called with it


class Optimizers:
    """Those that an audit has met. None of them is kept alive."""

    def __init__(self) -> None:
        self._met: dict[int, Met] = {}
        self._once: dict[int, weakref.ref[Tensor]] = {}  # parameters of an optimizer that may be gone

    def meet(self, audit: Recorder, optimizer: Any, early: bool = False) -> Met | None:
        """What is known of an optimizer; None for one that cannot be watched."""
        met = self._met.get(id(optimizer))
        if met is not None and met.ref() is optimizer:
            return met
        if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "param_groups") or _may_swap(optimizer):
            return None
        if not all(parameter.is_leaf for parameter in parameters_of(optimizer)):  # one that is differentiated
            return None
        names = Known(audit, optimizer)
        watched = WatchedOptimizer(optimizer, self._title(optimizer), names, add_to(audit), hooks=0)
        watched.since = audit.lineage.since
        met = self._met[id(optimizer)] = Met(weakref.ref(optimizer), watched, names, early)
        self._once.update((id(parameter), weakref.ref(parameter)) for parameter in parameters_of(optimizer))
        return met

    def _title(self, optimizer: Optimizer) -> str:
        for key in [key for key, met in self._met.items() if met.ref() is None]:
            del self._met[key]
        kind = type(optimizer).__name__
        taken = {met.watched.title for met in self._met.values()}
        return next(title for n in range(1, 10_000) if (title := kind if n == 1 else f"{kind}#{n}") not in taken)

    def __iter__(self) -> Iterator[Met]:
        return (met for met in list(self._met.values()) if met.ref() is not None)

    def held(self) -> set[int]:
        """The ids of all parameters that an optimizer has, or had."""
        now = [met.watched for met in self] + under_watch()
        once = {key for key, ref in self._once.items() if ref() is not None}
        return once.union(id(parameter) for watched in now for parameter in watched.parameters())

    def forget(self) -> None:
        """Leave no weak reference on a parameter: PyTorch swaps none that has one."""
        self._met.clear()
        self._once.clear()


def _may_swap(optimizer: Optimizer) -> bool:
    """Whether a conversion may swap its parameters, which PyTorch refuses where anybody has weak references."""
    if torch.__future__.get_swap_module_params_on_conversion():
        return True
    return any(is_traceable_wrapper_subclass(parameter) for parameter in parameters_of(optimizer))
