"""What the program calls besides operations: modules, autocast regions, threads, data that torch does not dispatch."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.utils import dlpack

from ..._core.base import private
from .events import Call, ModuleRow, on, row_of, tensors_in
from .lineage import Node
from .patches import around
from .recorder import Recorder
from .sites import Door

_LEAVES, _ROWS = 64, 20_000


@on("start")
def replace(audit: Recorder) -> None:
    audit.patches.replace(nn.Module, "__call__", functools.partial(_module_call, audit))
    audit.patches.eager()


# ---------------------------------------------------------------- compiled functions


@around(torch, "compile", always=True)
def _compile(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """It imports Dynamo."""
    result = original(*args, **kwargs)
    audit.guarded(audit.patches.eager)
    return result


# ---------------------------------------------------------------- modules


def _module_call(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """It stands by itself: what is called most has one frame of ours, not two."""
    local, entered, left, steps = audit.local, audit.on["entered"], audit.on["left"], audit.steps

    @functools.wraps(original)
    def call_module(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if local.paused or not (local.on or audit.records_here) or private.tracing_state() is not None:
            return original(self, *args, **kwargs)
        if steps is not None and steps.asleep:
            return original(self, *args, **kwargs)
        outermost, rested = not local.modules, None
        if outermost:
            local.failure = None  # ids of exceptions are used again
            if steps is not None and local.on:
                rested = steps.enters()
        call = Call(self, audit.known_path(self) or audit.guarded(audit.path_of, self) or type(self).__name__)
        audit.call(entered, call)
        row = audit.calls.get(call.path)
        if row is None:
            row = audit.guarded(ModuleRow.of, call.path, self) or ModuleRow(call.path, type(self).__name__, [])
            row.inputs = audit.guarded(_leaves, args, kwargs) or []
            if len(audit.calls) < _ROWS:
                audit.calls[call.path] = row
        local.modules.append(call.path)
        local.doors.append(Door(sys._getframe()))
        try:
            if isinstance(self, ScriptModule):  # TorchScript keeps no text of an error that comes out of a mode
                with audit.without_mode():
                    out = original(self, *args, **kwargs)
            else:
                out = original(self, *args, **kwargs)
        except Exception as error:
            audit.guarded(audit.exception_raised, error)
            if len(local.modules) == 1:
                audit.guarded(audit.exception_leaves, error)
            raise
        finally:
            local.modules.pop()
            local.doors.pop()
            if outermost and steps is not None and local.on:
                steps.leaves(rested)
        if local.failure is not None and not local.failure.said:
            audit.guarded(audit.exception_caught, local.failure)
        if not row.calls:
            row.outputs = audit.guarded(_leaves, (out,), {}, True) or []
        row.calls += 1
        call.output = out
        audit.call(left, call)
        return out

    return call_module


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any], result: bool = False) -> list[dict[str, Any]]:
    """What tensors a module was given, or gave."""
    rows: list[dict[str, Any]] = []
    for name, value in (*((str(n), value) for n, value in enumerate(args)), *kwargs.items()):
        name = "" if result else name
        for path, tensor in tensors_in(value, name):
            if len(rows) < _LEAVES:
                rows.append(row_of(tensor, path or "result"))
    return rows


# ---------------------------------------------------------------- autocast


@around(torch, "set_autocast_enabled", always=True)
def _switch(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.autocast` calls it when it begins and when it ends."""
    result = original(*args, **kwargs)
    device, enabled = args if len(args) == 2 else ("cuda", *args)
    audit.local.regions[device] = bool(enabled)
    return result


@around(torch.autocast, "__exit__")
def _region_ends(audit: Recorder, original: Callable[..., Any], self: Any, *error: Any) -> Any:
    if len(error) == 3 and isinstance(error[1], Exception):
        audit.guarded(audit.exception_raised, error[1])  # while it is known that a region was enabled
    return original(self, *error)


# ---------------------------------------------------------------- threads


@around(threading.Thread, "start")
def _thread_start(audit: Recorder, original: Callable[..., Any], self: threading.Thread) -> Any:
    run, own = self.run, vars(self).get("run")  # of a subclass; set by the program, or by an audit around this one

    def put_back() -> None:
        vars(self).pop("run", None)
        if own is not None:
            vars(self)["run"] = own

    def audited() -> None:
        put_back()
        with audit.in_thread():
            run()

    vars(self)["run"] = audited  # until it begins
    try:
        return original(self)
    except BaseException:
        put_back()
        raise


# ---------------------------------------------------------------- data


@around(torch, "from_dlpack", "frombuffer")
@around(dlpack, "from_dlpack")
def _creation(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that makes a tensor past the dispatcher."""
    tensor = original(*args, **kwargs)
    if isinstance(tensor, Tensor):
        name = getattr(original, "__name__", "tensor")
        audit.guarded(lambda: audit.lineage.set(tensor, Node(name, audit.here(), tensor.dtype)))
    return tensor


@around(Tensor, "as_subclass")
def _as_subclass(audit: Recorder, original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """It has the lines of what it shows; torch calls it for all that operations make of a subclass."""
    shown: Tensor = original(self, *args, **kwargs)
    if shown is not self and (node := audit.guarded(audit.lineage.get, self)) is not None:
        audit.guarded(audit.lineage.set, shown, node)
    return shown


@around(Tensor, "__new__")
def _new(audit: Recorder, original: Callable[..., Any], cls: type[Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """`super().__new__(cls, data)`: of a subclass torch makes nothing that a mode has seen before."""
    if cls is Tensor:
        return original(cls, *args, **kwargs)  # type: ignore[no-any-return]
    with audit.without_mode():
        made: Tensor = original(cls, *args, **kwargs)
    if args and isinstance(args[0], Tensor) and (node := audit.guarded(audit.lineage.get, args[0])) is not None:
        audit.guarded(audit.lineage.set, made, node)
    return made


@around(torch.utils, "swap_tensors", always=True)
def _swap(audit: Recorder, original: Callable[..., Any], t1: Tensor, t2: Tensor) -> None:
    """It refuses tensors that have weak references."""
    nodes = audit.lineage.get(t1), audit.lineage.get(t2)
    audit.lineage.forget(t1, t2)
    original(t1, t2)
    for tensor, node in zip((t2, t1), nodes, strict=True):
        if node is not None:
            audit.lineage.set(tensor, node)
