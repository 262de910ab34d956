"""What one optimizer holds, against the model, its gradients and its own state: the rules of family DG4.

Dtypes of gradients are read at every step; everything else when one of them changed, at the first few steps,
and then at every fiftieth.
"""

import functools
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._base.dtypes import FLOATING
from .._base.errors import plain
from .._watch.ledger import Ledger
from .._watch.rule import Severity
from ._names import Names
from ._tensors import HALF, finite, is_copy, local, sample, spread

PERIOD = 50
SELDOM = 500  # what takes longest, and changes least
_EARLY = frozenset({1, 2, 4, 8, 16, 32})
_PARTS = 8  # looks until all gradients were asked whether they are finite
_SAMPLED = 8  # parameters whose elements are looked at in one step
_LOST = 0.9  # share of elements that did not move: a warning; a model that learns in bfloat16 loses 5 to 30 %
_MANY = 0.5  # listed as information
_STREAK = 3  # looks in a row
_BEGUN = 8  # steps; momentum has to build up, and some optimizers start slowly


def due(step: int, period: int = PERIOD) -> bool:
    """Whether a step is one of those at which everything is looked at."""
    return step % period == 0 or step in _EARLY


@functools.cache
def vanishes(value: float, dtype: torch.dtype) -> bool:
    return value != 0 and torch.tensor(value, dtype=dtype, device="cpu").item() == 0


def is_torchs(optimizer: Optimizer) -> bool:
    """Whether the step is PyTorch's own: state like the parameters, no master weights, no stochastic rounding."""
    return type(optimizer).step.__module__.startswith("torch.optim.")


class WatchedOptimizer:
    """One optimizer under watch; it is not kept alive."""

    def __init__(
        self, optimizer: Optimizer, title: str, names: Names, ledger: Ledger, every: int = 1, hooks: int = 1
    ) -> None:
        """`hooks`: how many hooks on the optimizer before its step are the watch's own."""
        self._optimizer = weakref.ref(optimizer)
        self.title, self._names, self._ledger, self._every, self._hooks = title, names, ledger, every, hooks
        self.steps = self._looks = 0
        # Of gradients, else of parameters: of each, and the one that a whole group has.
        self._dtypes: list[tuple[list[torch.dtype], torch.dtype | None]] = []
        self._some: tuple[Any, ...] = ()  # dtypes of a few parameters, and of the state of one
        self._was: dict[int, tuple[weakref.ref[Tensor], torch.dtype]] = {}  # of each parameter, when first seen
        self._lost = [_Lost() for _ in optimizer.param_groups]
        self._remember(optimizer)

    @property
    def optimizer(self) -> Optimizer | None:
        return self._optimizer()

    def parameters(self) -> Iterator[Tensor]:
        """The parameters that it may move."""
        optimizer = self.optimizer
        for group in [] if optimizer is None else optimizer.param_groups:
            yield from (parameter for parameter in group["params"] if parameter.requires_grad)

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return [(parameter, parameter.grad) for parameter in self.parameters() if parameter.grad is not None]

    def add(
        self,
        rule: str,
        group: int | None,
        facts: dict[str, Any],
        parameters: Iterable[Tensor],
        kind: str = "",
        **fields: Any,
    ) -> None:
        """Enter a finding about parameters of one group."""
        __tracebackhide__ = True
        subject = self.title if group is None else f"{self.title}, parameter group {group}"
        names = self.names_of(parameters)
        facts = {"optimizer": self.title, **facts}
        fields = {"op": f"{self.title}.step", **fields}
        self._ledger.add(rule, (self.title, group, kind), subject, facts, parameters=names, **fields)

    def gradients_of_model(self) -> list[Tensor]:
        return [parameter.grad for parameter, _ in self._names.named() if parameter.grad is not None]

    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters())

    def names_of(self, parameters: Iterable[Tensor]) -> list[str]:
        return list(dict.fromkeys(self._names.of(parameter) for parameter in parameters))

    def due(self, period: int = PERIOD, ahead: int = 0) -> bool:
        """Whether everything is looked at in this step, or in the one ahead."""
        step, rest = divmod(self.steps + ahead, self._every)
        return not rest and due(step, period)

    # ------------------------------------------------------------ hooks

    def before_step(self, closure: bool) -> None:
        __tracebackhide__ = True
        optimizer = self.optimizer
        self.steps += 1
        if optimizer is None or self.steps % self._every:
            return
        now = self.due()
        if now or self._changed(optimizer, closure):
            self.look()
        if not closure and not self._late(optimizer):
            self._look_at_gradients(optimizer, now)
        if now:
            for group, lost in zip(optimizer.param_groups, self._lost, strict=False):
                lost.before(self.steps, group, optimizer)

    def after_step(self, closure: bool) -> None:
        __tracebackhide__ = True
        optimizer = self.optimizer
        if optimizer is None or self.steps % self._every:
            return
        now = self.due()
        if closure or self._late(optimizer):
            self._look_at_gradients(optimizer, now, stepped=True)
        skipped = getattr(optimizer, "found_inf", None)  # of a fused step, which skips by itself
        if now and not (skipped is not None and bool(skipped)):
            for number, (group, lost) in enumerate(zip(optimizer.param_groups, self._lost, strict=False)):
                self._judge(number, group, lost, optimizer)

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
        self._lost += [_Lost() for _ in groups[len(self._lost) :]]
        for group in groups:
            for parameter in group["params"]:
                was = self._was.get(id(parameter))
                if was is None or was[0]() is not parameter:
                    self._was[id(parameter)] = (weakref.ref(parameter), parameter.dtype)

    # ------------------------------------------------------------ what can be known without a step

    def look(self) -> None:
        """Parameters, state and hyperparameters, as they are now."""
        __tracebackhide__ = True
        optimizer = self.optimizer
        if optimizer is None:
            return
        self._remember(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
            self._compare_gradients(number, parameters)
            self._compare_state(number, parameters, optimizer)
            for key, rule in (("eps", "DG404"), ("weight_decay", "DG405")):
                self._look_at_hyperparameter(key, rule, number, group, parameters, optimizer)

    def _compare_gradients(self, group: int, parameters: list[Tensor]) -> None:
        __tracebackhide__ = True
        dtypes, devices = [], []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.dtype is not parameter.dtype:
                # None allows any. torch < 2.10: no grad_dtype, gradients have the parameter's; goes with that floor
                allowed = getattr(parameter, "grad_dtype", parameter.dtype)
                if allowed is not None and gradient.dtype is not allowed:
                    dtypes.append(parameter)
            if gradient.device != parameter.device:
                devices.append(parameter)
        for wrong, fact in (dtypes, _dtype_of), (devices, _device_of):
            if wrong:
                facts = {"found": fact(wrong[0].grad), "expected": fact(wrong[0])}
                self.add("DG302", group, facts, wrong, fact.__name__, to_dtype=wrong[0].dtype)

    def _compare_state(self, group: int, parameters: list[Tensor], optimizer: Optimizer) -> None:
        __tracebackhide__ = True
        own = is_torchs(optimizer)
        wrong: dict[tuple[str, str], list[tuple[Tensor, str, Tensor]]] = {}
        for parameter in parameters:
            for key, value in state_of(optimizer, parameter).items():
                if not isinstance(value, Tensor) or not value.ndim or value.shape != parameter.shape:
                    continue
                was = self._was[id(parameter)][1]
                # An optimizer of somebody else may keep wider state: a fault only if the parameter was like it once.
                if value.dtype is not parameter.dtype and value.dtype in FLOATING and (own or value.dtype is was):
                    if own or was is not parameter.dtype:
                        wrong.setdefault((_dtype_of(value), _dtype_of(parameter)), []).append((parameter, key, value))
                elif own and value.device != parameter.device:
                    wrong.setdefault((_device_of(value), _device_of(parameter)), []).append((parameter, key, value))
        for (found, expected), entries in wrong.items():
            keys = ", ".join(dict.fromkeys(f"`{key}`" for _, key, _ in entries))
            self.add(
                "DG403", group, {"keys": keys, "found": found, "expected": expected}, [p for p, _, _ in entries],
                f"{found} {expected}",
                from_dtype=entries[0][2].dtype, to_dtype=entries[0][0].dtype,
            )  # fmt: skip

    def _look_at_hyperparameter(
        self, key: str, rule: str, number: int, group: dict[str, Any], parameters: list[Tensor], optimizer: Optimizer
    ) -> None:
        __tracebackhide__ = True
        value = group.get(key)
        if not isinstance(value, (int, float)) or not value or group.get("fused"):  # fused kernels compute in float32
            return
        lost = [p for p in parameters if p.dtype in FLOATING and vanishes(float(value), p.dtype)]
        if not is_torchs(optimizer):  # it may compute in wider state
            lost = [p for p in lost if any(_keeps_in(p.dtype, s) for s in state_of(optimizer, p).values())]
        if lost:
            facts = {"key": key, "value": value, "found": plain(lost[0].dtype)}
            self.add(rule, number, facts, lost, from_dtype=lost[0].dtype)

    # ------------------------------------------------------------ what a step shows

    def _late(self, optimizer: Optimizer) -> bool:
        """Whether gradients may change, or be left out, in the step: by the optimizer's own code, or another hook."""
        return not is_torchs(optimizer) or len(getattr(optimizer, "_optimizer_step_pre_hooks", ())) > self._hooks

    def _look_at_gradients(self, optimizer: Optimizer, now: bool, stepped: bool = False) -> None:
        """Non-finite gradients: one element at each step on the CPU, and an eighth of all tensors now and then.

        One is enough sooner or later: a parameter that took a NaN makes every gradient NaN.
        """
        __tracebackhide__ = True
        if getattr(optimizer, "grad_scale", None) is not None:
            return  # a fused step unscales and checks by itself
        if now:
            self._looks += 1
            some = slice(None) if self.steps < PERIOD else slice(self._looks % _PARTS, None, _PARTS)
            parameters = [p for group in optimizer.param_groups for p in group["params"][some]]
            fine = all(finite(gradients) for gradients in _together(parameters))
        else:
            last = [parameter for group in optimizer.param_groups[-1:] for parameter in group["params"][-1:]]
            gradient = last[0].grad if last else None
            fine = gradient is None or not _on_cpu(gradient) or math.isfinite(gradient[(0,) * gradient.ndim].item())
        if fine or bool(getattr(optimizer, "found_inf", False)):  # a fused step skips by itself
            return
        pairs = self.gradients()
        wrong = [parameter for parameter, gradient in pairs if not torch.isfinite(local(gradient)).all()]
        if stepped:  # the step may have left them out
            wrong = [parameter for parameter in wrong if not torch.isfinite(local(parameter)).all()]
        if wrong:
            facts = {"share": f"{len(wrong)} of {len(pairs)} parameters"}
            self.add("DG408", None, facts, wrong, from_dtype=wrong[0].dtype)

    def _judge(self, number: int, group: dict[str, Any], lost: "_Lost", optimizer: Optimizer) -> None:
        __tracebackhide__ = True
        share, parameters = lost.after(self.steps, group)
        if share >= _MANY and parameters:
            dtype = parameters[0].dtype
            facts = {"share": share, "found": plain(dtype), "lr": rate_of(group)}
            # Somebody else's optimizer may keep what it could not write: it is sure only where nothing moved at all.
            # Norms' weights stay at 1 in every model that is bfloat16 throughout, and it learns nevertheless.
            minor = all(p.ndim < 2 for p in parameters) and any(p.ndim > 1 for p in self.parameters())
            sure = share >= (_LOST if is_torchs(optimizer) else 1.0) and not minor
            severity = None if sure else Severity.INFO
            self.add("DG406", number, facts, parameters, from_dtype=dtype, severity=severity)


def state_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """The state of a parameter by name; optimizers may keep there what they like."""
    state = optimizer.state.get(parameter)
    return state if type(state) is dict or isinstance(state, Mapping) else {}


def rate_of(group: dict[str, Any]) -> float:
    """The learning rate of a group, NaN where it is no number (Adafactor finds its own)."""
    rate = group.get("lr")
    if isinstance(rate, (int, float)) or (isinstance(rate, Tensor) and rate.numel() == 1 and not rate.is_meta):
        return float(rate)
    return math.nan


def _dtype_of(tensor: Any) -> Any:
    return plain(tensor.dtype)


def _device_of(tensor: Any) -> Any:
    return f"on {tensor.device}"


def _some_dtypes(optimizer: Optimizer) -> tuple[Any, ...]:
    """Some dtypes that change where all change: `param.data` replaced, or a state that was converted."""
    groups = optimizer.param_groups
    parameters = groups[0]["params"] if groups else ()
    if not parameters:
        return ()
    first, state = parameters[0], optimizer.state.get(parameters[0])
    dtypes = first.dtype, parameters[-1].dtype
    return (*dtypes, *[v.dtype for v in state.values() if isinstance(v, Tensor)]) if type(state) is dict else dtypes


def _on_cpu(gradient: Tensor) -> bool:
    """Whether one element can be read for next to nothing."""
    return type(gradient) is Tensor and gradient.is_cpu and gradient.dtype in FLOATING and gradient.numel() > 0


def _keeps_in(dtype: torch.dtype, state: Any) -> bool:
    return isinstance(state, Tensor) and state.ndim > 0 and state.dtype is dtype


def _together(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Their floating and complex gradients, by device and dtype."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.is_meta:
            continue
        if gradient.dtype in FLOATING or gradient.is_complex():
            groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    yield from groups.values()


class _Lost:
    """Elements of one group that do not move, from one look to the next."""

    def __init__(self) -> None:
        self._kept: list[tuple[weakref.ref[Tensor], Tensor]] = []
        self._patient = False
        self._since = self._streak = 0
        self._lr, self._most = math.inf, 0.0

    def before(self, step: int, group: dict[str, Any], optimizer: Optimizer) -> None:
        """Keep copies of small samples.

        With an optimizer that is not PyTorch's, the first ones are kept for two periods and more: stochastic rounding
        and master weights move an element in some of the steps only.
        """
        self._patient = not is_torchs(optimizer)
        if self._patient and self._kept:
            return
        self._since = step
        half = [p for p in group["params"] if p.dtype in HALF and p.requires_grad and not _has_master(p, optimizer)]
        samples = [(parameter, sample(parameter)) for parameter in spread(half, _SAMPLED)]
        self._kept = [(weakref.ref(p), values.clone()) for p, values in samples if values is not None]

    def after(self, step: int, group: dict[str, Any]) -> tuple[float, list[Tensor]]:
        """The share of elements with a gradient that did not move, and of which parameters; 0 if it is too soon."""
        kept = [(parameter, values) for ref, values in self._kept if (parameter := ref()) is not None]
        if not self._patient:
            self._kept = []
        rate = rate_of(group)
        rate = 1.0 if math.isnan(rate) else rate
        # A warm-up begins with updates that are lost, and a decay ends with them: neither harms.
        steady = rate <= self._lr * 1.0001 and rate >= self._most / 2
        self._lr, self._most = rate, max(rate, self._most)
        if not kept or not rate or step < _BEGUN or (self._patient and step - self._since < 2 * PERIOD):
            return 0.0, []
        counted = []
        for parameter, values in kept:
            now, gradient = sample(parameter), None if parameter.grad is None else sample(parameter.grad)
            if (
                now is not None
                and gradient is not None
                and now.shape == gradient.shape == values.shape
                and now.device == values.device
            ):
                moves = gradient != 0
                counted.append((parameter, torch.stack([(moves & (now == values)).sum(), moves.sum()]).tolist()))
        stuck = [(parameter, still / moves) for parameter, (still, moves) in counted if moves]
        sizes = [parameter.numel() for parameter, _ in stuck]
        share = sum(size * part for size, (_, part) in zip(sizes, stuck, strict=True)) / max(sum(sizes), 1)
        self._streak = self._streak + 1 if steady and share >= _MANY else 0
        return (share, [p for p, part in stuck if part >= _MANY]) if self._streak >= _STREAK else (0.0, [])


def _has_master(parameter: Tensor, optimizer: Optimizer) -> bool:
    """Whether the optimizer keeps a wider copy of a parameter, which takes the updates that the parameter cannot."""
    state = state_of(optimizer, parameter).values()
    return any(isinstance(value, Tensor) and is_copy(value, parameter) for value in state)
