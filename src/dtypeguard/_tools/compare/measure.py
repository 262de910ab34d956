"""The measurement: runs in the low dtype and in the reference, the shares of the error, and the course over depth."""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.errors import CompareError
from ..._core.base.modules import copy_of
from ..._engine.values.graph import error_tensor, midpoint, product, without_error
from ..._engine.values.rows import Row
from ..._engine.watch.sites import Site
from .reach import Modules, Reach, Savings
from .subject import Subject
from .trace import NOWHERE, WEIGHTS, Course, Trace, named_tensors

INPUTS = "(inputs)"
_LINEAR = 0.9, 1.1  # shares that explain the error
# If the model's own error against float64 exceeds half the measured error, and 1e-3, float64 is not used as reference.
_OTHER, _FAR = 0.5, 1e-3
# Backward passes with random signs, whose squares `power` sums over samples, below 8 over the many features: the fewer
# terms are in the sum, the more passes it takes.
_PASSES, _PASSES_OF_FEW, _FEW = 2, 4, range(8, 32)
DECIDED = 0.1  # of the error, from which on derivatives do not tell what a layer saves


@dataclass(eq=False, slots=True)
class Part:
    """The share of one line of one module."""

    module: str
    site: Site | None
    weights: float = 0.0
    arithmetic: float = 0.0
    decisions: float = 0.0

    @property
    def share(self) -> float:
        return self.weights + self.arithmetic + self.decisions


@dataclass(eq=False)
class Measured:
    """What the runs have shown."""

    error: float = math.nan  # of the outputs, relative to the reference
    integers: bool = False  # whether the outputs are such
    shared: bool = False  # whether there are shares
    overflown: bool = False  # whether there are none because the gradient is not finite
    refused: str = ""  # why there are none, if autograd refuses the backward
    lost: int = 0  # how many values of the outputs are not finite where the reference is
    left_out: int = 0  # how many values of the reference are not finite, of how many `values`
    values: int = 0
    own: float = 0.0  # the error of the model in its own dtype
    parts: dict[tuple[str, Any], Part] = field(default_factory=dict)  # by module and line
    # The share of each parameter that is stored in the low dtype, by its name.
    parameters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    beyond: set[str] = field(default_factory=set)  # modules in which rounding to a format has made values infinite
    alone: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the error of each module by itself
    courses: dict[str, Course] = field(default_factory=dict)  # by module, in the order in which they return
    modules: dict[str, nn.Module] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    savings: Savings = field(default_factory=Savings)
    overflows: list[tuple[Reach, int]] = field(default_factory=list)
    flipped: dict[Row, int] = field(default_factory=dict)
    opaque: Counter[str] = field(default_factory=Counter)
    operations: int = 0

    @property
    def explained(self) -> float | None:
        """The sum of the shares, if there are any."""
        return sum(part.share for part in self.parts.values()) if self.shared else None

    @property
    def linear(self) -> bool:
        """Whether the shares explain the error, and most of it comes from no choice."""
        shares = self.explained is not None and _LINEAR[0] <= self.explained <= _LINEAR[1]
        return shares and self.decided < DECIDED

    @property
    def decided(self) -> float:
        return sum(abs(part.decisions) for part in self.parts.values())

    @property
    def spoilt(self) -> bool:
        """Whether values that the low dtype does not hold are what the error comes from."""
        return bool(self.lost or (self.overflows and not self.linear))

    def part(self, module: str | None, site: Site | None) -> Part:
        site = None if site is NOWHERE else site
        key = module or "", None if site is None else site.key
        if key not in self.parts:
            self.parts[key] = Part(key[0], site)
        return self.parts[key]


@dataclass(slots=True)
class Distance:
    """The error of outputs against the reference."""

    errors: list[Tensor]  # in float64, zero where one of both is not finite
    square: float  # of its norm; of integers how many differ
    size: float  # the square of the reference's norm; of integers how many there are
    lost: int
    integers: bool
    left_out: int = 0  # values that are not finite in the reference

    @property
    def relative(self) -> float:
        """The error, as a share of the reference's norm."""
        return math.sqrt(self.square / self.size) if self.size else 0.0


def distance(low: Sequence[Tensor], reference: Sequence[Tensor], advice: str = "pass loss=, a function") -> Distance:
    """The error of outputs: of floating tensors all values as one vector; of others the values that differ."""
    if not low:
        raise CompareError(
            f"compare: the model returns no tensors, so there is nothing to compare: {advice} that makes "
            "a tensor of what it returns"
        )
    if [tensor.shape for tensor in low] != [tensor.shape for tensor in reference]:
        shapes = [[tuple(tensor.shape) for tensor in several] for several in (low, reference)]
        raise CompareError(
            f"compare: in the low dtype the outputs have the shapes {shapes[0]}, in the reference {shapes[1]}: "
            f"decisions in the model differ; {advice} that makes one number of them"
        )
    floating = any(_inexact(tensor) for tensor in low)
    errors: list[Tensor] = []
    square = size = 0.0
    lost = left_out = count = 0
    for one, other in zip(low, reference, strict=True):
        if not floating:
            square, size = square + float((one != other).sum()), size + one.numel()
            continue
        if not _inexact(one):
            errors.append(torch.zeros((), dtype=torch.float64))
            continue
        wide = torch.complex128 if one.is_complex() else torch.float64
        a, b = one.detach().to(wide), other.detach().to(wide)
        good = a.isfinite() & b.isfinite()
        lost += int((b.isfinite() & ~a.isfinite()).sum())
        left_out += int((~b.isfinite() & ~(a == b)).sum())
        count += b.numel()
        error = torch.where(good, a - b, 0)
        errors.append(error)
        square += float(error.abs().square().sum())
        size += float(torch.where(b.isfinite(), b, 0).abs().square().sum())
    if floating and (left_out == count or not count):
        why = "no value of the outputs is finite in the reference" if count else "the outputs have no values"
        raise CompareError(f"compare: {why}, so there is nothing to compare: look at the batch and at the weights")
    return Distance(errors, square, size, lost, not floating, left_out)


def _inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def measure(subject: Subject, made: Callable[[], nn.Module], as_given: bool = False) -> Measured:
    """Run a copy of the subject's model in the low dtype, which `made` gives, and find what its error comes from.

    `as_given` leaves the batch as it is.
    """
    try:
        return _Measurement(subject, made(), as_given, copies=False).run()
    except _Overwritten:
        return _Measurement(subject, made(), as_given, copies=True).run()


class _Overwritten(Exception):
    """The program has written to a tensor that the graph of its shadow refers to: an index, a mask."""


class _Measurement:
    """The runs of one comparison."""

    def __init__(self, subject: Subject, model: nn.Module, as_given: bool, copies: bool) -> None:
        self.subject, self.model, self._copies = subject, model, copies
        self._dtype = None if as_given else subject.dtype  # of the batch
        self.found = Measured()
        self._exact = dict(named_tensors(subject.model))
        self._square = self._size = 0.0

    def run(self) -> Measured:
        """Measure all batches."""
        found = self.found
        modules = Modules(self.model, doors=self.subject.dtype is not None)
        found.modules, found.bits = dict(self.subject.model.named_modules()), modules.bits
        self.subject.refer()
        try:
            for number in range(len(self.subject.batches)):
                self._batch(modules, number)
        finally:
            modules.remove()
        found.opaque.update(modules.running[0].blind)
        share = self._square / self._size if self._size else math.inf if self._square else 0.0
        found.error = math.inf if found.lost else share if found.integers else math.sqrt(share)
        if self._square:
            self._normalise()
        for name, power in found.alone.items():
            found.alone[name] = math.sqrt(power / self._size) if self._size else 0.0
        return found

    def _batch(self, modules: Modules, number: int) -> None:
        """One run in the low dtype, and the backward of its shadow."""
        subject, found = self.subject, self.found
        trace = Trace(modules, self._wide, subject, self._copies)
        leaves = _Leaves(trace, self._dtype)
        for parameter in self.model.parameters():  # else torch multiplies by expanded weights, whose backward is slow
            parameter.requires_grad_(_inexact(parameter))
        leaves.of_model(self.model, self._exact)
        with torch.no_grad():
            low = subject.run(self.model, number, subject.batches[number].map(leaves.of_batch), mode=trace)
        shadows = [trace.shadow_of(tensor) for tensor in low]
        trace.shadow.memory.forget()
        found.operations += trace.operations
        apart = distance(low, subject.reference(number), subject.advice)
        if number == 0:
            apart = self._choose_reference(low, apart)
        reference = subject.reference(number)
        subject.forget()  # the backward needs the room
        found.lost += apart.lost
        found.left_out += apart.left_out
        found.values += sum(tensor.numel() for tensor in low)
        found.integers |= apart.integers
        self._square += apart.square
        self._size += apart.size
        found.savings.narrow |= trace.reaches.narrow
        for which, bits in trace.taken.items():
            found.savings.taken[which] = found.savings.taken.get(which, -1) & bits
        wanted = [pair for pair in zip(shadows, apart.errors, strict=False) if pair[0].requires_grad]
        if wanted and apart.square and not apart.lost:
            self._shares(trace, wanted, leaves, math.sqrt(apart.square))
        for name, course in trace.courses.items():
            known = found.courses.setdefault(name, Course())
            known.distance += course.distance
            known.size += course.size
            known.lost += course.lost
        found.overflows += trace.overflows
        found.beyond |= trace.beyond
        self._decided(trace, low, shadows, reference)

    def _choose_reference(self, low: list[Tensor], apart: Distance) -> Distance:
        """The error of the first batch: against float64, unless the model as it is is nearly as far from that."""
        held, error = distance(self.subject.own(), self.subject.reference(0)), apart.relative
        own = math.inf if held.lost else held.relative
        comparable = not apart.lost and not apart.integers and self.subject.precision is torch.float64
        if comparable and max(_OTHER * error, _FAR) < own < math.inf:
            self.subject.refer_to_own(own)
            return distance(low, self.subject.reference(0))
        self.found.own = own
        return apart

    def _shares(self, trace: Trace, wanted: list[tuple[Tensor, Tensor]], leaves: "_Leaves", norm: float) -> None:
        """Shares, in units of the error: the norm of this batch is taken out at the end, over all batches."""
        found, outputs, savings = self.found, [shadow for shadow, _ in wanted], self.found.savings
        cotangents = [(error / norm).to(shadow.dtype) for shadow, error in wanted]
        try:
            again = bool(trace.doors) or not self.subject.widens
            gradients = torch.autograd.grad(outputs, leaves.exact, cotangents, retain_graph=again, allow_unused=True)
        except RuntimeError as error:
            if not self._copies and "modified by an inplace operation" in str(error):
                raise _Overwritten from error
            found.refused = f"{error}".partition("\n")[0]
            return
        products = [
            0.0 if grad is None or (value := error_tensor(low, exact.detach())) is None else 2 * product(grad, value)
            for grad, low, exact in zip(gradients, leaves.low, leaves.exact, strict=True)
        ]
        if not math.isfinite(sum(delta.share for delta in trace.shadow.deltas) + sum(products)):
            found.overflown = True
            return
        found.shared = True
        for delta in trace.shadow.deltas:
            part, share = found.part(delta.row.module, delta.row.site), delta.share * norm
            if delta.row.name == WEIGHTS:
                part.weights += share
            else:
                part.arithmetic += share
            savings.parts[(delta.reach or Reach())._replace(perhaps=0)] += share
        inputs = iter(trace.taken.values())
        for name, low, share in zip(leaves.names, leaves.low, products, strict=True):
            share *= norm
            taken = next(inputs) if name is None else 0
            if name is None and (share or self.subject.widens):
                found.part(INPUTS, None).arithmetic += share
                savings.parts[Reach(taken)] += share
            elif name is not None and low.dtype is not self._exact[name].dtype:
                site, module = trace.uses.get(id(low), (None, name.rpartition(".")[0]))
                found.parameters[name] += share
                found.part(module, site).weights += share
                savings.parts[Reach(trace.modules.around(module or ""))] += share
        if trace.doors:
            self._doors(trace, outputs)
        if not self.subject.widens:
            self._errors_alone(trace, outputs, leaves)

    def _errors_alone(self, trace: Trace, outputs: list[Tensor], leaves: "_Leaves") -> None:
        """What each module alone makes of the outputs: shares have the products with all other errors in them."""
        trace.shadow.quiet, trace.samples = True, next((len(out) for out in outputs if out.ndim), 1)
        generator = torch.Generator().manual_seed(0)
        count = _PASSES_OF_FEW if trace.samples in _FEW else _PASSES
        for last in range(count):
            signs, again = _signs(outputs, generator), last < count - 1
            torch.autograd.grad(outputs, leaves.exact, signs, retain_graph=again, allow_unused=True)
        for name, power in trace.powers.items():
            self.found.alone[name] += power / count

    def _doors(self, trace: Trace, outputs: list[Tensor]) -> None:
        """What rounding at the doors of modules would cost: errors there are independent, so signs are random."""
        trace.shadow.quiet = trace.asks_doors[0] = True
        generator = torch.Generator().manual_seed(0)
        torch.autograd.grad(outputs, trace.reached, _signs(outputs, generator), allow_unused=True)
        for door in trace.doors:
            if math.isfinite(door.cost):
                self.found.savings.doors[door.reach._replace(perhaps=0), door.inside] += door.cost

    @functools.cache  # noqa: B019  # it lives as long as the measurement
    def _wide(self, name: str) -> nn.Module:
        return copy_of(self.subject.model.get_submodule(name))

    def _decided(self, trace: Trace, out: list[Tensor], shadows: list[Tensor], reference: list[Tensor]) -> None:
        """What choices that come out otherwise cost: the wider values go on with the model's own."""
        flipped = {row: row.flipped for row in trace.rows if row.flipped}
        if not flipped or not self.found.shared:
            return
        apart = distance(out, reference)
        share = 0.0
        for tensor, shadow, error, other in zip(out, shadows, apart.errors, reference, strict=True):
            if _inexact(tensor):
                gap = without_error(tensor, shadow.detach()).to(error.dtype) - other.to(error.dtype)
                share += float((error * torch.where(gap.isfinite(), gap, 0)).sum())
        count = sum(flipped.values())
        for row, times in flipped.items():
            self.found.flipped[row] = times
            self.found.part(row.module, row.site).decisions += share * times / count

    def _normalise(self) -> None:
        """Make shares of the error² of what is in its units."""
        for part in self.found.parts.values():
            part.weights /= self._square
            part.arithmetic /= self._square
            part.decisions /= self._square
        for name in self.found.parameters:
            self.found.parameters[name] /= self._square
        self.found.savings.scale(1 / self._square)


def _signs(outputs: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """A random sign for each value."""
    return [torch.randint(2, out.shape, generator=generator).mul_(2).sub_(1).to(out) for out in outputs]


class _Leaves:
    """Parameters and inputs of a run: in the low dtype, and in the wider one as leaves of its shadow's graph.

    Attributes:
        names: of parameters; None for an input.
    """

    def __init__(self, trace: Trace, dtype: torch.dtype | None) -> None:
        self._trace, self._dtype = trace, dtype
        self.names: list[str | None] = []
        self.low: list[Tensor] = []
        self.exact: list[Tensor] = []
        self._copies: list[Tensor] = []  # alive as long as their ids are known

    def of_model(self, model: nn.Module, exact: dict[str, Tensor]) -> None:
        """Parameters are leaves; the errors of buffers are charged where they meet one."""
        seen: set[int] = set()
        for name, tensor in named_tensors(model):
            if not isinstance(tensor, nn.Parameter):
                self._trace.shadow.seed(tensor, exact[name])
            elif _inexact(tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                self._add(name, tensor, exact[name], tensor)

    def of_batch(self, tensor: Tensor) -> Tensor:
        """A copy of an input in the low dtype, which the model may write to."""
        if not tensor.is_floating_point():
            return tensor.detach().clone()
        given = tensor.detach().to(self._dtype, copy=True)
        self._copies.append(given)
        which = self._trace.inputs[id(given)] = len(self._trace.inputs)
        self._trace.taken[which] = -1
        self._add(None, given.clone(), tensor, given)
        return given

    def _add(self, name: str | None, low: Tensor, exact: Tensor, given: Tensor) -> None:
        wide = self._trace.shadow.memory.wider.get(low.dtype, low.dtype)
        leaf = exact.detach().to(low.device, wide, copy=exact.is_inference())
        value = error_tensor(low, leaf)
        if value is not None:
            leaf = midpoint(leaf, value)
        leaf.requires_grad_()
        self._trace.shadow.seed(given, leaf)
        self.names.append(name)
        self.low.append(low)
        self.exact.append(leaf)
