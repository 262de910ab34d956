"""The dispatch mode of the recorder: every operation of torch, in forward and backward.

What takes time is done only where dtypes differ. A function mode is not used: it turns off the fast paths of
`nn.TransformerEncoderLayer` and `nn.MultiheadAttention`, and so changes what they compute.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

from ..._core.base import private
from ..._core.base.compiler import unseen
from ..._core.base.dtypes import HALF
from ..._core.base.modes import Mode
from ..operands import operands, plain
from ..ops import Operator, Way, operator_of
from .apart import apart
from .events import Op, readable
from .lineage import FIRST, Node
from .recorder import Recorder
from .sites import Site, site_of
from .text import size_of

CASTING = frozenset("to float half bfloat16 double type type_as int long short char byte bool chalf cfloat".split())
_TOTALS = frozenset(["sum", "cumsum", "prod"])
_LOSSES = (torch.float32, torch.float64)  # dtypes of one number that is as it should be, or too wide
_UNSEEN = (Way.NONE, Way.TEST)  # views and constants, and what gives no values
_current_node, _tracing = private.current_node, private.tracing_state


class Watching(Mode):
    """Sees every operation."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        recorder = self._recorder
        kwargs = kwargs or {}
        if not recorder.running or recorder.resting or recorder.local.paused or _tracing() is not None:
            return func(*args, **kwargs)
        op = operator_of(func)
        if op.composite and torch.is_inference_mode_enabled() and all(map(plain, operands(args, kwargs))):
            return self._parts(func, args, kwargs)
        kept = None
        if op.name in recorder.before:
            kept = [recorder.guarded(function, args, recorder) for function in recorder.before[op.name]]
        values, writing, frame = recorder.values, None, None
        if values is not None and op.way not in _UNSEEN:
            frame = _caller(recorder)
            if op.writes and frame is not None:
                with apart():
                    writing = values.before(op, args, kwargs, frame)
        try:
            if op.name == "_trilinear" and recorder.autocast():  # it calls bmm, which autocast must see
                out = _under_autocast(recorder, functools.partial(func, *args, **kwargs))
            else:
                out = func(*args, **kwargs)
        except Exception as error:
            recorder.guarded(recorder.exception_raised, error, op.name, operands(args, kwargs))
            raise
        try:
            recorder.operations += 1
            with apart():
                inputs = operands(args, kwargs)
                if values is not None and frame is not None:
                    values.after(op, args, kwargs, inputs, out, writing, frame)
                elif values is not None and op.way is Way.TEST:
                    values.tested(op, args, inputs)
                elif (
                    values is not None
                    and inputs
                    and inputs[0].requires_grad
                    and (frame := _caller(recorder)) is not None
                ):
                    values.remember(_caller(recorder))
                self._emit_events(recorder, op, func, args, kwargs, inputs, out, kept)
        except Exception as error:  # a fault of the audit must not be one of the program
            recorder.fault(error)
        return out

    def _parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that inference mode hands over whole, as the operations that autograd would see.

        A region of autocast that casts it holds for none of its parts; any other one does.
        """
        recorder = self._recorder
        local, parts = recorder.local, functools.partial(func._op_dk, private.COMPOSITE, *args, **kwargs)
        caller, cast_whole = local.caller, local.cast_whole
        local.caller = caller or _caller(recorder, 3)
        try:
            with self.on():
                if cast_whole or not recorder.autocast():
                    return parts()
                local.cast_whole = private.has_kernel(func.name(), f"Autocast{recorder.region()[0].upper()}")
                return parts() if local.cast_whole else _under_autocast(recorder, parts)
        finally:
            local.caller, local.cast_whole = caller, cast_whole

    def _emit_events(
        self, recorder: Recorder, op: Operator, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], out: Any,
        kept: Any,
    ) -> None:  # fmt: skip
        if op.several and kept is None and op.name not in recorder.after:
            return
        if kwargs and "out" in kwargs:
            inputs = [tensor for tensor in inputs if tensor is not kwargs["out"]]
        single = isinstance(out, Tensor)
        if op.same:
            self._hand_on(recorder, op, inputs, out, single)
            if single and inputs and out.dtype is not inputs[0].dtype and recorder.on["viewed"]:
                self._viewed(recorder, op, func, args, kwargs, inputs, out)
            return
        if op.cast and inputs and out is inputs[0]:  # it was of that dtype
            return
        dtype = out.dtype if single else None
        mixed = integer = False
        integers = recorder.integers
        for tensor in inputs:
            other = tensor.dtype
            if other is not dtype:
                mixed = single
            if other in integers:
                integer = True
        backward = _current_node() is not None
        if backward and not mixed:
            return
        asked = recorder.after.get(op.name)
        sixteen = dtype is torch.float16 and recorder.on["half"] and not op.cast and not backward
        summed = op.sums and dtype in HALF and not backward and recorder.on["summed"] and not _has_gradient(inputs)
        ended = recorder.promotions and single and not out.is_floating_point() and not backward
        scalar = dtype in _LOSSES and not backward and single and not out.ndim and recorder.on["scalar"]
        added = op.name == "add" and single and not backward and _may_mask(inputs) and bool(recorder.on["added"])
        narrow = op.name in _TOTALS and dtype in integers and dtype is not torch.int64  # also of bool
        integer = (integer or narrow) and bool(recorder.on["integer"]) and not backward
        born = not op.updates and not backward and (single or isinstance(out, (tuple, list)))
        wanted = mixed or op.cast or asked or ended or scalar or summed or sixteen or integer or added or kept
        if not (born or wanted):
            return
        frame = _caller(recorder, 3)
        if frame is None:
            return
        if backward and op.cast:
            _cast_back(recorder, inputs, out, frame)
            return
        site, module = recorder.line(frame), recorder.module()
        parts = () if not born else (out,) if single else out
        for number, part in enumerate(parts):
            if isinstance(part, Tensor):
                own = inputs[number :: len(parts)] if op.several else inputs  # of lists, those at its place
                self._bear(recorder, op, own, part, site, module)
        if not wanted:
            return
        if any(tensor._has_symbolic_sizes_strides for tensor in inputs):  # to look at a size is to fix it
            return
        event = Op(
            op.name, func, args, kwargs, out, inputs, site, module, backward, recorder.autocast(), kept=kept,
            frame=frame,
        )  # fmt: skip
        if op.cast:
            self._cast(recorder, event, frame)
        elif op.write or (mixed and op.updates and op.promotes):
            self._write(recorder, event)
        elif mixed and backward:
            recorder.emit("backward", event)
        elif mixed and op.promotes and dtype is not None and (dtype.is_floating_point or dtype.is_complex):
            self._promote(recorder, event)
        if asked:
            recorder.call(asked, event)
        happened = {
            "ended": ended, "scalar": scalar, "summed": summed, "half": sixteen, "integer": integer, "added": added,
        }  # fmt: skip
        for kind in [kind for kind, so in happened.items() if so]:
            recorder.emit(kind, event)

    def _hand_on(self, recorder: Recorder, op: Operator, inputs: list[Tensor], out: Any, single: bool) -> None:
        """A view has the lines of what it shows."""
        lineage = recorder.lineage
        node = lineage.get(inputs[0]) if inputs else None
        if op.lifted and inputs:
            site = recorder.line(_caller(recorder, 4))
            if node is None or node.site is not site:
                node = Node("tensor", site, inputs[0].dtype, module=recorder.module())
                if node.dtype is torch.float64 and recorder.due("born", site) and readable(inputs[0]):
                    lineage.measure(node, inputs[0])
        if node is None:
            return
        for tensor in (out,) if single else out if isinstance(out, (list, tuple)) else ():
            if isinstance(tensor, Tensor):
                if tensor.dtype is not node.dtype:  # of `view_as_real` and the like
                    node = Node(op.name, recorder.line(_caller(recorder, 4)), tensor.dtype, (node,), recorder.module())
                lineage.set(tensor, node)

    def _viewed(
        self, recorder: Recorder, op: Operator, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], out: Tensor
    ) -> None:  # fmt: skip
        """A view in another dtype."""
        if _current_node() is None:
            site, module = recorder.line(_caller(recorder, 4)), recorder.module()
            event = Op(op.name, func, args, kwargs, out, inputs, site, module, False, recorder.autocast())
            recorder.emit("viewed", event)

    def _bear(
        self, recorder: Recorder, op: Operator, inputs: list[Tensor], out: Tensor, site: Site, module: str | None
    ) -> None:
        """A new tensor: where its dtype comes from."""
        lineage, dtype = recorder.lineage, out.dtype
        parents: list[Node] = []
        for tensor in inputs:
            node = lineage.get(tensor)
            if node is None:
                node = Node(FIRST, site, tensor.dtype)
                lineage.set(tensor, node)
            if tensor.dtype is dtype:
                parents.insert(0, node)
            else:
                parents.append(node)
        if parents:
            first = parents[0]
            same = first.site is site and first.dtype is dtype and not first.named and first.op != FIRST
            if same and all(parent is first for parent in parents):
                lineage.set(out, first)
                return
        cause: Any = "autocast" if op.cast and recorder.autocast() else None
        if not inputs and dtype in recorder.births:
            cause = recorder.births[dtype]
        node = Node(op.name, site, dtype, tuple(parents[:2]), module, cause)
        for parent in parents[2:]:
            if parent.debts:
                node.owes(parent.debts)
        lineage.set(out, node)

    def _cast(self, recorder: Recorder, event: Op, frame: Any) -> None:
        if not event.inputs:  # of a transform of torch.func
            return
        source, out, site, module = event.inputs[0], event.out, event.site, event.module
        if source.dtype is out.dtype and source.device == out.device:
            return
        if source.dtype is out.dtype:
            event.kind = "device"
        elif event.autocast and site_of(frame).calls not in CASTING:
            event.kind = "autocast"
        else:
            event.kind = "explicit"
        recorder.remember_forward_line(event.inputs, site, module)
        if event.kind != "autocast":
            node = recorder.lineage.get(out)
            if node is not None and node.cause == "autocast":
                node.cause = None
        recorder.cast(event.kind, "to", source, out, size_of(out), site, module)
        recorder.emit("cast", event)

    def _write(self, recorder: Recorder, event: Op) -> None:
        if not isinstance(event.out, Tensor):
            return
        sources = [t for t in event.inputs[1:] if t.dtype is not event.out.dtype and t.dtype is not torch.bool]
        if event.name == "index_put_":
            sources = [t for t in sources if t is event.inputs[-1]]
        if not sources or event.backward:
            return
        source = sources[0]
        recorder.cast("write", event.name, source, event.out, _bytes_as(source, event.out), event.site, event.module)
        recorder.emit("write", event)

    def _promote(self, recorder: Recorder, event: Op) -> None:
        """Operands without axes promote nothing, unless there is nothing else; a part of a complex one is none."""
        out = event.out
        alone, dtype = all(tensor.ndim == 0 for tensor in event.inputs), out.dtype.to_real()
        odd = [
            t
            for t in event.inputs
            if t.dtype.to_real() is not dtype and t.dtype is not torch.bool and (t.ndim or alone)
        ]
        odd = [t for t in odd if t.is_floating_point() or t.is_complex() or not _made_inside(recorder, t, event.site)]
        if not odd:
            return
        recorder.remember_forward_line(event.inputs, event.site, event.module)
        for tensor in odd:
            size = _bytes_as(tensor, out)
            recorder.cast("promotion", event.name, tensor, out, size, event.site, event.module)
        event.kept = odd
        recorder.emit("mixed", event)


def _made_inside(recorder: Recorder, tensor: Tensor, site: Site) -> bool:
    """Whether torch itself made a tensor, in the call that now computes with it: `quantile` has places of its own."""
    node = recorder.lineage.get(tensor)
    return node is not None and not node.named and node.birth.op != FIRST and node.birth.site is site


unseen(Watching.__torch_dispatch__, inside=True)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """In here no audit hears of what this thread does."""
    stack = _python_dispatch._get_current_dispatch_mode_stack()
    with contextlib.ExitStack() as audits:
        for recorder in [mode._recorder for mode in stack if isinstance(mode, Watching)]:
            audits.enter_context(recorder.without_audit())
        yield


def _caller(recorder: Recorder, depth: int = 2) -> FrameType | None:
    """The frame below the mode's; in a thread of autograd that of the program, which waits; none of a process group."""
    if recorder.local.caller is not None:
        return recorder.local.caller
    try:
        return sys._getframe(depth)
    except ValueError:
        return recorder.local.waiting()


def _under_autocast(recorder: Recorder, call: Callable[[], Any]) -> Any:
    """Below a mode no region is enabled; when this one ends, the program's is still on."""
    device, dtype = recorder.region()
    try:
        with torch.autocast(device, dtype=dtype):
            return call()
    finally:
        recorder.local.regions[device] = True


def _cast_back(recorder: Recorder, inputs: list[Tensor], out: Any, frame: FrameType) -> None:
    """A cast in backward belongs to the line in forward that caused it; no rule is about it."""
    if not inputs or any(tensor._has_symbolic_sizes_strides for tensor in inputs):
        return
    source = inputs[0]
    if source.dtype is not out.dtype or source.device != out.device:
        site, module = recorder.forward_line() or (recorder.line(frame), recorder.module())
        recorder.cast("backward", "to", source, out, size_of(out), site, module)


def _may_mask(inputs: list[Tensor]) -> bool:
    """Whether a matrix is added to a matrix or to many, or bools to anything."""
    if len(inputs) != 2:
        return False
    first, second = inputs
    return 1 < second.ndim <= first.ndim or second.dtype is torch.bool or first.dtype is torch.bool


def _has_gradient(inputs: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def _bytes_as(tensor: Tensor, like: Tensor) -> int:
    return tensor.numel() * like.element_size()
