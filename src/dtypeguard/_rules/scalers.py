"""GradScalers that the audit meets where they are used, under the rules of family DG3."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from .._engine.watch.events import on
from .._engine.watch.lineage import Node
from .._engine.watch.recorder import Recorder
from ..amp._scaler import HEARD, is_generated, tell
from ..amp._scaling import Scaling
from ..amp._watch import not_eager, under_watch
from .optimizers import Optimizers, add_to
from .steps import unseen

_RULES = [*(f"DG3{n:02}" for n in range(1, 15) if n not in (2, 5)), "DG207"]
_TORCHS = ("unscale_", "update")


class Scaled(Scaling):
    """A scaler that the audit hears of; what goes wrong in that never reaches the program."""

    follows = True

    def __init__(self, scaler: GradScaler, audit: Recorder) -> None:
        self._audit = audit
        super().__init__(scaler, [], add_to(audit))

    def node_of(self, tensor: Tensor) -> Node | None:
        return self._audit.lineage.get(tensor)

    def backward_begins(self, gradient: Tensor) -> None:
        if self._audit.records_here:
            self._audit.guarded(super().backward_begins, gradient)

    def backward_ended(self) -> None:
        if self._audit.records_here:
            self._audit.guarded(super().backward_ended)

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any:
        result = self._run_rules_around(super().scaling, outputs, call=scaled)
        if isinstance(outputs, Tensor) and not outputs.requires_grad:  # only to make the scale, which is used by hand
            for driven in self.driven:
                driven.losses, driven.by_hand = driven.losses - 1, True
        return result

    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any:
        self._name(optimizer)
        return self._run_rules_around(super().stepping, optimizer, stage, call=step)

    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None:
        self._name(optimizer)
        self._audit.guarded(super().unscaling, optimizer, stage)

    def refused(self, optimizer: Optimizer) -> None:
        self._audit.guarded(super().refused, optimizer)

    def updated(self, given: bool) -> None:
        self._audit.guarded(super().updated, given)

    def unchecked(self) -> None:
        self._audit.guarded(super().unchecked)

    def asked(self) -> None:
        self._audit.guarded(super().asked)

    def prune(self) -> None:
        """Forget optimizers that are gone."""
        for driven in [driven for driven in self.driven if driven.watched.optimizer is None]:
            driven.stepped()
            self.driven.remove(driven)

    def _name(self, optimizer: Any) -> None:
        self._audit.guarded(self._audit.state(Scalers).name, self._audit, self, optimizer)

    def _run_rules_around(self, rules: Callable[..., Any], *event: Any, call: Callable[[], Any]) -> Any:
        """Run rules that run the call; it is recorded, they are not, and it runs once, whatever they do."""
        local = self._audit.local
        outside = local.paused
        results: list[Any] = []
        raised: list[BaseException] = []

        def run() -> Any:
            inside, local.paused = local.paused, outside
            try:
                results.append(call())
            except BaseException as error:
                raised.append(error)
                raise
            finally:
                local.paused = inside
            return results[0]

        local.paused += 1
        try:
            return rules(*event, run)
        except Exception as error:
            if error not in raised:
                self._audit.fault(error)
        finally:
            local.paused = outside
        if raised:
            raise raised[0]
        return results[0] if results else call()


class Scalers:
    """The scalers that an audit has met; none of them is kept alive."""

    def __init__(self) -> None:
        self._met: dict[int, Scaled] = {}
        self._inside = threading.local()

    def __iter__(self) -> Iterator[Scaled]:
        return (scaled for scaled in list(self._met.values()) if scaled.scaler is not None)

    def meet(self, audit: Recorder, scaler: GradScaler) -> Scaled:
        scaled = self._met.get(id(scaler))
        if scaled is None or scaled.scaler is not scaler:
            scaled = self._met[id(scaler)] = Scaled(scaler, audit)
        scaled.prune()
        optimizers = audit.state(Optimizers)
        for watched in under_watch():  # the program's own watches know some
            optimizers.meet(audit, watched.optimizer)
        for met in optimizers:
            if met.scaler is None:  # it may be this one's
                scaled.join(met.watched, named=False)
        return scaled

    def name(self, audit: Recorder, scaled: Scaled, optimizer: Any) -> None:
        """A scaler is called with an optimizer, so no other one drives it."""
        met = audit.state(Optimizers).meet(audit, optimizer)
        if met is not None and met.scaler is not scaled:
            met.scaler = scaled
            scaled.join(met.watched, named=True)
            for other in self:
                if other is not scaled:
                    other.part(optimizer)

    @contextlib.contextmanager
    def within(self, scaler: GradScaler, name: str) -> Iterator[bool]:
        """Whether a method is called from outside, and not by the same one of a subclass."""
        inside: set[tuple[int, str]] = vars(self._inside).setdefault("calls", set())
        key = id(scaler), name
        if key in inside:
            yield False
            return
        inside.add(key)
        try:
            yield True
        finally:
            inside.discard(key)

    def forget(self) -> None:
        for scaled in self._met.values():
            scaled.close()
        self._met.clear()


# ---------------------------------------------------------------- hearing


@on("start", *_RULES)
def replace(audit: Recorder) -> None:
    for kind in (GradScaler, *_subclasses(GradScaler)):
        for name in HEARD:
            if name in vars(kind):
                audit.patches.replace(kind, name, functools.partial(_method, audit, name))
    for scaler in audit.scalers:
        audit.state(Scalers).meet(audit, scaler)


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        if not is_generated(below):
            yield below
            yield from _subclasses(below)


def _method(audit: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    scalers = audit.state(Scalers)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not audit.records_here or audit.local.paused or not_eager():
            return original(self, *args, **kwargs)
        with scalers.within(self, name) as outermost:
            scaled = audit.guarded(scalers.meet, audit, self) if outermost else None
            call = functools.partial(original, self, *args, **kwargs)
            if name in _TORCHS:
                call = functools.partial(_quietly, audit, call)
            if scaled is None:
                return call()
            return tell(name, self, [scaled], call, args, kwargs)

    return method


def _quietly(audit: Recorder, call: Callable[[], Any]) -> Any:
    """What torch computes with its own scale is no work of the program."""
    with unseen(audit):
        return call()


@on("end", *_RULES)
def close(audit: Recorder) -> None:
    audit.state(Scalers).forget()
