"""One run of a model in a low dtype, operation by operation.

`Added` records what each operation adds to the error: it runs once more on the program's own inputs in a wider dtype,
and the difference is its own. A backward from the error of the outputs gives the adjoint of each operation; the product
of both is its share. What needs no gradient (a buffer, a table of positions) comes in as it would be in the wider
dtype, so that its error is charged where it meets what has one.

`Carried` keeps the wider values throughout, so it knows how far each module's output is from them.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core.base import private
from ..._core.contract.containers import tensors_in
from ..._engine.operands import operands, shadowed
from ..._engine.ops import Operator, Way, operator_of
from ..._engine.values.measure import error_of
from ..._engine.values.memory import ShadowStorage
from ..._engine.values.rows import Row, Rows
from ..._engine.values.shadow import Shadow
from ..._engine.watch.sites import Site, site_at, site_of, user_wrote
from .batches import mapped
from .reach import Door, Modules, Reach, Reaches, Running
from .subject import REFUSALS, Subject

NOWHERE = site_at("", 0, "")
_RUN = Subject.run.__code__
_LAYERS = torch.nn.modules.transformer.__file__
_LARGEST = torch.finfo(torch.float16).max
_STORED = torch.bfloat16  # an error needs few digits, and the range of float32
WEIGHTS = "weights"  # the name of the rows of casts of parameters


@dataclass(eq=False, slots=True)
class Delta:
    """What one operation added to the error of one tensor."""

    row: Row
    reach: Reach
    value: Tensor
    share: float = 0.0
    counts: bool = True


class _Through(torch.autograd.Function):
    """A tensor goes through a door; a gradient that comes back tells what rounding it costs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reached: Tensor, door: Door) -> Tensor:
        ctx.door, ctx.values = door, tensor.detach()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = grad_outputs
        ctx.door.tell(gradient, ctx.values)
        return gradient, torch.zeros(()) if ctx.needs_input_grad[1] else None, None


class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """What both have in common."""

    def __init__(self, modules: Modules, wide: Callable[[str], nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.modules, self._wide, self._paused = modules, wide, False
        self.rows = Rows()
        self.reaches = Reaches(modules)
        self.shadow = Shadow(_ignored, measure=False)
        self.operations = 0
        self.blind: list[str] = []  # names of operations whose error nobody knows
        modules.left = self._left

    def seed(self, tensor: Tensor, exact: Tensor) -> None:
        """What a tensor would be in the wider dtype."""
        if shadowed(tensor):
            tensor = tensor.detach()
            self.shadow.memory.hold(tensor).like(tensor).copy_(exact.detach())  # `set` could take the caller's own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused or private.current_node() is not None:  # a checkpoint runs forward again
            return func(*args, **kwargs)
        frame, op = sys._getframe(1), operator_of(func)
        given = operands(args, kwargs)
        inputs = [tensor for tensor in given if shadowed(tensor)]
        for tensor in inputs:
            self._meet(tensor, frame, op)

        def row_of(op: Operator, dtype: torch.dtype) -> Row:
            cast = op.name == "_to_copy" and isinstance(args[0], nn.Parameter)
            return self.rows.at(WEIGHTS if cast else op.name, _line(frame), self.modules.name, dtype, False)

        writing = self.shadow.before(op, args, kwargs, row_of)
        out = func(*args, **kwargs)
        self.operations += 1
        unknown = self.shadow.opaque.total()
        if op.way not in (Way.NONE, Way.TEST):  # a view, a constant, a random number has no error
            self.shadow.after(op, args, kwargs, given, out, writing, row_of)
        made = [tensor for tensor in operands((out,), {}) if shadowed(tensor)]
        if made and (op.way_for(args, kwargs) is Way.OPAQUE or self.shadow.opaque.total() > unknown):
            (self.modules.running[-1].blind if self.modules.running else self.blind).append(op.name)
        if op.way is Way.NONE:
            self.reaches.begun(inputs, made)
        else:
            self.reaches.computed(op, args, kwargs, inputs, made)
            self._made(op, made, row_of)
        return out

    def _meet(self, tensor: Tensor, frame: Any, op: Operator) -> None:
        """A tensor goes into an operation."""

    def _made(self, op: Operator, made: list[Tensor], row_of: Callable[..., Row]) -> None:
        """These come out."""

    def _left(self, call: Running, result: Any) -> None:
        for tensor in tensors_in(result):
            if shadowed(tensor):
                self.reaches.returned(call.name, tensor)
        if call.blind and not self._whole(call, result):
            self.blind += call.blind

    def _whole(self, call: Running, result: Any) -> bool:
        """Run a module once more as a whole, in float64, since nobody knows what an operation in it does."""
        memory = self.shadow.memory

        def widen(tensor: Tensor) -> Tensor:
            return memory.read(tensor, torch.float64).clone() if shadowed(tensor) else tensor

        self._paused = True
        try:
            module = self._wide(call.name)
            if module.training and any(map(_drops_out, module.modules())):
                return False
            with torch.no_grad(), torch.autocast(_device(result), enabled=False):
                wide = module(*mapped(call.args, widen), **mapped(call.kwargs, widen))
            pairs = list(zip(tensors_in(result), tensors_in(wide), strict=True))
            if any(one.shape != other.shape for one, other in pairs):
                return False
            for one, other in pairs:
                if shadowed(one):
                    row = self.rows.at(call.blind[0], _line(sys._getframe(1)), call.name, one.dtype, False)
                    memory.set(one, other, row)
        except (*REFUSALS, ValueError):
            return False
        finally:
            self._paused = False
        return True


class Added(_Trace):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records what each operation adds to the error."""

    def __init__(self, modules: Modules, wide: Callable[[str], nn.Module], low: torch.dtype) -> None:
        super().__init__(modules, wide)
        self._low = low
        self.deltas: list[Delta] = []
        self.uses: dict[int, tuple[Site, str | None]] = {}  # of parameters by id: where each is used first
        self.inputs: set[int] = set()  # ids of tensors that the model was given
        self.taken = -1  # the bits of the modules around all operations that read one of them
        self.doors: list[Door] = []
        self.products: list[tuple[Door, Tensor]] = []  # those before products, with what goes through
        self.asks_doors = [False]
        self.reached = torch.zeros((), requires_grad=True)  # a backward to it goes to all doors, and no further
        modules.entered, modules.through = self._entered, self._through

    def _entered(self, call: Running) -> None:
        call.start = len(self.deltas)

    def _through(self, call: Running, tensor: Tensor) -> Tensor:
        """The input of a module that would cast it: what this rounding costs is told by another gradient."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        if shadowed(tensor):
            self.collect(tensor)
        door = self._door(tensor)
        if door is None:
            return tensor
        call.doors.append(door)
        seen: Tensor = _Through.apply(tensor, self.reached, door)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return seen

    def _whole(self, call: Running, result: Any) -> bool:
        if not super()._whole(call, result):
            return False
        for delta in self.deltas[call.start :]:  # what was recorded inside is a part of the whole
            module = delta.row.module or ""
            delta.counts = delta.counts and not (module == call.name or module.startswith(f"{call.name}."))
        return True

    def _meet(self, tensor: Tensor, frame: Any, op: Operator) -> None:
        if not tensor.requires_grad:
            return
        if id(tensor) in self.inputs:
            self.taken &= self.modules.inside
        if tensor.grad_fn is None:
            if id(tensor) not in self.uses:
                self.uses[id(tensor)] = _line(frame), self.modules.name
            return
        self.collect(tensor)
        if not self.modules.door and self.reaches.casts(op):  # a product that stands in no module of PyTorch's
            door = self._door(tensor)
            if door is not None:
                door.rounds = True
                self.products.append((door, tensor))

    def _door(self, tensor: Tensor) -> Door | None:
        """Where a tensor of the low dtype would have to be rounded, if modules outside had made it float32."""
        reach, inside = self.reaches.of(tensor), self.modules.inside
        if tensor.dtype is not self._low or not reach.beyond(inside):
            return None
        self.doors.append(Door(reach, inside, self._low, self.modules.doors, self.asks_doors))
        return self.doors[-1]

    def collect(self, tensor: Tensor) -> None:
        """What was added to a tensor since it was looked at last."""
        node, held = tensor.grad_fn, self.shadow.memory.get(tensor) if shadowed(tensor) else None
        if held is None or node is None:
            return
        self.shadow.memory.drop(tensor)
        if held.row is None:
            return
        shadow = held.like(tensor.detach())
        value = tensor.detach().to(shadow.dtype).sub(shadow)
        if not value.any():
            return
        delta = Delta(held.row, self.reaches.of(tensor), value.to(_STORED))
        self.deltas.append(delta)
        number = tensor.output_nr

        def hook(gradients: Sequence[Tensor | None]) -> None:
            gradient = gradients[number]
            if gradient is not None and delta.counts and not self.asks_doors[0]:
                delta.share = float((gradient * delta.value).sum(dtype=torch.float64))

        node.register_prehook(hook)


@dataclass
class Course:
    """How far the output of a module is from the wider one, over all its calls."""

    distance: float = 0.0
    size: float = 0.0
    lost: int = 0

    @property
    def error(self) -> float:
        return math.inf if self.lost else math.sqrt(self.distance / self.size) if self.size else 0.0


class Carried(_Trace):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Keeps the wider values throughout."""

    def __init__(self, modules: Modules, wide: Callable[[str], nn.Module]) -> None:
        super().__init__(modules, wide)
        self.courses: dict[str, Course] = {}  # by module, in the order in which they return
        self.overflows: list[tuple[Reach, int]] = []  # values that float16 does not hold: what would save how many
        modules.through = self._through

    def _through(self, call: Running, tensor: Tensor) -> Tensor:
        """The input of a module that would cast it, if it was float32, and lose what is too large."""
        beyond = self._beyond(tensor)
        if beyond:
            self.overflows.append((Reach(inside=call.inside), beyond))
        return tensor

    def _beyond(self, tensor: Tensor) -> int:
        """How many values of a float16 tensor are too large for it."""
        held = self.shadow.memory.get(tensor) if tensor.dtype is torch.float16 and shadowed(tensor) else None
        if held is None:
            return 0
        size = held.like(tensor).abs()
        return int(((size > _LARGEST) & (size < math.inf)).sum())

    def _made(self, op: Operator, made: list[Tensor], row_of: Callable[..., Row]) -> None:
        for tensor in made:
            beyond = self._beyond(tensor)
            if beyond:
                self.overflows.append((self.reaches.of(tensor), beyond))

    def _left(self, call: Running, result: Any) -> None:
        super()._left(call, result)
        course = self.courses.pop(call.name, None) or Course()
        for tensor in tensors_in(result):
            held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
            if held is not None:
                error = error_of(tensor, held.like(tensor))
                course.distance += error.distance**2
                course.size += error.size**2
                course.lost += error.lost
            elif isinstance(tensor, Tensor) and tensor.is_floating_point():
                course.size += float(tensor.detach().double().square().sum())
        self.courses[call.name] = course

    def exact(self, tensor: Tensor) -> Tensor:
        """What a tensor would be."""
        held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
        return tensor if held is None else held.like(tensor)


def _line(frame: FrameType | None) -> Site:
    """The user's line inside of the model; where all lines are PyTorch's, that of a layer that has others in it."""
    torch_own: FrameType | None = None
    while frame is not None and frame.f_code is not _RUN:
        file = frame.f_code.co_filename
        if user_wrote(frame):
            return site_of(frame)
        if torch_own is None and file == _LAYERS:
            torch_own = frame
        frame = frame.f_back
    return NOWHERE if torch_own is None else site_of(torch_own)


def _drops_out(module: nn.Module) -> bool:
    share = module.dropout if isinstance(module, nn.RNNBase) else getattr(module, "p", 0.0)
    return isinstance(module, nn.RNNBase | nn.modules.dropout._DropoutNd) and share > 0


def _device(result: Any) -> str:
    return next((tensor.device.type for tensor in tensors_in(result)), "cpu")


def _ignored(held: ShadowStorage) -> None:
    pass
