"""One optimizer under watch: what it holds, and when that is looked at.

Dtypes of gradients are read at every step; everything else when one of them changed, at the first few steps,
and then at every fiftieth.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._engine.watch.events import tell
from .._engine.watch.ledger import Add
from .._engine.watch.rule import Rule
from ._names import Names
from ._tensors import is_copy

PERIOD = 50
SELDOM = 500  # what takes longest, and changes least
_EARLY = frozenset({1, 2, 4, 8, 16, 32})


def due(step: int, period: int = PERIOD) -> bool:
    """Whether a step is one of those at which everything is looked at."""
    return step % period == 0 or step in _EARLY


def is_torchs(optimizer: Any) -> bool:
    """Whether the step is PyTorch's own: state like the parameters, no master weights, no stochastic rounding."""
    module: str = type(optimizer).step.__module__
    return module.startswith("torch.optim.")


class WatchedOptimizer:
    """One optimizer under watch; it is not kept alive."""

    def __init__(
        self, optimizer: Optimizer, title: str, names: Names, add: Add, every: int = 1, hooks: int = 1
    ) -> None:
        """`hooks`: how many hooks on the optimizer before its step are the watch's own."""
        self._optimizer = weakref.ref(optimizer)
        self.title, self._names, self._add, self._every, self._hooks = title, names, add, every, hooks
        self.steps = 0
        self.now = False  # everything is looked at in this step
        self.late = False  # gradients may change, or be left out, in this step
        self.past = False  # the last step went past the scaler, which DG312 tells: nobody has checked its gradients
        self.kept: dict[Any, Any] = {}  # what rules know from earlier steps
        self.since: Callable[[Tensor], tuple[str, ...]] = lambda parameter: ()  # its conversion, where an audit saw it
        # Of gradients, else of parameters: of each, and the one that a whole group has.
        self._dtypes: list[tuple[list[torch.dtype], torch.dtype | None]] = []
        self._some: tuple[Any, ...] = ()  # dtypes of a few parameters, and of the state of one
        self._was: dict[int, tuple[weakref.ref[Tensor], torch.dtype]] = {}
        self._remember(optimizer)

    @property
    def optimizer(self) -> Optimizer | None:
        return self._optimizer()

    def groups(self) -> list["Group"]:
        optimizer = self.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        return [Group(self, number, options) for number, options in enumerate(groups)]

    def parameters(self) -> Iterator[Tensor]:
        """The parameters that autograd gives gradients to."""
        return (parameter for parameter in self.held() if parameter.requires_grad)

    def held(self) -> Iterator[Tensor]:
        """All parameters; a master copy may get its gradient from the program."""
        optimizer = self.optimizer
        for group in [] if optimizer is None else optimizer.param_groups:
            yield from group["params"]

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return [(parameter, parameter.grad) for parameter in self.parameters() if parameter.grad is not None]

    def gradients_of_model(self) -> list[Tensor]:
        return [parameter.grad for parameter, _ in self._names.named() if parameter.grad is not None]

    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters())

    def names_of(self, parameters: Iterable[Tensor]) -> list[str]:
        return list(dict.fromkeys(self._names.of(parameter) for parameter in parameters))

    def was(self, parameter: Tensor) -> torch.dtype:
        """The dtype of a parameter when it was first seen."""
        return self._was[id(parameter)][1]

    def state_of(self, parameter: Tensor) -> Mapping[str, Any]:
        """The state of a parameter by name; optimizers may keep there what they like."""
        state = getattr(self.optimizer, "state", {}).get(parameter)
        return state if isinstance(state, Mapping) else {}

    def add(
        self,
        rule: Rule,
        facts: dict[str, Any],
        parameters: Iterable[Tensor],
        *,
        group: int | None = None,
        kind: str = "",
        **fields: Any,
    ) -> None:
        """Enter a finding about parameters, of one group or of any; it is another one for each `kind`."""
        __tracebackhide__ = True
        subject = self.title if group is None else f"{self.title}, parameter group {group}"
        fields = {"op": f"{self.title}.step", "parameters": self.names_of(parameters), **fields}
        facts = {"optimizer": self.title, "held": self.optimizer, **facts}
        self._add(rule, (self.title, group, kind), subject, facts, **fields)

    def due(self, period: int = PERIOD, ahead: int = 0) -> bool:
        """Whether everything is looked at in this step, or in the one ahead."""
        step, rest = divmod(self.steps + ahead, self._every)
        return not rest and due(step, period)

    def look(self) -> None:
        """Ask the rules of parameters, state and hyperparameters, as they are now."""
        __tracebackhide__ = True
        optimizer = self.optimizer
        if optimizer is not None:
            self._remember(optimizer)
            for group in self.groups():
                tell("look", group)

    def before_step(self, closure: bool) -> None:
        """A step begins; with a closure it makes its gradients itself."""
        __tracebackhide__ = True
        optimizer = self.optimizer
        self.steps += 1
        if optimizer is None or self.steps % self._every:
            return
        self.now = self.due()
        if self.now or self._changed(optimizer, closure):
            self.look()
        hooks = len(getattr(optimizer, "_optimizer_step_pre_hooks", ()))
        self.late = closure or not is_torchs(optimizer) or hooks > self._hooks
        tell("stepping", self)

    def after_step(self) -> None:
        __tracebackhide__ = True
        if (self.now or self.late) and self.optimizer is not None and not self.steps % self._every:
            tell("stepped", self)

    def _changed(self, optimizer: Optimizer, closure: bool) -> bool:
        """Whether any gradient (parameter, if gradients are still to come) has another dtype than last time.

        This is every step's work: 0.1 us for each parameter.
        """
        groups = optimizer.param_groups
        if len(groups) != len(self._dtypes) or _some_dtypes(optimizer) != self._some:
            return True
        for group, (dtypes, whole) in zip(groups, self._dtypes, strict=True):
            parameters = group["params"]
            if len(parameters) != len(dtypes):
                return True
            if not closure and whole is not None:
                try:
                    for parameter in parameters:
                        if parameter.grad.dtype is not whole:
                            return True
                    continue
                except AttributeError:  # one without a gradient
                    pass
            for parameter, dtype in zip(parameters, dtypes, strict=True):
                tensor = parameter if closure else parameter.grad
                if tensor is not None and tensor.dtype is not dtype:
                    return True
        return False

    def _remember(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        known = [[p.dtype if p.grad is None else p.grad.dtype for p in group["params"]] for group in groups]
        self._dtypes = [(dtypes, dtypes[0] if len(set(dtypes)) == 1 else None) for dtypes in known]
        self._some = _some_dtypes(optimizer)
        for group in groups:
            for parameter in group["params"]:
                was = self._was.get(id(parameter))
                if was is None or was[0]() is not parameter:
                    self._was[id(parameter)] = (weakref.ref(parameter), parameter.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A parameter group of an optimizer under watch."""

    watched: WatchedOptimizer
    number: int
    options: dict[str, Any]

    def parameters(self) -> list[Tensor]:
        """Those that may move."""
        return [parameter for parameter in self.options["params"] if parameter.requires_grad]

    def add(self, rule: Rule, facts: dict[str, Any], parameters: Iterable[Tensor], **fields: Any) -> None:
        """Enter a finding about parameters of this group; see `WatchedOptimizer.add`."""
        __tracebackhide__ = True
        self.watched.add(rule, facts, parameters, group=self.number, **fields)


def _some_dtypes(optimizer: Optimizer) -> tuple[Any, ...]:
    """Some dtypes that change where all change: `param.data` replaced, or a state that was converted."""
    groups = optimizer.param_groups
    parameters = groups[0]["params"] if groups else ()
    if not parameters:
        return ()
    first, state = parameters[0], optimizer.state.get(parameters[0])
    dtypes = first.dtype, parameters[-1].dtype
    return (*dtypes, *[v.dtype for v in state.values() if isinstance(v, Tensor)]) if type(state) is dict else dtypes


# ---------------------------------------------------------------- against what models have

# A rule, the optimizer, facts, the parameters at fault, and those that no optimizer holds.
Claim = Callable[[Rule, WatchedOptimizer, dict[str, Any], list[Tensor], list[Tensor]], None]


class Holdings:
    """Which parameters optimizers and models hold; master copies of half parameters are none of the strangers."""

    def __init__(
        self, names: Names, optimizers: Sequence[WatchedOptimizer], held: set[int], stepping: bool, claim: Claim
    ) -> None:
        """`held` are the ids of all parameters that any optimizer holds; `stepping`: gradients are there."""
        self.names, self.optimizers, self.stepping, self.claim = names, optimizers, stepping, claim
        self.stale = False  # some are tensors that the model no longer has
        self.trainable = [parameter for parameter, _ in names.named() if parameter.requires_grad]
        missing = [parameter for parameter in self.trainable if id(parameter) not in held]
        strangers = {one: [p for p in one.held() if not names.has(p)] for one in optimizers}
        copied = {id(p): next((m for m in missing if is_copy(p, m)), None) for ps in strangers.values() for p in ps}
        masters = set(map(id, copied.values()))
        self.missing = [p for p in missing if id(p) not in masters]
        self.strangers = {
            one: [p for p in ps if copied[id(p)] is None and p.requires_grad] for one, ps in strangers.items()
        }


def compare(names: Names, optimizers: Sequence[WatchedOptimizer], held: set[int], stepping: bool, claim: Claim) -> None:
    """Ask the rules, unless a model is gone, of which nothing can be said."""
    __tracebackhide__ = True
    if not names.gone:
        tell("held", Holdings(names, optimizers, held, stepping, claim))
