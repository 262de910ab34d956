"""A shadow that records a graph of its own, and what each operation of the program adds to the error.

The program runs once, without gradients, as it will be used. Its shadow records a graph beneath the dispatch mode, so
a backward from the error of the outputs runs in the wider dtype, and gives the adjoint of each operation. Each one runs
once more on the program's own inputs in the wider dtype: what its result differs by is what it adds, and the product of
both is its share (error propagation, as in Higham, Accuracy and Stability of Numerical Algorithms, 3).

The shadow runs halfway between the exact values and the program's: it begins with half of the error of each parameter,
and takes half of what each operation adds. A derivative at the midpoint of a path has no error of the second order, so
the shares explain the whole error of a loss near its minimum too.

What is written in place becomes a new tensor in the shadow, so the graph holds whatever the program overwrites. What
needs no gradient (a buffer, a table of positions) comes in exact, so that its error is charged where it meets what has
one.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from ..._core.base import private
from ..._core.base.dtypes import WIDER
from ..operands import shadowed
from ..ops import FUSED, Operator, Way
from .incoming import Given, Incoming
from .memory import Memory, ShadowStorage
from .rows import Row
from .shadow import RowOf, Shadow, Writing

_STORED = torch.bfloat16  # an error needs few digits, and the range of float32
_FROM_HALF = {**WIDER, torch.float32: torch.float32, torch.complex64: torch.complex64}


@contextlib.contextmanager
def recording(below: bool = True, copies: bool = False) -> Iterator[None]:
    """In here operations record a graph, and neither modes nor autocast see them.

    Args:
        below: whether this runs below a dispatch mode.
        copies: whether the graph keeps copies of tensors that the program may write to, as indices.
    """
    nothing: Any = contextlib.nullcontext()
    above = private.above_modes() if below else nothing
    saved = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor) if copies else nothing
    with above, private.without_keys(private.MODES_AND_AUTOCAST), torch.enable_grad(), saved:
        yield


@dataclasses.dataclass(eq=False, slots=True)
class Delta:
    """What one operation added to the error of one tensor.

    Attributes:
        reach: what would save it, for those who search for that.
        share: its product with the gradient of the backward that asks for shares.
    """

    row: Row
    value: Tensor
    reach: Any = None
    share: float = 0.0


class GraphStorage(ShadowStorage):
    """A shadow whose buffer is no memory to write to, but the result of what was recorded."""

    __slots__ = ("latest", "targets")

    def __init__(self, ref: Any, tensor: Tensor, size: int, buffer: Tensor, row: Any) -> None:
        super().__init__(ref, tensor, size, buffer, row)
        self.targets: dict[int, Tensor] = {}  # by id of the tensor: what the operation that runs writes to
        self.latest: list[Delta] = []  # what was added to these values, until an operation reads them

    def like(self, tensor: Tensor) -> Tensor:
        size, stride = tensor.size(), tensor.stride()
        buffer = self.buffer if self.buffer.is_complex() == tensor.is_complex() else self.flat(tensor.is_complex())
        if buffer.size() == size and buffer.stride() == stride and not tensor.storage_offset():
            shadow = buffer
        elif 0 in stride:  # the derivative of an expansion is a sum
            once = [count if step else 1 for count, step in zip(size, stride, strict=True)]
            shadow = buffer.as_strided(once, stride, tensor.storage_offset()).expand(size)
        else:
            shadow = buffer.as_strided(size, stride, tensor.storage_offset())
        if tensor.is_conj():
            shadow = shadow.conj()
        return shadow.neg() if tensor.is_neg() else shadow

    def target(self, tensor: Tensor) -> Tensor:
        made = self.targets[id(tensor)] = self.like(tensor).clone(memory_format=torch.preserve_format)
        return made

    def write(self, tensor: Tensor, values: Tensor) -> None:
        values = values.detach() if values is tensor else values
        values = values.to(self.buffer.dtype.to_complex() if tensor.is_complex() else self.buffer.dtype.to_real())
        if _shows(tensor, self.size, values):
            self.buffer, self.dtype = values, tensor.dtype
            return
        flat = self.flat(tensor.is_complex()).clone()
        # The derivative of `as_strided_scatter` is wrong in torch 2.13.
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        self.buffer, self.dtype = flat, tensor.dtype


def _shows(tensor: Tensor, size: int, values: Tensor) -> bool:
    """Whether a tensor shows all of its storage, and values lie as it does."""
    whole = tensor.numel() * tensor.itemsize == size and not tensor.is_conj() and not tensor.is_neg()
    return whole and values.stride() == tensor.stride() and not values.storage_offset() and not values.is_conj()


class GraphMemory(Memory):
    """Shadows that record a graph; nobody is told of one that is not read."""

    kind = GraphStorage

    def __init__(self, low: torch.dtype) -> None:
        super().__init__(lambda held: None)
        self.wider = WIDER if low is torch.float32 else _FROM_HALF

    def get(self, tensor: Tensor) -> GraphStorage | None:
        return cast("GraphStorage | None", super().get(tensor))

    def read(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        held = self.get(tensor)
        return tensor.to(dtype) if held is None else without_error(tensor, held.like(tensor)).to(dtype)

    def set(self, tensor: Tensor, value: Tensor, row: Any) -> ShadowStorage:
        with recording():
            value = value.to(device=tensor.device, dtype=self.wider[tensor.dtype])
            held = self._hold_as(tensor, value, row)
            if not _shows(tensor, held.size, value):
                held.buffer = value.new_zeros(held.size // tensor.itemsize)
                held.write(tensor, value)
        return held


class _Own(ShadowStorage):
    """The program's own values in the place of a shadow."""

    __slots__ = ()

    def __init__(self, values: Tensor, of: ShadowStorage | None = None) -> None:
        self.buffer, self.read, self.integers, self.errors = values, False, False, {}
        if of is not None:
            self.cancellation, self.error, self.row = of.cancellation, of.error, of.row
            self.integers = of.integers

    def like(self, tensor: Tensor) -> Tensor:
        return self.buffer

    def write(self, tensor: Tensor, values: Tensor) -> None:
        self.buffer = values.to(self.buffer.dtype)


class Graph(Shadow):
    """The shadows of a program's tensors, their graph, and what each operation adds to the error."""

    memory: GraphMemory

    def __init__(self, low: torch.dtype, copies: bool) -> None:
        super().__init__(GraphMemory(low), measure=False)
        self._copies = copies
        self.deltas: list[Delta] = []
        self.quiet = False  # whether a backward asks for something other than shares
        self._before: dict[int, Tensor] = {}  # by id: what an operation writes to, as it was
        # Of the operation that runs: a result, its shadow, and what was added to it.
        self._results: list[tuple[Tensor, Tensor, Tensor]] = []

    def seed(self, tensor: Tensor, exact: Tensor, row: Row | None = None, below: bool = False) -> None:
        """What a tensor is in the wider dtype; below the mode, or outside of it."""
        if shadowed(tensor):
            tensor = tensor.detach()
            held = self.memory.hold(tensor)
            with recording(below):
                held.write(tensor, exact.to(held.buffer.dtype))
            held.row = row

    def halfway(self, tensor: Tensor, shadow: Tensor, own: Tensor, below: bool = False) -> tuple[Tensor, Tensor | None]:
        """The shadow of a tensor that comes out of operations that were done again together, and what they added."""
        value = error_tensor(tensor, own)
        if value is None or not shadow.requires_grad:
            return shadow, None
        with recording(below):
            return midpoint(shadow, value), _stored(value)

    def whole(self, row: Row, tensor: Tensor, shadow: Tensor, value: Tensor | None, below: bool = False) -> None:
        """A tensor has this shadow, and this was added to it."""
        self.seed(tensor, shadow, row, below)
        held = self.memory.get(tensor)
        if value is not None and held is not None:
            self.charge(held, row, shadow, value)

    def before(self, op: Operator, args: Any, kwargs: Any, row_of: RowOf) -> Writing | None:
        writing = super().before(op, args, kwargs, row_of)
        self._before.clear()
        for one in () if writing is None else writing.incoming:
            shadow = one.held.like(one.tensor)
            own = one.tensor.to(shadow.dtype, copy=True) if one.held.buffer.requires_grad else shadow.clone()
            self._before[id(one.tensor)] = own
        return writing

    def after(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], out: Any, writing: Writing | None,
        row_of: RowOf,
    ) -> None:  # fmt: skip
        with recording() if op.way is Way.FILL else contextlib.nullcontext():
            super().after(op, args, kwargs, inputs, out, writing, row_of)
        for tensor, shadow, value in self._results:
            held = self.memory.get(tensor)
            if held is not None and held.row is not None:
                self.charge(held, held.row, shadow, value)
        self._results.clear()

    def charge(self, held: GraphStorage, row: Row, shadow: Tensor, value: Tensor) -> None:
        """What was added to values is charged by the backward of their shadow."""
        delta = Delta(row, _stored(value))
        self.deltas.append(delta)
        held.latest.append(delta)

        def hook(gradient: Tensor | None) -> Tensor | None:
            if self.quiet or gradient is None:
                return gradient
            delta.share = product(gradient, delta.value)
            if not math.isfinite(delta.share):  # of values that a mask takes out again: torch gives NaN times zero
                gradient = gradient.nan_to_num(0, 0, 0)
                delta.share = product(gradient, delta.value)
            return gradient

        shadow.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _compute_shadows(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, made: list[Tensor],
        writing: Writing | None,
    ) -> list[tuple[Tensor, Tensor | None]]:  # fmt: skip
        with recording(copies=self._copies):
            found = super()._compute_shadows(op, args, kwargs, inputs, given, out, made, writing)
        targets: dict[int, tuple[GraphStorage, Tensor]] = {}
        for one in () if writing is None else writing.incoming:
            held = self.memory.get(one.tensor)
            if held is not None and id(one.tensor) in held.targets:
                targets[id(one.tensor)] = held, held.targets.pop(id(one.tensor))
        shadows = {
            id(tensor): targets[id(tensor)][1] if shadow is None else shadow
            for tensor, shadow in found
            if shadow is not None or id(tensor) in targets
        }
        if any(shadow.requires_grad for shadow in shadows.values()) and self._loses(inputs, made):
            owns = self._local(op, args, kwargs, inputs, given, out, made, writing, shadows)
            for tensor, _ in found:
                shadow, own = shadows.get(id(tensor)), owns.get(id(tensor))
                if shadow is not None and own is not None and shadow.requires_grad:
                    value = error_tensor(tensor, own)
                    if value is not None:
                        with recording():
                            shadow = shadows[id(tensor)] = midpoint(shadow, value)
                        self._results.append((tensor, shadow, value))
        with recording():
            for tensor, _ in found:
                if id(tensor) in targets:
                    targets[id(tensor)][0].write(tensor, shadows[id(tensor)])
        return [(tensor, None if shadow is None else shadows[id(tensor)]) for tensor, shadow in found]

    def _loses(self, inputs: list[Tensor], made: list[Tensor]) -> bool:
        """Whether an operation is in a dtype that is narrower than its shadow's."""
        wider = self.memory.wider
        return any(wider.get(tensor.dtype, tensor.dtype) is not tensor.dtype for tensor in (*inputs, *made))

    def _local(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, made: list[Tensor],
        writing: Writing | None, shadows: dict[int, Tensor],
    ) -> dict[int, Tensor]:  # fmt: skip
        """By id of the results: what the program's own inputs give in the wider dtype."""
        if writing is None and all(held is None for _, held in given.values()):
            return {key: shadow.detach() for key, shadow in shadows.items()}
        known: Given = {}
        for key, (tensor, held) in given.items():
            known[key] = tensor, None if held is None or held.buffer.requires_grad else _Own(held.like(tensor))
        before: list[Incoming] = []
        if writing is not None:
            before = [dataclasses.replace(one, held=_Own(self._before[id(one.tensor)])) for one in writing.incoming]
            writing = dataclasses.replace(writing, incoming=before)
        wrote = {id(one.tensor): one.held for one in before}
        again = super()._compute_shadows(op, args, kwargs, inputs, known, out, made, writing)
        return {id(tensor): wrote[id(tensor)].buffer if own is None else own for tensor, own in again}

    def _decision(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, row_of: RowOf
    ) -> None:
        exact: Given = {}
        for key, (tensor, held) in given.items():
            exact[key] = tensor, None if held is None else _Own(self.memory.read(tensor, held.buffer.dtype), held)
        super()._decision(op, args, kwargs, inputs, exact, out, row_of)

    def _call(self, op: Operator, args: Any, kwargs: Any) -> Any:
        if op.name in FUSED:  # its module is run again as a whole: a share is not linear in so many steps
            raise NotImplementedError(op.name)
        if "out" in kwargs:  # which autograd does not follow
            result = op.func.overloadpacket(*args, **{key: value for key, value in kwargs.items() if key != "out"})
            return kwargs["out"].copy_(result)
        if op.name == "_to_copy" and kwargs == {"dtype": args[0].dtype} and args[0].requires_grad:
            return args[0].view_as(args[0])  # nothing in a graph is written to, so it needs no copy
        if op.name == "embedding_renorm_":  # which has no derivative; `renorm` has one
            table, indices, largest, norm = args
            rows = indices.unique()
            return table.index_copy_(0, rows, table[rows].renorm(norm, 0, largest))
        return super()._call(op, args, kwargs)


def error_tensor(tensor: Tensor, own: Tensor) -> Tensor | None:
    """What values differ by from those of the wider dtype; None for nothing. What is infinite in both does not."""
    value = tensor.detach().to(own.dtype).sub(own)
    largest = float(torch.linalg.vector_norm(value, math.inf)) if value.numel() else 0.0
    if not math.isfinite(largest):
        value.nan_to_num_(0, 0, 0)
    return value if largest else None


def _stored(value: Tensor) -> Tensor:
    return value if value.is_complex() else value.to(_STORED)


def midpoint(shadow: Tensor, value: Tensor) -> Tensor:
    """A shadow that takes half of what was added."""
    if shadow._is_view() or shadow.is_leaf:
        return shadow.add(value, alpha=0.5)
    shadow.data.add_(value, alpha=0.5)  # what the graph has saved of it moves too, by less than a derivative feels
    return shadow


def without_error(tensor: Tensor, shadow: Tensor) -> Tensor:
    """What values would be without any error, of which their shadow has half."""
    own = tensor.detach().to(shadow.dtype)
    return torch.where(own.isfinite(), 2 * shadow - own, shadow)


def product(gradient: Tensor, delta: Tensor) -> float:
    """⟨gradient, delta⟩, of complex numbers too."""
    if gradient.is_complex():
        gradient, delta = torch.view_as_real(gradient), torch.view_as_real(delta.to(gradient.dtype))
    return float((gradient * delta).sum(dtype=torch.float64))
