"""The parameters that optimizers hold, against those of their models."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .._engine.watch.events import tell
from .._engine.watch.rule import Rule
from ._names import Names
from ._optimizer import WatchedOptimizer
from ._tensors import is_copy

# A rule, the optimizer, facts, the parameters at fault, and those that no optimizer holds.
Claim = Callable[[Rule, WatchedOptimizer, dict[str, Any], list[Tensor], list[Tensor]], None]


class Holdings:
    """What is compared: master copies of half parameters are none of the strangers."""

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
