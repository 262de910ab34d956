"""How a GradScaler is used, as the rules of family DG3 hear of it.

That gradients are scaled is known from a hook on the scaled loss, that they were written to from their version
counters at the end of its backward. Nothing in torch is patched.
"""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .._core.contract.containers import tensors_in
from .._engine.watch.events import tell
from .._engine.watch.ledger import Add
from .._engine.watch.lineage import Node
from .._engine.watch.rule import Rule
from .._engine.watch.sites import Site
from ._marks import Additions, Mark
from ._optimizer import PERIOD, SELDOM, WatchedOptimizer, due
from ._scaler import scale_of, scale_tensor, stage_of
from ._tensors import computed_in, local, spread, version_of

_PICKED = 4  # gradients of one optimizer whose values are compared, until one was written to
_TURNS = 8  # looks until every parameter was listened to
_JUDGED = 20  # how often gradients that were written to are looked at in full


@dataclasses.dataclass(eq=False)
class Driven:
    """One optimizer, as its scaler drives it."""

    watched: WatchedOptimizer
    named: bool = True  # somebody said that this scaler drives it
    losses: int = 0  # scaled since its last step
    begun: bool = False  # and the backward of one has begun
    unscaled: bool = False  # its gradients are divided by the scale already
    late: bool = False  # and the backward of another scaled loss reached them after that
    by_hand: bool = False  # somebody asked for the scale, perhaps to multiply or divide with it
    reached: list["_Reached"] = dataclasses.field(default_factory=list)  # for the length of some steps
    marks: list[Mark] = dataclasses.field(default_factory=list)
    additions: Additions = dataclasses.field(default_factory=Additions)
    now: bool = True  # everything is looked at in this iteration
    suspect: bool = False  # gradients were written to before they were unscaled
    judged: int = 0
    line: Site | None = None  # that wrote to them, where an audit saw it
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)  # what rules know from earlier steps
    iterations: int = 0
    skipped: int = 0
    skips: int = 0  # in a row

    @property
    def scaled(self) -> bool:
        """Whether its gradients are multiplied by the scale."""
        return self.begun and self.losses > 0 and not self.unscaled

    def stepped(self) -> None:
        """Forget what belongs to this iteration."""
        self.losses, self.marks, self.line = 0, [], None
        self.begun = self.unscaled = self.late = self.by_hand = False
        self.additions.begin()
        if self.reached:
            self.listen([])

    def listen(self, reached: list["_Reached"]) -> None:
        """Other hooks in the place of those there were."""
        for old in self.reached:
            old.remove()
        self.reached = reached


class Scaling:
    """A scaler under watch, and the optimizers that it drives."""

    follows = False  # into each backward, not only where everything is looked at

    def __init__(self, scaler: GradScaler, optimizers: Sequence[WatchedOptimizer], add: Add) -> None:
        self._scaler, self._add = weakref.ref(scaler), add
        self.device = str(getattr(scaler, "_device", "cuda"))
        before = getattr(scaler, "_scale", None) is not None  # a loss may have been scaled before the watch began
        self.driven = [Driven(watched, by_hand=before) for watched in optimizers]
        self.inside = False  # in the backward of a scaled loss
        self._depth = 0  # in `scaler.step`
        self._losses = self.updates = 0
        self._held: Tensor | None = None  # its scale, which it changes in place
        self.start = self.last = scale_of(scaler)  # at first, and when it was last looked at
        self.graphs = False  # a loss with a graph was scaled
        self.blind = False  # some scaled losses cannot be followed into their backward
        if len(optimizers) == 1 and not unscales_itself(optimizers[0].optimizer):  # one of several may be none of its
            self.tell("driven", self.driven[0])
        for driven in self.driven if scaler.is_enabled() else ():
            self._hook(driven)

    def join(self, watched: WatchedOptimizer, named: bool) -> None:
        """Another optimizer. Whether a loss was scaled for it before is not known."""
        driven = self._of(watched.optimizer)
        if driven is None:
            before = getattr(self._scaler(), "_scale", None) is not None
            driven = Driven(watched, named=False, by_hand=before)
            self.driven.append(driven)
            if self.enabled:
                self._hook(driven)
        driven.named |= named

    def part(self, optimizer: Any) -> None:
        """An optimizer that is gone, or that another scaler drives."""
        driven = self._of(optimizer)
        if driven is not None:
            driven.stepped()
            self.driven.remove(driven)

    @property
    def enabled(self) -> bool:
        scaler = self._scaler()
        return scaler is not None and scaler.is_enabled()

    @property
    def idle(self) -> bool:
        """Whether it scales nothing: switched off, or forgotten."""
        return not self.enabled or not self._losses

    @property
    def scaler(self) -> GradScaler | None:
        return self._scaler()

    def held(self) -> Tensor | None:
        """The scale as it lies on the device; that of a forgotten scaler too, but of none that is switched off."""
        scaler = self._scaler()
        if scaler is None:
            return self._held
        return scale_tensor(scaler) if scaler.is_enabled() else None

    def close(self) -> None:
        for driven in self.driven:
            driven.stepped()

    def tell(self, kind: str, *event: Any) -> None:
        """Ask the rules."""
        __tracebackhide__ = True
        tell(kind, *event, self)

    def find(self, rule: Rule, op: str, facts: dict[str, Any], **fields: Any) -> None:
        """Enter a finding about the scaler; one about parameters is for `Driven.watched`."""
        __tracebackhide__ = True
        facts = {"device": self.device, **facts}
        where = (op, facts.get("optimizer"))
        self._add(rule, where, f"GradScaler({self.device!r})", facts, op=op, **fields)

    def node_of(self, tensor: Tensor) -> Node | None:
        """The line that a tensor comes from, where somebody keeps lines."""
        return None

    def only(self, driven: Driven) -> bool:
        """Whether it is the one optimizer that somebody named with the scaler; others may be watched for themselves."""
        return [one for one in self.driven if one.named] == [driven]

    @property
    def scale(self) -> float:
        scaler = self._scaler()
        return 1.0 if scaler is None else scale_of(scaler)

    def _of(self, optimizer: Any) -> Driven | None:
        return next((driven for driven in self.driven if driven.watched.optimizer is optimizer), None)

    # ------------------------------------------------------------ the loss

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any:
        """`scaler.scale(outputs)`."""
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return scaled()
        now = not self.driven
        for driven in self.driven:
            driven.losses, driven.by_hand, now = driven.losses + 1, False, now or driven.now
        self._losses += 1
        self.inside = False  # a backward that raised did not end
        if not (now or self.follows):
            return scaled()
        if now:
            self.look_at_losses(list(tensors_in(outputs)))
        result = scaled()
        if isinstance(result, (Tensor, list, tuple)):
            for loss in tensors_in(result):
                self._follow(loss)
            return result
        return map(self._follow, result)  # what comes from an iterator is an iterator

    def _follow(self, loss: Any) -> Any:
        """Hear of a scaled loss's backward."""
        for tensor in tensors_in(loss):
            if tensor.requires_grad:
                tensor.register_hook(self.backward_begins)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    def look_at_losses(self, losses: list[Tensor]) -> None:
        __tracebackhide__ = True
        detached = bool(losses) and torch.is_grad_enabled() and not any(loss.requires_grad for loss in losses)
        seeds = detached and all(bool((loss == 1).all()) for loss in losses)  # `loss.backward(scaler.scale(ones))`
        self.blind |= seeds
        self.tell("scaled", losses, detached and not seeds)
        if detached:
            return
        self.graphs = True
        if due(self._losses, SELDOM):
            dtypes, whole = computed_in(losses)
            if whole and dtypes:
                self.tell("computed", dtypes)

    # ------------------------------------------------------------ its backward

    def backward_begins(self, gradient: Tensor) -> None:
        if not self.inside and not torch.compiler.is_compiling():
            self.inside = True
            for driven in self.driven:
                driven.begun = True
            _queue(lambda: _queue(self.backward_ended))  # the last of all: DDP writes its gradients in such a call

    def backward_ended(self) -> None:
        self.inside = False
        for driven in self.driven:
            pairs = driven.watched.gradients()
            picked = pairs if driven.suspect or self.follows else spread(pairs, _PICKED)
            valued = {id(parameter) for parameter, _ in picked}
            pairs = pairs if driven.now else picked  # a part of them may be clipped, with none that was picked
            driven.marks = [Mark(*pair, valued=id(pair[0]) in valued) for pair in pairs]
            if driven.now:
                driven.additions.expect(pairs, driven.losses)

    def _hook(self, driven: Driven) -> None:
        """Listen, for one step, which backwards reach the parameters: all of them early on, then each in its turn."""
        leaves = [parameter for parameter in driven.watched.parameters() if parameter.is_leaf]
        if driven.iterations >= PERIOD:
            leaves = leaves[driven.iterations // PERIOD % _TURNS :: _TURNS]
        driven.listen([_Reached(self, driven, parameter) for parameter in leaves])

    # ------------------------------------------------------------ unscale_, step, update

    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None:
        """`scaler.unscale_(optimizer)`, by the user or in `scaler.step`."""
        __tracebackhide__ = True
        driven = self._of(optimizer)
        if driven is None:
            return
        self.tell("unscale", driven, stage)
        if stage is OptState.READY:
            if driven.now:
                self.tell("driven", driven)
            self.look_at_gradients(driven, "GradScaler.unscale_")
            driven.unscaled = True

    def refused(self, optimizer: Optimizer) -> None:
        """The scaler did not take the gradients."""
        __tracebackhide__ = True
        driven = self._of(optimizer)
        if driven is not None:
            self.tell("driven", driven)

    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any:
        """`scaler.step(optimizer)`."""
        __tracebackhide__ = True
        driven, enabled = self._of(optimizer), self.enabled
        if driven is not None and enabled:
            self.tell("step", driven, stage)
            never_scaled = getattr(self._scaler(), "_scale", None) is None  # torch fails before it unscales
            if stage is OptState.READY and (never_scaled or unscales_itself(optimizer)):
                self.look_at_gradients(driven, "GradScaler.step")
        before = 0 if driven is None else driven.watched.steps
        if driven is not None:
            driven.watched.past = False
        self._depth += 1
        try:
            result = step()
        finally:
            self._depth -= 1
        if driven is not None and enabled:
            self._held = self.held()
            driven.stepped()
            self._count(driven, optimizer, silent=driven.watched.steps == before)
        return result

    def _count(self, driven: Driven, optimizer: Optimizer, silent: bool) -> None:
        """Whether the step was skipped; a compiled one says nothing, so the scaler is asked."""
        states: Any = getattr(self._scaler(), "_per_optimizer_states", {})
        found = states.get(id(optimizer), {}).get("found_inf_per_device", {}) if silent else {}
        skipped = any(bool(value) for value in found.values())
        driven.skipped += skipped
        driven.skips = driven.skips + 1 if skipped else 0
        self._next(driven)

    def _next(self, driven: Driven) -> None:
        """Another iteration begins."""
        driven.iterations += 1
        looks = due(driven.iterations + 1)
        driven.now = looks or driven.suspect
        if looks:
            self._hook(driven)

    def past(self, watched: WatchedOptimizer) -> None:
        """`optimizer.step()`; the scaler does not stand behind it."""
        __tracebackhide__ = True
        scaler, driven = self._scaler(), self._of(watched.optimizer)
        if self._depth or not self.enabled or driven is None or scaler is None:
            return
        if driven.losses and driven.by_hand:  # unscaled by hand: this iteration is over too
            driven.stepped()
            self._next(driven)
        if not driven.losses:
            return
        if not self.only(driven) and not any(True in reached.kinds for reached in driven.reached):
            return  # the scaled loss may be another optimizer's
        driven.stepped()
        self.tell("past", driven, stage_of(scaler, watched.optimizer))

    def asked(self) -> None:
        """`scaler.get_scale()`: to multiply a loss with, to divide gradients by, or only to log it."""
        for driven in self.driven:
            driven.by_hand = True

    def updated(self, given: bool) -> None:
        """`scaler.update()`, perhaps with a scale that the user gives."""
        __tracebackhide__ = True
        self.updates += 1
        for driven in self.driven:
            driven.unscaled = driven.late = False
        if given:
            self.start = self.last = self.scale
        if self.driven:
            self.tell("update")

    def unchecked(self) -> None:
        """`scaler.update()` has failed: no gradient was checked since the last one."""
        __tracebackhide__ = True
        self.tell("unchecked")

    # ------------------------------------------------------------ gradients

    def look_at_gradients(self, driven: Driven, op: str) -> None:
        """Just before gradients are unscaled: were they scaled, and did nothing else happen to them yet?"""
        __tracebackhide__ = True
        if not driven.watched.has_gradients():
            return
        if not driven.now and (driven.losses or driven.by_hand):
            driven.suspect = driven.judged < _JUDGED and driven.additions.strange(driven.losses)
            return
        written = [(mark, now) for mark in driven.marks if (now := mark.now()) is not None]
        driven.suspect = bool(written) and driven.judged < _JUDGED
        driven.judged += bool(written) and driven.now
        self.tell("gradients", driven, written, op)


class _Reached:
    """A hook on a parameter, for the length of one step: which backwards its gradient is the sum of.

    Not a hook after the accumulation: torch goes on to ask an empty table of those in each backward.
    """

    def __init__(self, scaling: Scaling, driven: Driven, parameter: Any) -> None:
        self._scaling, self._driven, self._parameter = scaling, driven, weakref.ref(parameter)
        self._known: tuple[weakref.ref[Tensor], int] | None = None  # the gradient before the last addition, its version
        self._kinds: set[bool] = set()
        self._early = False  # an unscaled part came before any scaled backward
        self._handle: RemovableHandle = parameter.register_hook(self)

    def __call__(self, added: Tensor) -> None:
        parameter = self.parameter
        if parameter is None or torch.compiler.is_compiling():
            return
        sum_so_far = parameter.grad
        if sum_so_far is None:
            self._kinds, self._early, self._known = set(), False, None
        else:
            version = version_of(sum_so_far)
            if self._known is None:
                fresh = version > 0 and not bool(local(sum_so_far).any())
            else:
                fresh = self._known[0]() is not sum_so_far or version > self._known[1] + 1
            if fresh:  # another one, or zeroed in place
                self._kinds, self._early = set(), False
            self._known = weakref.ref(sum_so_far), version
        self._driven.late |= self._driven.unscaled and self._scaling.inside
        self._kinds.add(self._scaling.inside)
        self._early = self._early or not (self._scaling.inside or self._driven.begun)

    def remove(self) -> None:
        """Leave nothing on the parameter, not even an empty table of hooks."""
        self._handle.remove()
        parameter = self.parameter
        if parameter is not None and not parameter._backward_hooks:
            parameter._backward_hooks = None

    @property
    def parameter(self) -> Tensor | None:
        return self._parameter()

    @property
    def kinds(self) -> set[bool]:
        """Whether the gradient has parts from scaled losses (True), and from others (False)."""
        parameter = self.parameter
        return set() if parameter is None or parameter.grad is None else self._kinds

    @property
    def alien(self) -> bool:
        """Whether it has a part that nobody scaled; the second half of a scaled backward comes after the first."""
        return len(self.kinds) > 1 or (self._early and bool(self.kinds))


def unscales_itself(optimizer: Any) -> bool:
    """Whether a fused optimizer unscales in its own kernel, so that float16 gradients are no obstacle."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _queue(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
