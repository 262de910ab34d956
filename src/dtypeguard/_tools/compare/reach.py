"""What would be computed in float32 if a module was kept in float32.

Its result is float32 then, and so is what is computed from that, as PyTorch promotes, until a module of PyTorch's own
is reached that needs its parameters' dtype, or the program casts. So a module that is kept saves more than its own
error. Each tensor carries the modules that would make it float32, as the bits of one number. Where an operation would
refuse such a tensor beside the others, the result of that module has to be cast back.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from ..._core.base.dtypes import HALF
from ..._core.doors.choose import owners, refuses_wider
from ..._engine.ops import Operator
from ..formats.origins import Marks
from .subject import REFUSALS


class Reach(NamedTuple):
    """Which modules would make a tensor float32."""

    inside: int = 0  # those that it is computed in
    outside: int = 0  # those whose results it is computed from
    edge: int = 0  # those that return it
    perhaps: int = 0  # those whose results it is computed from by a cast, perhaps to a dtype that follows them

    def beyond(self, inside: int) -> int:
        """The modules that would make it float32, without some."""
        return (self.inside | self.outside) & ~inside

    def saved(self, narrow: int) -> int:
        """The modules that save its error, if the results of `narrow` are cast back."""
        return (self.inside & ~(self.edge & narrow)) | (self.outside & ~narrow)


_NOWHERE = Reach()
_EXPONENT = 0x7F800000  # its bits in a float32
_PRODUCTS = (  # for these, autocast casts
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "convolution", "_grouped_mm",
    "_scaled_dot", "mkldnn_rnn", "_thnn_fused", "_cudnn_rnn", "miopen_rnn",
)  # fmt: skip
_PROMOTE = frozenset(["cat", "stack"])  # besides what is pointwise


class Savings:
    """What keeping modules in float32 saves, by the shares that one run has found."""

    def __init__(self) -> None:
        self.parts: defaultdict[Reach, float] = defaultdict(float)  # shares of the error², by what would save them
        # What rounding the input of a module that is not kept costs, where it would be float32: by what would make it
        # so, and the bits of the module and all around it.
        self.doors: defaultdict[tuple[Reach, int], float] = defaultdict(float)
        self.narrow = 0  # the bits of modules whose results have to be cast back
        # By the floating tensor of a batch, the bits of the modules each of which is around all that reads it.
        self.taken: dict[int, int] = {}

    def scale(self, factor: float) -> None:
        """Multiply all shares and costs."""
        for reach in self.parts:
            self.parts[reach] *= factor
        for door in self.doors:
            self.doors[door] *= factor


def _rounding_steps(values: Tensor, dtype: torch.dtype) -> Tensor:
    """What rounding does to each value, on average: a dtype's step there over the root of 12."""
    powers = (values.float().view(torch.int32) & _EXPONENT).view(torch.float32)  # of two, below the values
    return powers * (torch.finfo(dtype).eps / math.sqrt(12))


@dataclass(eq=False, slots=True)
class Door:
    """An input of a module that would have to round it to the low dtype, if it was float32."""

    reach: Reach
    inside: int
    low: torch.dtype
    rounds: bool  # whether it does
    asked: list[bool]  # whether a backward asks for the costs of doors, not for shares
    cost: float = 0.0

    def tell(self, gradient: Tensor, values: Tensor) -> None:
        """What rounding values costs, by a gradient that random signs at the outputs have given."""
        if self.asked[0] and self.rounds:
            self.cost = float((gradient.float() * _rounding_steps(values, self.low)).square().sum(dtype=torch.float64))


@dataclass(eq=False, slots=True)
class Running:
    """A call of a module; below all of them is what runs in none."""

    name: str | None = None
    inside: int = 0  # its bit, and those of all modules around it
    door: bool = False  # whether it casts what it gets
    typed: bool = False  # whether it is a module of PyTorch's own that needs its parameters' dtype
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    blind: list[str] = field(default_factory=list)  # operations in it whose error nobody knows
    opened: list[Any] = field(default_factory=list)  # what goes through its doors, each with its door at the end


class Modules:
    """The modules of a model that can be kept, each with its bit, and those that are running."""

    def __init__(self, model: nn.Module, doors: bool) -> None:
        self.of = dict(model.named_modules())
        self.bits = {name: 1 << n for n, name in enumerate(self.of)}
        self.running = [Running()]
        self.doors = doors  # whether modules cast what they get; autocast casts for operations
        self._hooks: list[Any] = []
        guarded = {name for name, module in owners(model) if refuses_wider(module)}
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._listen(name, module, name in guarded)
        self.refused: str | None = None  # the innermost module that an exception has left
        self.entered: Any = _unheard  # called when a module is called, and when it returns
        self.left: Any = _unheard

    def _listen(self, name: str, module: nn.Module, typed: bool) -> None:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            call = Running(name, self.now.inside | self.bits[name], typed and self.doors, typed, args, kwargs)
            self.running.append(call)
            self.entered(call)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            call = self.running.pop()
            if result is not None:
                self.left(call, result)
            elif self.refused is None:  # an exception is on its way
                self.refused = name

        self._hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(leave, always_call=True))

    @property
    def now(self) -> Running:
        """The innermost call."""
        return self.running[-1]

    def around(self, name: str) -> int:
        """The bits of a module and all modules around it."""
        bits, parts = self.bits[""], name.split(".") if name else []
        for n in range(len(parts)):
            bits |= self.bits.get(".".join(parts[: n + 1]), 0)
        return bits

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.entered = self.left = _unheard  # whoever listens holds these modules: no cycle keeps the model alive


def _unheard(call: Running, result: Any = None) -> None:
    """Nobody listens."""


class Reaches:
    """The reach of each storage."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._of = Marks[Reach]()
        self._accepts: dict[Any, bool] = {}
        self.narrow = 0  # modules whose results some operation refuses

    def of(self, tensor: Tensor) -> Reach:
        return self._of.get(tensor) or _NOWHERE

    def computed(self, op: Operator, args: Any, kwargs: Any, inputs: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """An operation has run; it may have written to one of its inputs."""
        now, inside = self._modules.now, self._modules.now.inside
        if self.casts(op):
            for *_, door in now.opened:
                door.rounds = True
        written = {tensor.untyped_storage()._cdata for tensor in inputs}
        outside = perhaps = 0
        if not now.door:
            outside, perhaps = self._modules_behind(op, args, kwargs, inputs)
            casts = op.name == "_to_copy" or self.casts(op)
            if casts and any(tensor.dtype in HALF for tensor in out):
                outside, perhaps = 0, outside | perhaps
        for tensor in out:
            if tensor.untyped_storage()._cdata in written:  # it keeps its dtype
                old = self.of(tensor)
                self._of.set(tensor, Reach(old.inside | inside, old.outside, 0, old.perhaps))
            else:
                self._of.set(tensor, Reach(inside, outside, 0, perhaps))

    def returned(self, name: str, tensor: Tensor) -> None:
        bit, reach = self._modules.bits[name], self.of(tensor)
        self._of.set(tensor, reach._replace(outside=reach.outside | bit, edge=reach.edge | bit))

    def casts(self, op: Operator) -> bool:
        """Whether autocast casts the inputs of an operation."""
        return not self._modules.doors and op.name.startswith(_PRODUCTS)

    def _modules_behind(self, op: Operator, args: Any, kwargs: Any, inputs: Sequence[Tensor]) -> tuple[int, int]:
        """The modules outside whose results make the result of an operation float32, surely and perhaps."""
        inside, reaches = self._modules.now.inside, [self.of(tensor) for tensor in inputs]
        sure = together = 0
        for reach in reaches:
            sure |= (reach.inside | reach.outside) & ~inside
            together |= reach.perhaps & ~inside
        together |= sure
        if len(inputs) < 2 or op.writes or self.casts(op):
            return sure, together & ~sure
        masks = [(reach.inside | reach.outside | reach.perhaps) & ~inside for reach in reaches]
        left, narrow = together, 0
        while left:
            bit = left & -left
            wide = tuple(
                bool(mask & bit) or tensor.dtype not in HALF for mask, tensor in zip(masks, inputs, strict=True)
            )
            group = left
            for mask, tensor in zip(masks, inputs, strict=True):
                if tensor.dtype in HALF:
                    group &= mask if mask & bit else ~mask
            if not all(wide) and not self._accepted(op, args, kwargs, inputs, wide):
                narrow |= group
            left &= ~group
        if self._modules.doors:  # autocast casts no results back
            self.narrow |= narrow
        return sure & ~narrow, together & ~sure & ~narrow

    def _accepted(self, op: Operator, args: Any, kwargs: Any, inputs: Sequence[Tensor], wide: tuple[bool, ...]) -> bool:
        """Whether an operation takes these of its inputs in float32 beside the others; it is tried once."""
        if torch.Tag.pointwise not in op.func.tags and op.name not in _PROMOTE:
            return False  # some kernels check nothing, and read the wrong bytes
        key = (op, wide, tuple(tensor.dtype for tensor in inputs))
        if key not in self._accepts:
            wider = {
                id(tensor): tensor.detach().float()
                for tensor, taken in zip(inputs, wide, strict=True)
                if taken and tensor.dtype in HALF
            }
            given, named = _pytree.tree_map(lambda value: wider.get(id(value), value), (args, kwargs))
            try:
                op.func(*given, **named)
                self._accepts[key] = True
            except REFUSALS:
                self._accepts[key] = False
        return self._accepts[key]
