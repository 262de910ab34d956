"""How a GradScaler is used: the rules of family DG3.

Floor 5. That gradients are scaled is known from a hook on the scaled loss, that they were clipped from their version
counters at the end of its backward. Nothing in torch is patched.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .._errors import plain
from .._ledger import Ledger
from ._optimizer import PERIOD, SELDOM, WatchedOptimizer, due
from ._scaler import leave, listen, scale_of, stage_of
from ._tensors import HALF, computed_in, local, norm_of, sample, spread

_PICKED = 4  # gradients of one optimizer whose versions are compared
_TURNS = 8  # looks until every parameter was listened to
_JUDGED = 20  # how often gradients that were written to are looked at in full


class _Mark:
    """A gradient as the scaled backward left it."""

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        values = sample(gradient)
        self.values = None if values is None else values.clone()
        self._parameter, self._gradient = weakref.ref(parameter), id(gradient)
        self._version = _version(gradient)

    def now(self) -> Tensor | None:
        """The gradient, if it is the same tensor and was written to since."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or id(gradient) != self._gradient or _version(gradient) == self._version:
            return None
        return gradient


@dataclasses.dataclass(eq=False)
class _Driven:
    """One optimizer, as its scaler drives it."""

    watched: WatchedOptimizer
    losses: int = 0  # scaled since its last step
    by_hand: bool = False  # somebody asked for the scale, perhaps to multiply with it
    reached: list["_Reached"] = dataclasses.field(default_factory=list)  # for the length of some steps
    marks: list[_Mark] = dataclasses.field(default_factory=list)
    picked: list[weakref.ref[Tensor]] = dataclasses.field(default_factory=list)  # whose gradients are compared
    now: bool = True  # everything is looked at in this iteration
    judged: int = 0
    norms: dict[float, float] = dataclasses.field(default_factory=dict)  # after the last suspicious change
    iterations: int = 0
    skipped: int = 0

    def stepped(self) -> None:
        """Forget what belongs to this iteration."""
        self.losses, self.by_hand, self.marks = 0, False, []
        for reached in self.reached:
            reached.handle.remove()
        self.reached = []


class Scaling:
    """A scaler under watch, and the optimizers that it drives."""

    def __init__(self, scaler: GradScaler, optimizers: Sequence[WatchedOptimizer], device: str, ledger: Ledger) -> None:
        self._scaler, self._device, self._ledger = weakref.ref(scaler), device, ledger
        self._driven = [_Driven(watched) for watched in optimizers]
        self._inside = False  # in the backward of a scaled loss
        self._depth = 0  # in `scaler.step`
        self._losses = self._updates = 0
        self._start = scale_of(scaler)
        listen(scaler, self)
        if len(optimizers) == 1 and not _unscales_itself(optimizers[0].optimizer):  # one of several may be none of its
            self._look_at_dtypes(self._driven[0])
        self._hook()

    @property
    def enabled(self) -> bool:
        scaler = self._scaler()
        return scaler is not None and scaler.is_enabled()

    def watches(self, scaler: Any) -> bool:
        return self._scaler() is scaler

    def close(self) -> None:
        for driven in self._driven:
            driven.stepped()
        scaler = self._scaler()
        if scaler is not None:
            leave(scaler, self)

    def _add(self, rule: str, op: str, facts: dict[str, Any], **fields: Any) -> None:
        __tracebackhide__ = True
        facts = {"device": self._device, **facts}
        self._ledger.add(rule, (op,), f"GradScaler({self._device!r})", facts, op=op, **fields)

    def _of(self, optimizer: Any) -> _Driven | None:
        return next((driven for driven in self._driven if driven.watched.optimizer is optimizer), None)

    def _scale(self) -> float:
        scaler = self._scaler()
        return 1.0 if scaler is None else scale_of(scaler)

    # ------------------------------------------------------------ the loss

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any:
        """`scaler.scale(outputs)`."""
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return scaled()
        self._losses += 1
        self._inside = False
        losses = list(_tensors(outputs))
        self._look_at_losses(losses)
        result = scaled()
        for driven in self._driven:
            driven.losses += 1
        for loss in _tensors(result):
            if loss.requires_grad:
                loss.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]
        return result

    def _look_at_losses(self, losses: list[Tensor]) -> None:
        __tracebackhide__ = True
        half = next((loss for loss in losses if loss.dtype in HALF), None)
        if half is not None:
            self._add("DG306", "GradScaler.scale", {"found": plain(half.dtype)}, from_dtype=half.dtype)
        if losses and torch.is_grad_enabled() and not any(loss.requires_grad for loss in losses):
            self._add("DG307", "GradScaler.scale", {"what": "the loss is detached", "optimizer": "any optimizer"})
        if due(self._losses, SELDOM):
            dtypes, whole = computed_in(losses)
            if torch.float16 in dtypes or not whole or not dtypes:
                return
            bfloat16 = torch.bfloat16 in dtypes
            facts = {"from_dtype": torch.bfloat16} if bfloat16 else {}
            self._add("DG303" if bfloat16 else "DG304", "GradScaler.scale", {}, **facts)

    # ------------------------------------------------------------ its backward

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._inside and not torch.compiler.is_compiling():
            self._inside = True
            _queue(lambda: _queue(self._backward_ended))  # the last of all: DDP writes its gradients in such a call

    def _backward_ended(self) -> None:
        self._inside = False
        for driven in self._driven:
            if driven.now or not driven.picked:
                pairs = spread(driven.watched.gradients(), _PICKED)
                driven.picked = [weakref.ref(parameter) for parameter, _ in pairs[:2]]
            else:
                pairs = [(p, p.grad) for ref in driven.picked if (p := ref()) is not None and p.grad is not None]
            driven.marks = [_Mark(parameter, gradient) for parameter, gradient in pairs]

    def _hook(self) -> None:
        """Listen, for one step, which backwards reach the parameters: all of them early on, then each in its turn."""
        for driven in self._driven:
            leaves = [parameter for parameter in driven.watched.parameters() if parameter.is_leaf]
            if driven.iterations >= PERIOD:
                leaves = leaves[driven.iterations // PERIOD % _TURNS :: _TURNS]
            driven.reached = [_Reached(self, parameter) for parameter in leaves]

    @property
    def inside(self) -> bool:
        """Whether the backward of a scaled loss is running."""
        return self._inside

    # ------------------------------------------------------------ unscale_, step, update

    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None:
        """`scaler.unscale_(optimizer)`, by the user or in `scaler.step`."""
        __tracebackhide__ = True
        driven = self._of(optimizer)
        if driven is None:
            return
        title, op = driven.watched.title, "GradScaler.unscale_"
        if stage is OptState.UNSCALED:
            losses = f"({driven.losses} scaled losses since its last step, and no `update()` between)"
            self._add("DG310", op, {"optimizer": title, "since": losses})
        elif stage is OptState.STEPPED:
            self._add("DG311", op, {"optimizer": title, "call": "scaler.unscale_"})
        else:
            if driven.now or _is_float16(next(driven.watched.parameters(), None)):
                self._look_at_dtypes(driven)
            self._look_at_gradients(driven, op)

    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any:
        """`scaler.step(optimizer)`."""
        __tracebackhide__ = True
        driven, op = self._of(optimizer), "GradScaler.step"
        enabled = self.enabled
        if driven is not None and enabled:
            if stage is OptState.STEPPED:
                self._add("DG311", op, {"optimizer": driven.watched.title, "call": "scaler.step"})
            if not driven.watched.has_gradients():
                what = "none of its parameters has a gradient"
                self._add("DG307", op, {"what": what, "optimizer": driven.watched.title})
            if stage is OptState.READY and _unscales_itself(optimizer):
                self._look_at_gradients(driven, op)
        before = 0 if driven is None else driven.watched.steps
        self._depth += 1
        try:
            result = step()
        finally:
            self._depth -= 1
        if driven is not None and enabled:
            driven.stepped()
            self._count(driven, optimizer, silent=driven.watched.steps == before)
        return result

    def _count(self, driven: _Driven, optimizer: Optimizer, silent: bool) -> None:
        """Whether the step was skipped; a compiled one says nothing, so the scaler is asked."""
        driven.iterations += 1
        states: Any = getattr(self._scaler(), "_per_optimizer_states", {})
        found = states.get(id(optimizer), {}).get("found_inf_per_device", {}) if silent else {}
        driven.skipped += any(bool(value) for value in found.values())
        driven.now = due(driven.iterations + 1)
        if driven.now:
            self._hook()

    def past(self, watched: WatchedOptimizer) -> None:
        """`optimizer.step()`; the scaler does not stand behind it."""
        __tracebackhide__ = True
        scaler, driven = self._scaler(), self._of(watched.optimizer)
        if self._depth or not self.enabled or driven is None or scaler is None or not driven.losses:
            return
        if len(self._driven) > 1 and not any(reached.by(scaled=True) for reached in driven.reached):
            return  # the scaled loss may be another optimizer's
        if stage_of(scaler, watched.optimizer) is OptState.READY:
            stage = f"on gradients that are still multiplied by the scale {self._scale():g}"
        else:
            stage = "after `unscale_`, past the scaler's check for inf and NaN"
        facts = {"optimizer": watched.title, "stage": stage}
        driven.stepped()
        self._add("DG312", f"{watched.title}.step", facts)

    def asked(self) -> None:
        """`scaler.get_scale()`."""
        for driven in self._driven:
            driven.by_hand = True

    def updated(self) -> None:
        """`scaler.update()`."""
        __tracebackhide__ = True
        self._updates += 1
        skipped = sum(driven.skipped for driven in self._driven)
        if skipped or self._updates % PERIOD == 0:
            scale = self._scale()
            if scale < min(1.0, self._start):
                pairs = [pair for driven in self._driven for pair in driven.watched.gradients()]
                wrong = [parameter for parameter, gradient in pairs if not torch.isfinite(local(gradient)).all()]
                names = list(dict.fromkeys(self._driven[0].watched.names_of(wrong)))
                where = f", the last of `{names[0]}` and {len(names) - 1} others" if names else ""
                facts = {"start": self._start, "scale": scale, "skipped": skipped, "steps": self._updates}
                self._add("DG313", "GradScaler.update", {**facts, "where": where}, parameters=names)

    # ------------------------------------------------------------ gradients

    def _look_at_dtypes(self, driven: _Driven) -> None:
        __tracebackhide__ = True
        parameters = list(driven.watched.parameters())
        half = [parameter for parameter in parameters if parameter.dtype is torch.float16]
        if half and self.enabled:
            facts = {"device": self._device, "share": f"{len(half)} of {len(parameters)}"}
            driven.watched.add("DG301", None, facts, half, from_dtype=torch.float16, to_dtype=torch.float32)

    def _look_at_gradients(self, driven: _Driven, op: str) -> None:
        """Just before gradients are unscaled: were they scaled, and is nothing clipped yet?"""
        __tracebackhide__ = True
        if not driven.watched.has_gradients():
            return
        foreign = [reached.parameter() for reached in driven.reached if reached.by(scaled=False)]
        alien = [parameter for parameter in foreign if parameter is not None]
        if (not driven.losses or alien) and not driven.by_hand:
            facts: dict[str, Any] = {"scale": self._scale()}
            parameters = alien or [parameter for parameter, _ in driven.watched.gradients()]
            driven.watched.add("DG308", None, facts, parameters, op=op)
        written = [(mark, gradient) for mark in driven.marks if (gradient := mark.now()) is not None]
        if written and (driven.now or driven.judged < _JUDGED):
            driven.judged += 1
            pairs = driven.watched.gradients()
            how = _clipped(written, [gradient for _, gradient in pairs], driven)
            if how is not None:
                facts = {"how": how[0], "scale": self._scale(), "bound": how[1] / self._scale()}
                driven.watched.add("DG309", None, facts, [parameter for parameter, _ in pairs], op=op)


class _Reached:
    """A hook on a parameter, for the length of one step: which backwards its gradient is the sum of."""

    def __init__(self, scaling: Scaling, parameter: Any) -> None:
        self._scaling, self.parameter = scaling, weakref.ref(parameter)
        self._gradient: weakref.ref[Tensor] | None = None
        self._version = 0
        self._kinds: set[bool] = set()
        self.handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(self)

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or torch.compiler.is_compiling():
            return
        known = None if self._gradient is None else self._gradient()
        if known is not gradient or _version(gradient) > self._version + 1:  # a new one, or zeroed in place
            self._kinds = set()
        self._kinds.add(self._scaling.inside)
        self._gradient, self._version = weakref.ref(gradient), _version(gradient)

    def by(self, scaled: bool) -> bool:
        """Whether the gradient has a part from a scaled (unscaled) loss."""
        return scaled in self._kinds and self._gradient is not None and self._gradient() is not None


def _clipped(written: list[tuple[_Mark, Tensor]], gradients: list[Tensor], driven: _Driven) -> tuple[str, float] | None:
    """How scaled gradients were clipped, and to which bound; None where they were changed in another way, or perhaps.

    Sums over ranks and divisions by a number of batches are right on scaled gradients, so a change alone says nothing.
    A clipped norm is the bound that somebody wrote: a round number, or the same one twice. Clipped values are what
    clamping to their maximum makes of the values before.
    """
    before = [mark.values for mark, _ in written]
    after = [sample(gradient) for _, gradient in written]
    kept = [
        (b.double().cpu(), a.double().cpu())
        for b, a in zip(before, after, strict=True)
        if b is not None and a is not None
    ]
    if not kept:
        return None
    old, new = (torch.cat(parts) for parts in zip(*kept, strict=True))
    if not old.isfinite().all() or not new.isfinite().all() or torch.equal(old, new):
        return None
    bound = new.abs().max()
    if torch.equal(new, old.clamp(-bound, bound)) and (new.abs() == bound).sum() > 1:
        return f"to values between -{bound:g} and {bound:g}", float(bound)
    some = old != 0
    ratio = new[some] / old[some]
    factor = float(ratio.median())
    if not 0 < factor < 1 or (ratio - factor).abs().max() > 1e-2 * factor or _whole(1 / factor):
        return None
    norms = {order: norm_of(gradients, order) for order in (2.0, torch.inf, 1.0)}
    last, driven.norms = driven.norms, norms
    for order, norm in norms.items():
        if _round(norm) or (order in last and abs(last[order] / norm - 1) < 1e-4):
            kind = {2.0: "norm", 1.0: "1-norm"}.get(order, "maximum norm")
            return f"to {kind} {norm:.3g}", norm
    return None


def _whole(number: float) -> bool:
    """Whether a divisor counts something: ranks, or micro-batches."""
    return number < 1024 and abs(number - round(number)) < 1e-3


def _round(number: float) -> bool:
    """Whether a number has two digits, as bounds have that somebody wrote."""
    return number > 0 and abs(float(f"{number:.1e}") / number - 1) < 2e-5


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """The tensors in what `scaler.scale` takes; an iterator is left alone, since looking would use it up."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple)):
        for output in outputs:
            yield from _tensors(output)


def _version(gradient: Tensor) -> int:
    return int(getattr(gradient, "_local_tensor", gradient)._version)


def _is_float16(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.dtype is torch.float16


def _unscales_itself(optimizer: Any) -> bool:
    """Whether a fused optimizer unscales in its own kernel, so that float16 gradients are no obstacle."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _queue(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
