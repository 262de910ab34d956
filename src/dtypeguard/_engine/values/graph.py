"""A shadow that records a graph of its own, and what each operation of the program adds to the error.

The program runs once, without gradients, as it will be used. Its shadow records a graph beneath the dispatch mode, so
a backward from the error of the outputs runs in the wider dtype, and gives the adjoint of each operation. Each one runs
once more on the program's own inputs in the wider dtype: what its result differs by is what it adds, and the product of
both is its share (first-order error propagation, as in Higham, Accuracy and Stability of Numerical Algorithms, 3).

What is written in place becomes a new tensor in the shadow, so the graph holds whatever the program overwrites. What
needs no gradient (a buffer, a table of positions) comes in as it is in the shadow, so that its error is charged where
it meets what has one.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..._core.base import private
from ..._core.base.dtypes import WIDER
from ..operands import shadowed
from ..ops import Operator, Way
from .memory import Memory, ShadowStorage
from .rows import Row
from .shadow import Given, RowOf, Shadow, Writing

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
    """

    row: Row
    value: Tensor
    reach: Any = None
    share: float = 0.0


class GraphStorage(ShadowStorage):
    """A shadow whose buffer is no memory to write to, but the result of what was recorded."""

    __slots__ = ("_targets", "last", "latest")

    def __init__(self, ref: Any, tensor: Tensor, size: int, buffer: Tensor, row: Any) -> None:
        super().__init__(ref, tensor, size, buffer, row)
        self._targets: dict[int, Tensor] = {}
        self.last: Tensor | None = None  # what was written in place last
        self.latest: list[Delta] = []  # what was added to these values, until an operation reads them

    def like(self, tensor: Tensor) -> Tensor:
        buffer, size, stride = self.buffer, tensor.size(), tensor.stride()
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
        made = self._targets[id(tensor)] = self.like(tensor).clone(memory_format=torch.preserve_format)
        return made

    def settle(self, tensor: Tensor) -> None:
        self.last = self._targets.pop(id(tensor))
        self.write(tensor, self.last)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        values = values.detach() if values is tensor else values
        values = values.to(self.buffer.dtype)
        if _shows(tensor, self.size, values):
            self.buffer = values
            return
        flat = self.buffer.as_strided((self.size // tensor.itemsize,), (1,), 0).clone()
        # The derivative of `as_strided_scatter` is wrong in torch 2.13.
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        self.buffer = flat


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
        found: Any = super().get(tensor)
        return found  # type: ignore[no-any-return]  # it makes no others

    def set(self, tensor: Tensor, value: Tensor, row: Any) -> ShadowStorage:
        with recording():
            value = value.to(device=tensor.device, dtype=self.wider[tensor.dtype])
            held = self._put(tensor, value, row)
            if not _shows(tensor, held.size, value):
                held.buffer = value.new_zeros(held.size // tensor.itemsize)
                held.write(tensor, value)
        return held


class _Own(ShadowStorage):
    """The program's own values in the place of a shadow."""

    __slots__ = ()

    def __init__(self, values: Tensor) -> None:
        self.buffer, self.read = values, False

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
        # Of the operation that runs: a result, its shadow, and what the program's own inputs give in the wider dtype.
        self._results: list[tuple[Tensor, Tensor, Tensor]] = []

    def seed(self, tensor: Tensor, exact: Tensor, row: Row | None = None) -> None:
        """What a tensor is in the wider dtype; outside of the mode."""
        if shadowed(tensor):
            tensor = tensor.detach()
            held = self.memory.hold(tensor)
            with recording(below=False):
                held.write(tensor, exact.to(held.buffer.dtype))
            held.row = row

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
        for tensor, shadow, own in self._results:
            held = self.memory.get(tensor)
            if held is not None and held.row is not None:
                self.add(held.row, tensor, shadow, own)
        self._results.clear()

    def add(self, row: Row, tensor: Tensor, shadow: Tensor, own: Tensor) -> None:
        """What an operation has added to a tensor is charged by the backward of its shadow."""
        value = tensor.detach().to(shadow.dtype).sub(own)
        held = self.memory.get(tensor)
        if not shadow.requires_grad or held is None or not value.any():
            return
        delta = Delta(row, value if value.is_complex() else value.to(_STORED))
        self.deltas.append(delta)
        held.latest.append(delta)

        def hook(gradient: Tensor | None) -> None:
            if not self.quiet and gradient is not None:
                delta.share = product(gradient, delta.value)

        shadow.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _again(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, made: list[Tensor],
        writing: Writing | None,
    ) -> list[tuple[Tensor, Tensor | None]]:  # fmt: skip
        with recording(copies=self._copies):
            found = super()._again(op, args, kwargs, inputs, given, out, made, writing)
        shadows = [self._shadow_of(tensor, shadow) for tensor, shadow in found]
        if not any(shadow.requires_grad for shadow in shadows):
            return found
        if writing is None and all(held is None for _, held in given.values()):
            owns = {id(tensor): shadow.detach() for (tensor, _), shadow in zip(found, shadows, strict=True)}
        else:
            known: Given = {}
            for key, (tensor, held) in given.items():
                known[key] = tensor, None if held is None or held.buffer.requires_grad else _Own(held.like(tensor))
            if writing is not None:
                before = [_Own(self._before[id(one.tensor)]) for one in writing.incoming]
                incoming = [
                    dataclasses.replace(one, held=own) for one, own in zip(writing.incoming, before, strict=True)
                ]
                writing = dataclasses.replace(writing, incoming=incoming)
            again = super()._again(op, args, kwargs, inputs, known, out, made, writing)
            wrote = {} if writing is None else {id(one.tensor): one.held.buffer for one in writing.incoming}
            owns = {id(tensor): wrote[id(tensor)] if own is None else own for tensor, own in again}
        self._results = [
            (tensor, shadow, owns[id(tensor)])
            for (tensor, _), shadow in zip(found, shadows, strict=True)
            if id(tensor) in owns
        ]
        return found

    def _call(self, op: Operator, args: Any, kwargs: Any) -> Any:
        if op.name == "_to_copy" and kwargs == {"dtype": args[0].dtype} and args[0].requires_grad:
            return args[0].view_as(args[0])  # nothing in a graph is written to, so it needs no copy
        return super()._call(op, args, kwargs)

    def _shadow_of(self, tensor: Tensor, made: Tensor | None) -> Tensor:
        if made is not None:
            return made
        held = self.memory.get(tensor)
        assert held is not None
        return held.buffer if held.last is None else held.last


def product(gradient: Tensor, delta: Tensor) -> float:
    """⟨gradient, delta⟩, of complex numbers too; what is infinite with and without the error has none."""
    if gradient.is_complex():
        gradient, delta = torch.view_as_real(gradient), torch.view_as_real(delta.to(gradient.dtype))
    found = float((gradient * delta).sum(dtype=torch.float64))
    return found if math.isfinite(found) else float((gradient * delta.nan_to_num(0, 0, 0)).sum(dtype=torch.float64))
