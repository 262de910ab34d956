"""`watch`: hooks on optimizers, scaler and model that stay on while they train."""

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from .._core.base import private
from .._core.base.config import Mode, ModeName, written_in
from .._core.base.options import explained, explained_as
from .._engine.watch.events import tell
from .._engine.watch.ledger import Ledger
from .._engine.watch.rule import Finding, Rule
from .._show.fragment import badge, joined
from .._show.report.causes import causes_of
from .._show.report.cell import findings_parts
from .._show.report.findings import Report
from .._show.result import Result
from .._show.svg import Picture
from .._show.text import number
from ._arguments import models_of, optimizers_of, read
from ._average import WatchedAverage
from ._history import History, moments_of
from ._metrics import Meters, Metrics, check_group, named, reduced
from ._names import Names
from ._optimizer import SELDOM, WatchedOptimizer, compare
from ._probe import Probe, compiles
from ._scaler import leave, listen
from ._scaling import Scaling
from ._writers import writing

_live: weakref.WeakSet["Watch"] = weakref.WeakSet()
_STEPS = {m.__code__ for name in ("step", "_maybe_opt_step") if (m := getattr(GradScaler, name, None)) is not None}
_DEPTH = 12  # frames between an optimizer's hook and the scaler that called it, schedulers and accelerate between them


@explained
def watch(
    model: nn.Module | Iterable[nn.Module],
    optimizer: Optimizer | Iterable[Optimizer],
    scaler: GradScaler | None = None,
    *,
    mode: ModeName | Mode | None = None,
    every: int = 1,
    averaged: Any = None,
    metrics: int | None = None,
    ignore: Iterable[str] | str = (),
) -> "Watch":
    """Watch a training loop for uses of autocast, GradScaler and optimizer that lose or corrupt updates.

    Some mistakes are found by this call, others at the first step that shows them. Strict mode raises, before the
    parameters change if possible. The other modes warn, once for each rule and parameter group. A watch does not change
    what the program computes. A second watch for the same optimizer, as when a notebook cell runs again, replaces the
    first. The rules are those of the families DG3 and DG4:
    https://github.com/dtypeguard/dtypeguard/blob/main/docs/amp.md

    Args:
        model: the model that is trained, or several. They may be compiled, or wrapped by DistributedDataParallel.
        optimizer: its optimizer, or several. They may be wrapped by accelerate or Lightning.
        scaler: the GradScaler, if there is one. Another scaler is found when it steps the optimizer.
        mode: 'strict' raises, 'lenient' and 'warn' warn, 'off' does nothing; default: the mode at each step.
        every: look at every n-th step of an optimizer only. The use of the scaler is checked at each step.
        averaged: a float16 or bfloat16 average of the model, to find that rounding keeps it from moving: an
            `AveragedModel` or other module, a dict of tensors by parameter name, or tensors in the order of
            `model.parameters()`.
        metrics: measure updates for `Watch.metrics` at the first and every n-th step of an optimizer; default: never.
        ignore: rules to leave out, by id, name or family (`DG402`, `missing-parameters`, `DG4`).

    Returns:
        A handle and context manager. `report()` lists what was found; `remove()`, or the end of the block, ends the
        watch.

    Raises:
        TypeError: for an argument of a wrong type; the message says what is expected.
        ValueError: if the model has nothing to train or there is no optimizer; for an unknown mode or rule.
        AmpError: in strict mode, for a mistake that is found by this call. Later mistakes raise in the step.

    >>> import torch, dtypeguard
    >>> model = torch.nn.Linear(3, 1).half()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> dtypeguard.amp.watch(model, optimizer, torch.amp.GradScaler("cpu"), mode="strict")
    Traceback (most recent call last):
        ...
    dtypeguard.AmpError: DG301 scaler-float16-parameters: `weight`, `bias` (2 of 2 trainable parameters) are ...
    """
    __tracebackhide__ = True
    return watch_from(written_in(sys._getframe(1)), model, optimizer, scaler, mode, every, averaged, metrics, ignore)


def watch_from(
    file: str | None,
    model: Any,
    optimizer: Any,
    scaler: Any,
    mode: Any = None,
    every: Any = 1,
    averaged: Any = None,
    metrics: Any = None,
    ignore: Any = (),
) -> "Watch":
    """`watch` with the file that findings are attributed to; a callback passes the user's."""
    __tracebackhide__ = True
    models = models_of(model)
    optimizers = optimizers_of(optimizer)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(
            f"scaler must be one torch.amp.GradScaler, not {type(scaler).__name__}; others are noticed when they step"
        )
    as_asked, ignored = read(mode, every, averaged, metrics, ignore)
    said = [key for other in list(_live) for key in other._already_told(models, optimizers, scaler)]
    ledger = Ledger(as_asked, ignored, file, said=said)
    handle = Watch(Names(models), optimizers, ledger, every, averaged, metrics)
    for other in list(_live):
        other._give_up(optimizers)
    try:
        handle._open(scaler)
    except BaseException:
        handle.remove()
        raise
    return handle


class Watch(Result):
    """The handle that `watch` returns. `remove()`, or the end of a `with` block, ends the watch.

    It does not keep the model, the optimizers and the scaler alive.
    """

    kind = "watch"

    def __init__(
        self,
        names: Names,
        optimizers: list[Optimizer],
        ledger: Ledger,
        every: int,
        averaged: Any = None,
        metrics: int | None = None,
    ) -> None:
        self._names, self._ledger, self._every = names, ledger, every
        titles = [type(optimizer).__name__ for optimizer in optimizers]
        several = len(titles) > 1
        self._optimizers = [
            WatchedOptimizer(optimizer, f"{title} {n}" if several else title, names, ledger.add, every)
            for n, (optimizer, title) in enumerate(zip(optimizers, titles, strict=True))
        ]
        self._average = None if averaged is None else WatchedAverage(averaged, names, ledger.add)
        self._meters = Meters(self._optimizers, metrics)
        self._scaling: Scaling | None = None
        self._probe = Probe()
        self._handles: list[tuple[WatchedOptimizer, Any]] = []
        self._device = next((parameter.device.type for parameter, _ in names.named()), "cpu")
        self.closed: bool = False

    def _open(self, scaler: GradScaler | None) -> None:
        __tracebackhide__ = True
        _live.add(self)
        for watched in self._optimizers:
            optimizer = watched.optimizer
            if optimizer is not None:
                hooks = Hooks(self, watched)
                self._handles.append((watched, optimizer.register_step_pre_hook(hooks.before)))
                self._handles.append((watched, optimizer.register_step_post_hook(hooks.after)))
        self._compare_with_model(stepping=False)
        if scaler is not None:
            self._set_scaler(scaler)
        for watched in self._optimizers:
            watched.look()
        if not compiles():
            self._arm_probe()

    # ------------------------------------------------------------ the handle

    def report(self) -> Report:
        """What was found so far: one entry for each rule and parameter group. It is kept after `remove()`."""
        return Report(self._ledger.findings)

    def remove(self) -> None:
        """End the watch. A second call does nothing."""
        self.closed = True
        _live.discard(self)
        self._unhook(self._optimizers)
        self._probe.disarm()
        self._average = None
        self._set_scaler(None)

    def _unhook(self, optimizers: list[WatchedOptimizer]) -> None:
        for watched, handle in self._handles:
            if watched in optimizers:
                handle.remove()
        self._handles = [(watched, handle) for watched, handle in self._handles if watched not in optimizers]

    def _give_up(self, optimizers: list[Optimizer]) -> None:
        """Another watch has begun for these: it stands in the place of this one."""
        taken = [watched for watched in self._optimizers if any(watched.optimizer is one for one in optimizers)]
        left = [watched for watched in self._optimizers if watched not in taken]
        if all(watched.optimizer is None for watched in left):
            self.remove()
            return
        self._unhook(taken)
        self._optimizers = left
        if self._scaling is not None:
            for watched in taken:
                self._scaling.part(watched.optimizer)

    def _already_told(
        self, models: list[nn.Module], optimizers: list[Optimizer], scaler: GradScaler | None
    ) -> Iterator[tuple[str, str]]:
        """What this watch has said of these: the one that begins now need not say it again."""
        mine = [*self._names.models(), *(watched.optimizer for watched in self._optimizers)]
        shared = any(one is other for one in mine for other in (*models, *optimizers))
        scaled = scaler is not None and self._scaling is not None and self._scaling.scaler is scaler
        for finding in self._ledger.findings:
            if finding.severity != "info" and (shared or (scaled and (finding.op or "").startswith("GradScaler."))):
                yield finding.rule, finding.message

    def __reduce__(self) -> Any:
        """Copies are handles of a watch that is over, with what was found until then."""
        return _closed_watch, (self.report(),)

    def __enter__(self) -> "Watch":
        if self.closed:
            raise ValueError("this watch was removed: begin another with dtypeguard.amp.watch(...)")
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        what = f"{self._names.title}, {', '.join(watched.title for watched in self._optimizers)}"
        return f"<{'removed ' if self.closed else ''}watch of {what}: {number(len(self.report()), 'finding')}>"

    def __str__(self) -> str:
        return str(self.report())

    def _data(self) -> dict[str, Any]:
        return {
            "model": self._names.title,
            "optimizers": [watched.title for watched in self._optimizers],
            "removed": self.closed,
            "findings": list(self.report()),
        }

    def _picture(self) -> Picture | None:
        history = self.history
        return history._picture() if len(history) > 1 else None

    def _cell(self) -> tuple[Any, ...]:
        watched = f"watch of {self._names.title}, {', '.join(one.title for one in self._optimizers)}"
        found = self.report()
        state = badge(f"{number(len(found), 'finding')}{', removed' * self.closed}", "warning" if found else "good")
        return findings_parts(joined(watched, state), causes_of(found))

    # ------------------------------------------------------------ metrics

    def metrics(self, group: Any = None) -> Metrics:
        r"""What precision does to this run, as numbers for a logger: a dict from names to floats.

        ====================================  =========================================================================
        name                                  meaning
        ====================================  =========================================================================
        ``dtypeguard/steps``                  steps of the first optimizer so far, without those that a scaler skipped
        ``dtypeguard/scale``                  the scale of the GradScaler now
        ``dtypeguard/skipped``                steps that it has skipped so far, because gradients were not finite
        ``dtypeguard/unmoved`` \*             share (0 to 1) of elements with a non-zero gradient that did not move
        ``dtypeguard/update`` \*              median of \|update\| by its histogram, in spacings of the dtype
        ``dtypeguard/gradients/float32`` \*   share (0 to 1) of gradients that have this dtype; so for other dtypes
        ``dtypeguard/repairs``                repairs by contracts in this process since the watch began
        ``dtypeguard/repairs/train.py:14``    those at one line; so for other lines
        ====================================  =========================================================================

        The attribute `histograms` has ``dtypeguard/update_log2`` \*: counts of elements by log2 of \|update\| in
        spacings. The first bin, from -2 to -1, has those that did not move; the last one has all from 2^24 spacings on.
        The update is what the parameter moved, so a half parameter moves by about whole spacings, or not at all.

        What has a \* is measured with `watch(..., metrics=n)`, in the first and every n-th step, on about 4000 elements
        evenly chosen; these are the numbers of the last such step. What is not known is left out. Nothing is read from
        the device until this call, which reads once.

        Args:
            group: a process group, whose ranks all call this. One collective makes each number the mean of the ranks
                (of ``repairs`` and of the histogram, the sum). ``/min``, ``/max``, ``/min_rank`` and ``/max_rank`` are
                added. Lines of repairs stay those of this rank. `torch.distributed.group.WORLD` is all ranks, and None
                in a program without them, as is the default: this rank alone.

        Raises:
            TypeError: if the group is no process group.
            ValueError: if this rank is not in it.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with dtypeguard.amp.watch(model, optimizer, metrics=10) as watch:
        ...     model(torch.ones(2, 64)).square().mean().backward()
        ...     optimizer.step()
        >>> watch.metrics()["dtypeguard/gradients/float32"]
        1.0
        """
        check_group(group)
        numbers, counts, sites = self._meters.numbers(self._optimizers, self._scaling)
        found = named(numbers, counts) if group is None else reduced(numbers, counts, group)
        found.update(named(sites))
        return found

    @explained_as("log")
    def log(self, writer: Any, step: int | None = None, group: Any = None) -> Metrics:
        """Write `metrics(group)` with a logger, and return them.

        Args:
            writer: TensorBoard's `SummaryWriter`, a run of Weights & Biases, the module `mlflow`, a logger of
                Lightning, a meter of OpenTelemetry, or a function that takes a dict and the step, such as
                `accelerator.log`. None writes nothing, for ranks that only take part. Weights & Biases and what has an
                `add_histogram_raw`, as TensorBoard does, get the histogram too.
            step: the step of the program; default: that of the first optimizer, as this watch counts.
            group: as in `metrics`.

        Raises:
            TypeError: for another writer, or a step that is no number.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Linear(2, 2)
        >>> watch = dtypeguard.amp.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> watch.log(lambda values, step: print(step, values), step=10)
        10 {'dtypeguard/steps': 0.0, 'dtypeguard/repairs': 0.0}
        {'dtypeguard/steps': 0.0, 'dtypeguard/repairs': 0.0}
        """
        write = writing(writer, step)
        found = self.metrics(group)
        write(found, self._optimizers[0].steps if step is None and self._optimizers else step)
        return found

    @property
    def history(self) -> History:
        """What `watch(..., metrics=n)` measured, over the steps: it prints as lines, and `to_svg` draws it.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with dtypeguard.amp.watch(model, optimizer, metrics=10) as watch:
        ...     for _ in range(20):
        ...         model(torch.ones(2, 64)).square().mean().backward()
        ...         optimizer.step()
        >>> [moment.step for moment in watch.history]
        [1, 10, 20]
        """
        found = tuple(moments_of(self._meters.history()))
        return History(found, "" if found else self._meters.unmeasured(self._scaling))

    # ------------------------------------------------------------ each step

    def _before(self, watched: WatchedOptimizer, closure: bool) -> None:
        __tracebackhide__ = True
        if self._scaling is not None:
            self._scaling.past(watched)
        if watched.due(ahead=1):
            self._look_for_scaler(watched)
            self._probe.disarm()
            if watched is self._optimizers[0]:
                if self._average is not None:
                    self._average.look(watched.steps)
                if watched.due(SELDOM, ahead=1):
                    self._names.refresh()
                    self._compare_with_model(stepping=not closure)
        watched.before_step(closure)
        self._meters.before(watched)

    def _after(self, watched: WatchedOptimizer, closure: bool) -> None:
        __tracebackhide__ = True
        self._meters.after(watched, self._scaling)
        if closure and watched is self._optimizers[0] and watched.due(SELDOM):
            self._compare_with_model(stepping=True)
        watched.after_step()
        if watched.due(SELDOM, ahead=1) and (watched.steps + 1 == 4 * self._every or not compiles()):
            self._arm_probe()  # compiled programs: once only

    def _arm_probe(self) -> None:
        if self._scaling is None or self._scaling.idle:
            held = {id(parameter) for watched in self._optimizers for parameter in watched.parameters()}
            self._probe.arm(self._names.models(), held)

    def _set_scaler(self, scaler: GradScaler | None) -> None:
        """Another scaler in the place of the one there was."""
        __tracebackhide__ = True
        if self._scaling is not None:
            self._scaling.close()
            old = self._scaling.scaler
            if scaler is not None:
                self._meters.replaced(self._scaling)
            if old is not None:
                leave(old, self._scaling)
        if scaler is not None:
            self._scaling = Scaling(scaler, self._optimizers, self._ledger.add)
            listen(scaler, self._scaling)  # last: what was found may have raised

    def _look_for_scaler(self, watched: WatchedOptimizer) -> None:
        """A scaler that nobody named: frameworks own it."""
        __tracebackhide__ = True
        if self._scaling is not None and not self._scaling.idle:
            return
        scaler = _calling_scaler(sys._getframe(1))
        if scaler is not None and (self._scaling is None or self._scaling.scaler is not scaler):
            self._set_scaler(scaler)
        dtype = None if scaler is not None else self._probe.dtype(watched.parameters())
        if dtype is not None:
            disabled = self._scaling is not None and self._scaling.scaler is not None
            tell("alone", watched, dtype, self._device, disabled)

    def _compare_with_model(self, stepping: bool) -> None:
        __tracebackhide__ = True
        held = {id(parameter) for watched in under_watch() for parameter in watched.parameters()}
        compare(self._names, self._optimizers, held, stepping, _add_finding)


# Code run by the watch itself, not by the program.
OWN = (
    (Watch, ("_open", "_before", "_after", "metrics")),
    (Scaling, ("tell", "look_at_losses", "look_at_gradients", "backward_ended", "updated")),
)


def _add_finding(
    rule: Rule, watched: WatchedOptimizer, facts: dict[str, Any], parameters: list[Tensor], missing: list[Tensor]
) -> None:
    __tracebackhide__ = True
    watched.add(rule, facts, parameters)


def under_watch() -> list[WatchedOptimizer]:
    """The optimizers of all watches."""
    return [watched for watch in list(_live) for watched in watch._optimizers]


def _closed_watch(findings: list[Finding]) -> Watch:
    watch = Watch(Names([]), [], Ledger(None, found=findings), 1)
    watch.closed = True
    return watch


class Hooks:
    """The hooks on one optimizer. Compiled steps are not looked into."""

    def __init__(self, watch: Watch, watched: WatchedOptimizer) -> None:
        self._watch, self._watched = watch, watched

    def before(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        __tracebackhide__ = True
        if not not_eager():
            self._watch._before(self._watched, has_closure(arguments, options))

    def after(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        __tracebackhide__ = True
        if not not_eager():
            self._watch._after(self._watched, has_closure(arguments, options))


def not_eager() -> bool:
    """Whether a step is compiled, captured in a CUDA graph, or of fake tensors, so that no value can be waited for."""
    if torch.compiler.is_compiling():  # first: Dynamo knows nothing of the other
        return True
    cuda: Any = torch.cuda  # which torch leaves untyped
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        return True
    return private.infra_mode(private.FAKE) is not None


def has_closure(arguments: Any, options: Any) -> bool:
    """Whether a step makes its gradients itself."""
    return (len(arguments) > 1 and callable(arguments[1])) or options.get("closure") is not None


def _calling_scaler(frame: FrameType | None) -> GradScaler | None:
    """The scaler in whose `step` this runs."""
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if frame.f_code in _STEPS:
            scaler: GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
        frame = frame.f_back
    return None


Watch.__module__ = "dtypeguard.results"
