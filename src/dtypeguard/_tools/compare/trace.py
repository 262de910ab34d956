"""One run of a model in a low dtype, operation by operation, beside its shadow, which records a graph."""

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base import private
from ..._core.base.frames import below
from ..._core.base.modes import Mode
from ..._core.base.progress import tell
from ..._core.contract.containers import children, tensors_in
from ..._engine.operands import native, operands, shadowed
from ..._engine.ops import Operator, Way, operator_of
from ..._engine.values.graph import Graph, error_tensor, recording
from ..._engine.values.measure import error_of
from ..._engine.values.memory import ShadowStorage
from ..._engine.values.rows import Row, Rows
from ..._engine.values.shadow import RowOf, Writing
from ..._engine.watch.sites import Site, site_at, site_of, user_wrote
from .batches import mapped
from .reach import Door, Modules, Reach, Reaches, Running
from .subject import REFUSALS, Subject

NOWHERE = site_at("", 0, "")
_RUN = Subject.run.__code__
_LAYERS = torch.nn.modules.transformer.__file__
_LARGEST = torch.finfo(torch.float16).max
_SAMPLES = 8  # fewer ones are too few to be a mean of
WEIGHTS = "weights"  # the name of the rows of casts of parameters

Wide = Callable[[str], nn.Module]  # a module of the model by its name, in the wider dtype
Opened = tuple[ShadowStorage, Tensor, Tensor, Door]  # a shadow, its buffer, and the one that goes through a door


@dataclass
class Course:
    """How far the output of a module is from the wider one, over all its calls."""

    distance: float = 0.0
    size: float = 0.0
    lost: int = 0

    @property
    def error(self) -> float:
        return math.inf if self.lost else math.sqrt(self.distance / self.size) if self.size else 0.0


class _Through(torch.autograd.Function):
    """A shadow goes through a door; a gradient that comes back tells what rounding it costs."""

    @staticmethod
    def forward(ctx: Any, shadow: Tensor, reached: Tensor, door: Door) -> Tensor:
        ctx.door, ctx.values = door, shadow.detach()
        return shadow.view_as(shadow)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (gradient,) = grad_outputs
        ctx.door.tell(gradient, ctx.values)
        return gradient, torch.zeros(()) if ctx.needs_input_grad[1] else None, None


class Trace(Mode):
    """Records what each operation adds to the error, and how far each module's output is from its shadow."""

    def __init__(self, modules: Modules, wide: Wide, subject: Subject, copies: bool) -> None:
        super().__init__()
        self.modules, self._wide, self._title, self._paused = modules, wide, subject.title, False
        self._low, self._widens = subject.low, subject.widens
        self.rows, self.reaches, self.shadow = Rows(), Reaches(modules), Graph(subject.low, copies)
        self.operations = 0
        self.inputs: dict[int, int] = {}  # which of the tensors that the model was given it is, by id
        self.uses: dict[int, tuple[Site, str | None]] = {}  # of parameters by id: where each is used first
        self.courses: dict[str, Course] = {}  # by module, in the order in which they return
        self.overflows: list[tuple[Reach, int]] = []  # values that float16 does not hold: what would save how many
        self.taken: dict[int, int] = {}  # by input, the bits of the modules around all operations that read it
        self.doors: list[Door] = []
        self.asks_doors = [False]
        self.reached = torch.zeros((), requires_grad=True)  # a backward to it goes to all doors, and no further
        self.beyond: set[str] = set()  # modules in which rounding to a format has made values infinite
        self.samples = 0  # in a backward that asks for powers, how many samples the outputs have
        self.powers = defaultdict[str, float](float)  # of what each module's products make of the outputs
        # What was rounded last, its shadow, and the wider values.
        self._halfway: tuple[Tensor | None, Tensor, Tensor | None] = None, self.reached, None
        modules.entered, modules.left = self._module_entered, self._module_returned

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """What runs in here is no operation of the program: this mode and others do not see it."""
        self._paused = True
        try:
            with private.without_keys(private.MODES_AND_AUTOCAST):
                yield
        finally:
            self._paused = False

    # ------------------------------------------------------------ operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        frame, op = below(1), operator_of(func)
        given = operands(args, kwargs)
        if not all(map(native, given)):  # a subclass of tensors, or a transform, computes in its own way
            out = func(*args, **kwargs)
            self.operations += 1
            if op.way is not Way.NONE:
                self.modules.now.blind.append(op.name)
            return out
        inputs = [tensor for tensor in given if shadowed(tensor)]
        for tensor in inputs:
            self._meet(tensor, frame)

        def row_of(op: Operator, dtype: torch.dtype) -> Row:
            cast = op.name == "_to_copy" and isinstance(args[0], nn.Parameter)
            return self.rows.at(WEIGHTS if cast else op.name, _line(frame), self.modules.now.name, dtype, False)

        with self._looking():
            writing = self.shadow.before(op, args, kwargs, row_of)
        out = func(*args, **kwargs)
        self.operations += 1
        with self._looking():
            self._operation_ran(op, args, kwargs, given, inputs, out, writing, row_of)
        return out

    def _operation_ran(
        self, op: Operator, args: Any, kwargs: Any, given: list[Tensor], inputs: list[Tensor], out: Any,
        writing: Writing | None, row_of: RowOf,
    ) -> None:  # fmt: skip
        """The program's operation has run."""
        tell(lambda: f"run in {self._title}, operation {self.operations:,}")
        unknown = self.shadow.opaque.total()
        with self._product(op, inputs):
            if op.way not in (Way.NONE, Way.TEST):  # a view, a constant, a random number has no error
                self.shadow.after(op, args, kwargs, given, out, writing, row_of)
        made = [tensor for tensor in operands((out,), {}) if shadowed(tensor)]
        if made and (op.way_for(args, kwargs) is Way.OPAQUE or self.shadow.opaque.total() > unknown):
            self.modules.now.blind.append(op.name)
        if op.way is Way.NONE or not self._widens:
            return
        self.reaches.computed(op, args, kwargs, inputs, made)
        for tensor in made:
            self._reach(tensor)
            self._overflow(tensor, self.reaches.of(tensor))

    def rounded(self, tensor: Tensor, found: Tensor, weight: bool) -> None:
        """The program has rounded an operand to a format; only the module around it saves that."""
        frame, now = sys._getframe(1), self.modules.now
        self._meet(tensor, frame)
        with self._looking():
            beyond = int((found.isinf() & tensor.isfinite()).sum())
            if beyond:
                self.overflows.append((Reach(now.inside), beyond))
                self.beyond.add(now.name or "")
            row = self.rows.at(WEIGHTS if weight else "rounded", _line(frame), now.name, found.dtype, False)
            held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
            if self._halfway[0] is not found:  # which several products may read
                with recording():
                    shadow = tensor if held is None else held.like(tensor)
                    shadow = shadow.view_as(shadow)  # which others read as it is
                self._halfway = found, *self.shadow.halfway(found, shadow, tensor, below=True)
            _, shadow, value = self._halfway
            with recording():
                shadow = shadow.view_as(shadow)  # each is charged by itself
            self.shadow.whole(row, found, shadow, value, below=True)
            made = self.shadow.memory.get(found)
            for delta in () if made is None else made.latest:
                delta.reach = Reach(now.inside)

    def multiplied(self, out: Tensor, exact: Tensor) -> None:
        """The product of rounded operands, and that of the same ones before."""
        with self._looking():
            self._weigh(self.modules.now.name or "", out, exact)

    def _weigh(self, name: str, out: Tensor, exact: Tensor) -> None:
        """What a module adds to a tensor is asked for by backwards from random signs."""
        held = self.shadow.memory.get(out) if shadowed(out) else None
        value = None if held is None or not held.buffer.requires_grad else error_tensor(out, exact)
        if held is None or value is None or held.buffer.shape != out.shape:
            return
        value = value.bfloat16()  # a power needs few digits

        def hook(gradient: Tensor) -> None:
            if self.samples:
                self.powers[name] += power(gradient, value, self.samples)

        held.buffer.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _meet(self, tensor: Tensor, frame: FrameType | None) -> None:
        """A tensor goes into an operation."""
        if (which := self.inputs.get(id(tensor))) is not None:
            self.taken[which] &= self.modules.now.inside
        elif isinstance(tensor, nn.Parameter) and id(tensor) not in self.uses:
            self.uses[id(tensor)] = _line(frame), self.modules.now.name
        held = self.shadow.memory.get(tensor)
        if held is not None:
            held.latest = []

    def _reach(self, tensor: Tensor) -> None:
        """What was added to a tensor is saved by what makes it wider."""
        held = self.shadow.memory.get(tensor)
        for delta in () if held is None else held.latest:
            delta.reach = self.reaches.of(tensor)

    def _overflow(self, tensor: Tensor, reach: Reach) -> None:
        """Values that are too large for float16."""
        held = self.shadow.memory.get(tensor) if tensor.dtype is torch.float16 and shadowed(tensor) else None
        if held is not None:
            size = held.like(tensor).detach().abs()
            beyond = int(((size > _LARGEST) & (size < math.inf)).sum())
            if beyond:
                self.overflows.append((reach, beyond))

    # ------------------------------------------------------------ doors

    @contextlib.contextmanager
    def _product(self, op: Operator, inputs: list[Tensor]) -> Iterator[None]:
        """A product that autocast casts for, and that stands in no module of PyTorch's, is a door of its own."""
        now, opened = self.modules.now, []
        if self.reaches.casts(op) and not now.typed:
            opened = [one for tensor in inputs if (one := self._door_of(tensor, now.inside, True, below=True))]
        try:
            yield
        finally:
            _close_doors(opened)

    def _door_of(self, tensor: Tensor, inside: int, rounds: bool, below: bool) -> Opened | None:
        """Where a tensor of the low dtype would have to be rounded, if modules outside had made it float32."""
        held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
        if held is None or not held.buffer.requires_grad or tensor.dtype is not self._low:
            return None
        reach = self.reaches.of(tensor)
        if not reach.beyond(inside):
            return None
        door, before = Door(reach, inside, self._low, rounds, self.asks_doors), held.buffer
        self.doors.append(door)
        with recording(below):
            held.buffer = _Through.apply(before, self.reached, door)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return held, before, held.buffer, door

    # ------------------------------------------------------------ modules

    def _module_entered(self, call: Running) -> None:
        if not call.typed:
            return
        with self._looking():
            for tensor in {id(one): one for one in tensors_in((call.args, call.kwargs))}.values():
                self._overflow(tensor, Reach(inside=call.inside))
                one = self._door_of(tensor, call.inside, self.modules.doors, below=False)
                if one is not None:
                    call.opened.append(one)

    def _module_returned(self, call: Running, result: Any) -> None:
        assert call.name is not None
        with self._looking():
            _close_doors(call.opened)
            for tensor in tensors_in(result):
                if shadowed(tensor) and self._widens:
                    self.reaches.returned(call.name, tensor)
                    self._reach(tensor)
        if call.blind and not self._run_whole(call.name, call, result):
            foreign = not all(map(native, tensors_in((call.args, call.kwargs, result))))
            self.modules.running[-1 if foreign else 0].blind += call.blind
        with self._looking():
            self._course(call.name, result)

    def _run_whole(self, name: str, call: Running, result: Any) -> bool:
        """Run a module once more as a whole, since nobody knows what an operation in it does."""
        with private.without_modes():  # to copy a module is no operation of the program
            module = self._wide(name)
        if (module.training and any(map(_drops_out, module.modules()))) or not _repeats((call.args, call.kwargs)):
            return False
        if not all(map(native, tensors_in((call.args, call.kwargs, result)))):
            return False
        memory = self.shadow.memory

        def shadow_of(tensor: Tensor) -> Tensor:
            held = memory.get(tensor) if shadowed(tensor) else None
            return self._wide_values(tensor) if held is None else held.like(tensor)

        low = self.modules.of[name]
        weights = dict(named_tensors(low))
        try:
            runs = []
            for of in (shadow_of, self._wide_values):
                # Here runs code of the model's, which may bring tensors of subclasses.
                with (
                    private.without_modes(),
                    private.without_keys(private.AUTOCAST),
                    torch.set_grad_enabled(of is shadow_of),
                ):
                    state = {name: of(tensor) for name, tensor in weights.items()}
                    given = mapped(call.args, of), mapped(call.kwargs, of)
                    runs.append(list(tensors_in(torch.func.functional_call(module, state, *given))))
            with self._looking():
                for one, shadow, own in zip(tensors_in(result), *runs, strict=True):
                    if shadowed(one) and shadow.shape == one.shape:
                        row = self.rows.at(call.blind[0], _line(sys._getframe(1)), name, one.dtype, False)
                        self.shadow.whole(row, one, *self.shadow.halfway(one, shadow, own))
                        if self._widens:
                            self._reach(one)
                        else:
                            self._weigh(name, one, own)
        except REFUSALS:
            return False
        return True

    def _wide_values(self, tensor: Tensor) -> Tensor:
        """The program's values in the wider dtype."""
        return tensor.detach().to(self.shadow.memory.wider.get(tensor.dtype, tensor.dtype), copy=True)

    def _course(self, name: str, result: Any) -> None:
        course = self.courses.pop(name, None) or Course()
        for tensor in tensors_in(result):
            held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
            if held is not None:
                error = error_of(tensor.detach(), held.like(tensor).detach())
                course.distance += (2 * error.distance) ** 2  # the shadow is halfway
                course.size += error.size**2
                course.lost += error.lost
            elif isinstance(tensor, Tensor) and tensor.is_floating_point() and native(tensor):
                course.size += float(tensor.detach().double().square().sum())
        self.courses[name] = course

    def shadow_of(self, tensor: Tensor) -> Tensor:
        """The shadow of a tensor, with its graph."""
        held = self.shadow.memory.get(tensor) if shadowed(tensor) else None
        if held is None:
            return tensor
        with recording(below=False):
            return held.like(tensor)


def power(gradient: Tensor, value: Tensor, samples: int) -> float:
    """The sum of ⟨gradient, value⟩² over samples, as each has its own outputs; where these are few, over features."""
    parts = gradient * value
    if samples >= _SAMPLES and len(value) % samples == 0:
        parts = parts.reshape(samples, -1)
    else:
        parts = parts.movedim(1 if value.ndim > 3 else -1, 0).flatten(1) if value.ndim > 1 else parts[:, None]
    found = float(parts.sum(-1).square().sum(dtype=torch.float64))
    return found if math.isfinite(found) else 0.0


def _close_doors(opened: list[Opened]) -> None:
    """Reads that come later do not go through a door; what was written meanwhile stays."""
    for held, before, within, _ in reversed(opened):
        if held.buffer is within:
            held.buffer = before


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


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of a model, under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _repeats(value: Any) -> bool:
    """Whether a call with these arguments can be done again: an object with a state, as a cache, would be changed."""
    held = children(value)
    if held is not None:
        return all(_repeats(item) for _, item in held)
    return value is None or isinstance(value, (Tensor, int, float, complex, str, bytes, torch.dtype, torch.device))


def _drops_out(module: nn.Module) -> bool:
    share = module.dropout if isinstance(module, nn.RNNBase) else getattr(module, "p", 0.0)
    return isinstance(module, nn.RNNBase | nn.modules.dropout._DropoutNd) and share > 0
