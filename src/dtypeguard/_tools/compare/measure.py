"""The measurement: runs in the low dtype and in the reference, the shares of the error, and the course over depth."""

import copy
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.errors import CompareError
from ..._engine.values.rows import Row
from ..._engine.watch.sites import Site
from .reach import Modules, Reach, Savings
from .subject import Subject
from .trace import NOWHERE, WEIGHTS, Added, Carried, Course

INPUTS = "(inputs)"
_LINEAR = 0.9, 1.1  # shares that explain the error
DECIDED = 0.1  # of the error, from which on derivatives do not tell what a layer saves
_SCALES = (2.0**12, 1.0, 2.0**-12)  # of the backward: gradients in float16 overflow or become zero


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
    """What the runs have shown.

    Attributes:
        error: of the outputs, relative to the reference.
        parts: by module and line.
        parameters: the share of each parameter that is stored in the low dtype, by its name.
        courses: by module, in the order in which they return.
        savings: what keeping modules would save.
        integers: whether the outputs are integers.
        shared: whether there are shares.
        overflown: whether there are none because the backward is not finite.
        refused: why there are none, if autograd refuses the backward.
        lost: how many values of the outputs are not finite where the reference is.
        left_out: how many values of the reference are not finite, of how many `values`.
        own: the error of the model in its own dtype.
    """

    error: float = math.nan
    integers: bool = False
    shared: bool = False
    overflown: bool = False
    refused: str = ""
    lost: int = 0
    left_out: int = 0
    values: int = 0
    own: float = 0.0
    parts: dict[tuple[str, Any], Part] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    courses: dict[str, Course] = field(default_factory=dict)
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


def distance(low: Sequence[Tensor], reference: Sequence[Tensor]) -> Distance:
    """The error of outputs: of floating tensors all values as one vector; of others the values that differ.

    Raises:
        CompareError: if they cannot be compared.
    """
    if not low:
        raise CompareError(
            "compare: the model returns no tensors, so there is nothing to compare: pass loss=, a function that makes "
            "a tensor of what it returns"
        )
    if [tensor.shape for tensor in low] != [tensor.shape for tensor in reference]:
        shapes = [[tuple(tensor.shape) for tensor in several] for several in (low, reference)]
        raise CompareError(
            f"compare: in the low dtype the outputs have the shapes {shapes[0]}, in the reference {shapes[1]}: "
            "decisions in the model differ; pass loss= to compare one number"
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


def measure(subject: Subject, model: nn.Module) -> Measured:
    """Run a copy of the subject's model in the low dtype, and find out what its error comes from."""
    try:
        return _Measurement(subject, model).run()
    except _NoGradient as error:
        found = _Measurement(subject, model).run(shares=False)
        found.refused = f"{error.__cause__}".partition("\n")[0]
        return found


class _NoGradient(Exception):
    """Autograd refuses the backward."""


class _Measurement:
    """The runs of one comparison."""

    def __init__(self, subject: Subject, model: nn.Module) -> None:
        self.subject, self.model = subject, model
        self.found = Measured()
        self._exact = dict(_named(subject.model))
        self._square = self._size = 0.0

    def run(self, shares: bool = True) -> Measured:
        """Measure all batches."""
        found, low = self.found, self.model
        for parameter in low.parameters():
            parameter.requires_grad_(_inexact(parameter) and shares)
        modules = Modules(low, doors=self.subject.dtype is not None)
        found.modules, found.bits = dict(self.subject.model.named_modules()), modules.bits
        try:
            for number in range(len(self.subject.batches)):
                self._added(modules, number, shares)
            for number in range(len(self.subject.batches)):
                self._carried(modules, number)
        finally:
            modules.remove()
        found.own = self._own()
        share = self._square / self._size if self._size else math.inf if self._square else 0.0
        found.error = math.inf if found.lost else share if found.integers else math.sqrt(share)
        self._normalise()
        return found

    # ------------------------------------------------------------ what each operation adds

    def _added(self, modules: Modules, number: int, shares: bool) -> None:
        subject, found = self.subject, self.found
        trace = Added(modules, self._wide(exact=False), subject.low)
        for name, buffer in self.model.named_buffers(remove_duplicate=False):
            trace.seed(buffer, self._exact[name])
        given = subject.batches[number]
        leaves: list[tuple[Tensor, Tensor]] = []
        copies: list[Tensor] = []  # alive as long as their ids are known

        def leaf(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor.detach().clone()
            low = tensor.detach().clone().to(subject.dtype or tensor.dtype).requires_grad_(shares)
            leaves.append((low, tensor))
            given = low.clone()  # a model may write to what it gets
            copies.append(given)
            trace.inputs.add(id(given))
            return given

        with torch.set_grad_enabled(shares):
            low = subject.run(self.model, number, given.map(leaf), mode=trace)
            for tensor in low:
                trace.collect(tensor)
        trace.shadow.memory.forget()  # what was not collected by now is read by nobody
        found.operations += trace.operations
        found.opaque.update(trace.blind)
        reference = subject.reference(number)
        subject.forget()  # backward needs the room
        apart = distance(low, reference)
        found.lost += apart.lost
        found.left_out += apart.left_out
        found.values += sum(tensor.numel() for tensor in low)
        found.integers |= apart.integers
        self._square += apart.square
        self._size += apart.size
        found.savings.narrow |= trace.reaches.narrow
        wanted = [(one, error) for one, error in zip(low, apart.errors, strict=False) if one.requires_grad]
        if wanted and apart.square and not apart.lost:
            self._backward(modules, trace, wanted, leaves, math.sqrt(apart.square))
        trace.products.clear()  # the graph stands behind these tensors
        trace.deltas.clear()  # what hooks hold goes later

    def _backward(
        self, modules: Modules, trace: Added, wanted: list[tuple[Tensor, Tensor]], leaves: list[tuple[Tensor, Tensor]],
        norm: float,
    ) -> None:  # fmt: skip
        """Shares, in units of the error: the norm of this batch is taken out at the end, over all batches."""
        found, outputs = self.found, [out for out, _ in wanted]
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        inputs = [*parameters, *(low for low, _ in leaves)]

        def backward(to: list[Tensor], cotangents: list[Tensor], again: bool) -> tuple[Tensor | None, ...]:
            try:
                return torch.autograd.grad(outputs, to, cotangents, allow_unused=True, retain_graph=again)
            except RuntimeError as error:  # a model for inference that writes to what backward needs
                raise _NoGradient from error

        for scale in _SCALES:
            gradients = backward(inputs, [(error * (scale / norm)).to(out.dtype) for out, error in wanted], again=True)
            total = sum(delta.share for delta in trace.deltas)
            if math.isfinite(total) and all(g is None or bool(g.isfinite().all()) for g in gradients):
                break
        else:
            found.overflown = True
            return
        if trace.doors:
            trace.asks_doors[0] = True
            generator = torch.Generator().manual_seed(0)
            signs = [torch.randint(2, out.shape, generator=generator).mul_(2).sub_(1).to(out) for out in outputs]
            to = [trace.reached, *(tensor for _, tensor in trace.products)]
            _, *told = backward(to, [(sign * min(scale, 1.0)).to(sign.dtype) for sign in signs], again=False)
            for (door, tensor), gradient in zip(trace.products, told, strict=True):
                door.tell(gradient, tensor.detach())
        for door in trace.doors:
            if math.isfinite(door.cost):
                found.savings.add_door(door.reach, door.inside, door.cost / min(scale, 1.0) ** 2)
        found.shared = True
        unit = norm / scale  # so that all shares are ⟨error, what was added⟩
        savings = found.savings
        savings.taken &= trace.taken
        for delta in trace.deltas:
            part = found.part(delta.row.module, delta.row.site)
            share = delta.share * unit
            if delta.row.name == WEIGHTS:
                part.weights += share
            else:
                part.arithmetic += share
            savings.add(delta.reach, share)
        by_id = dict(zip(map(id, parameters), gradients, strict=False))
        for name, parameter in self.model.named_parameters():
            gradient = by_id.get(id(parameter))
            if gradient is None or parameter.dtype is self._exact[name].dtype:
                continue
            share = _product(gradient, parameter, self._exact[name]) * unit
            site, module = trace.uses.get(id(parameter), (None, None))
            module = name.rpartition(".")[0] if module is None else module
            found.parameters[name] += share
            self.found.part(module, site).weights += share
            savings.add(Reach(inside=modules.around(module)), share)
        for (low, exact), gradient in zip(leaves, gradients[len(parameters) :], strict=True):
            if gradient is not None and low.dtype is not exact.dtype:
                share = _product(gradient, low, exact) * unit
                self.found.part(INPUTS, None).arithmetic += share
                savings.add(Reach(inside=trace.taken), share)

    def _wide(self, exact: bool) -> Callable[[str], nn.Module]:
        """Gives modules in float64, with the weights of the reference or with those of the low model."""

        @functools.cache
        def wide(name: str) -> nn.Module:
            module = copy.deepcopy(self.subject.model.get_submodule(name)).double()
            if not exact:
                low = self.model.get_submodule(name)
                with torch.no_grad():
                    for key, tensor in _named(module):
                        tensor.copy_(
                            low.get_parameter(key) if isinstance(tensor, nn.Parameter) else low.get_buffer(key)
                        )
            return module

        return wide

    def _own(self) -> float:
        """The error of the model as it is, for the first batch: the reference may be another program."""
        subject = self.subject
        with torch.no_grad():
            apart = distance(
                subject.run(subject.copy(), 0, subject.batches[0].to(None), low=False), subject.reference(0)
            )
        return math.inf if apart.lost else math.sqrt(apart.square / apart.size) if apart.size else 0.0

    # ------------------------------------------------------------ how the error grows

    def _carried(self, modules: Modules, number: int) -> None:
        subject, found = self.subject, self.found
        trace = Carried(modules, self._wide(exact=True))
        with torch.no_grad():
            for name, tensor in _named(self.model):
                trace.seed(tensor, self._exact[name])

            def low(tensor: Tensor) -> Tensor:
                made = tensor.detach().to(subject.dtype if tensor.is_floating_point() else None, copy=True)
                trace.seed(made, tensor)
                return made

            out = subject.run(self.model, number, subject.batches[number].map(low), mode=trace)
        for name, course in trace.courses.items():
            known = found.courses.setdefault(name, Course())
            known.distance += course.distance
            known.size += course.size
            known.lost += course.lost
        found.overflows += trace.overflows
        self._decided(trace, out, subject.reference(number))

    def _decided(self, trace: Carried, out: list[Tensor], reference: list[Tensor]) -> None:
        """What choices that come out otherwise cost: the wider values go on with the model's own."""
        flipped = {row: row.flipped for row in trace.rows if row.flipped}
        if not flipped or not self.found.shared:
            return
        apart = distance(out, reference)
        share = 0.0
        for tensor, error, other in zip(out, apart.errors, reference, strict=True):
            if _inexact(tensor):
                gap = trace.exact(tensor).to(error.dtype) - other.to(error.dtype)
                share += float((error * torch.where(gap.isfinite(), gap, 0)).sum())
        count = sum(flipped.values())
        for row, times in flipped.items():
            self.found.flipped[row] = times
            self.found.part(row.module, row.site).decisions += share * times / count

    def _normalise(self) -> None:
        square = self._square
        if not square:
            return
        for part in self.found.parts.values():
            part.weights, part.arithmetic, part.decisions = (
                value / square for value in (part.weights, part.arithmetic, part.decisions)
            )
        for name in self.found.parameters:
            self.found.parameters[name] /= square
        self.found.savings.scale(1 / square)


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _product(gradient: Tensor, low: Tensor, exact: Tensor) -> float:
    difference = low.detach().double() - exact.detach().to(low.device).double()
    return float((gradient.double() * difference).sum())
