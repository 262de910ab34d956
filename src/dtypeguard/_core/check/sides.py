"""The moment when something inside needs a side input in another dtype: which argument of which call that was.

Only what repairs or explains looks here, so it may look along the stack: the frame of a generated wrapper
holds its contract and the arguments of the call.
"""

import dataclasses
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base.dtypes import FLOATING, PIXELS
from ..base.errors import Violation, plain, summary
from ..contract.anchor import anchor_of
from ..contract.model import Contract, Path, written
from .reference import collect
from .reports import report_dtype
from .state import CallState

_WRAPPER = "<dtypeguard checks "  # how the names of files of generated code begin


class Running(threading.local):
    """What this thread runs: models that were given side inputs, and what is checked inside of them."""

    doors: tuple[dict[int, Any], ...] = ()  # of each such call, by the ids of modules


running = Running()
again: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that were checked in a checkpointed block, which runs again


def door_at(module: Any) -> Any:
    """What stands at a module inside of a model that this thread runs; None if nothing does."""
    return next((doors[id(module)] for doors in reversed(running.doors) if id(module) in doors), None)


class Need(NamedTuple):
    """An outer call whose side inputs reached a module that refuses them."""

    call: CallState
    frame: FrameType  # of the outer call's wrapper
    paths: list[Path]  # of the side inputs that the refused values are, or are views of; none where they were computed


def call_of(module: Any) -> CallState | None:
    """The innermost call of a guarded module, if it has side inputs."""
    return next((call for call, _ in _calls() if call.values[0] is module), None)


def need(call: CallState, values: list[Any]) -> Need | None:
    """Where values that a module inside refuses come from; None for a model's own door, and while compiling."""
    if not call.contract.guarded or torch.compiler.is_compiling():
        return None
    nearest = None
    for outer, frame in _calls():
        if outer.values[0] is call.values[0]:
            continue
        paths = [path for path, side in outer.sides if any(_is_same(side, value) for value in values)]
        if paths:
            return Need(outer, frame, paths)
        nearest = nearest or Need(outer, frame, [])
    return nearest


def only_side(found: Need, values: list[Any]) -> list[Path]:
    """The side input that refused values were surely computed from: it is the only one, and as large as they are."""
    call, anchor = found.call, found.call.anchor
    odd = [(path, side) for path, side in call.sides if anchor is not None and side.dtype is not anchor.dtype]
    if len(odd) != 1:
        return []
    path, side = odd[0]
    like = [isinstance(one, Tensor) and (one.dtype, one.shape) == (side.dtype, side.shape) for one in values]
    return [path] if all(like) else []


def _is_same(side: Tensor, value: Any) -> bool:
    if side is value or not isinstance(value, Tensor) or side.dtype is not value.dtype:
        return side is value
    memory = _memory(side)
    return memory is not None and memory == _memory(value)


def _calls() -> Iterator[tuple[CallState, FrameType]]:
    """The guarded calls with side inputs that are running, from the inside out, with the frames of their wrappers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_WRAPPER):
            names = frame.f_locals
            contract = names.get("_dg_contract")
            if isinstance(contract, Contract) and contract.sides:
                call = collect(contract, tuple(names[param.name] for param in contract.params))
                if call.sides:
                    yield call, frame
        frame = frame.f_back


def _memory(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):  # sparse tensors, some subclasses, tensors of transforms
        return None


def _self_of(frame: FrameType) -> Any:
    """The first argument of a running function, however it is called there; None if it has none."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def is_wrong_inside(error: BaseException, root: Any) -> bool:
    """Whether an error left a module inside of a model that got a floating tensor unlike its parameters.

    Only such a one would be checked by more depth; integers without an annotation never are.
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        module = _self_of(frame)
        if isinstance(module, nn.Module) and module is not root and frame.f_code.co_name == "forward":
            anchor = anchor_of(module)
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            given = [value for name in names if isinstance(value := frame.f_locals.get(name), Tensor)]
            if anchor is not None and any(
                (value.dtype in FLOATING and anchor.dtype not in (None, value.dtype))
                or (value.dim() > 0 and anchor.device not in (None, value.device))
                for value in given
            ):
                return True
    return False


def refused(error: BaseException, root: Any) -> str:
    """What to pass to a model where a module of PyTorch's refuses floats as ids, or takes floats alone."""
    trace, arguments, odd, says, cast = error.__traceback__, dict[str, Any](), None, "", ""
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        module = _self_of(frame)
        if not arguments and module is root:
            arguments = dict(frame.f_locals)
        if frame.f_code in (F.embedding.__code__, F.embedding_bag.__code__):
            odd, cast = frame.f_locals.get("input"), "long()"
            says = "goes into an embedding, which takes int64 and int32"
            if isinstance(odd, Tensor) and odd.dtype in (torch.int32, torch.int64):
                return ""
        elif type(module).__module__.startswith("torch.nn.") and frame.f_code.co_name == "forward":
            given, anchor = [one for one in frame.f_locals.values() if isinstance(one, Tensor)], anchor_of(module)
            odd = given[0] if len(given) == 1 and given[0].dtype not in FLOATING else None
            if odd is not None and anchor is not None and anchor.dtype in FLOATING:
                says = f"is {plain(odd.dtype)}, and {type(module).__name__} takes {plain(anchor.dtype)}"
                cast = f"{'real.' if odd.is_complex() else ''}to({anchor.dtype}){PIXELS * (odd.dtype is torch.uint8)}"
    if not isinstance(odd, Tensor) or not says:
        return ""
    name = next((name for name, one in arguments.items() if isinstance(one, Tensor) and _is_same(one, odd)), None)
    return "" if name is None else f"; `{name}` {says}: pass {name}.{cast}"


def refusal(found: Need, violations: list[Violation]) -> CallState:
    """The outer call, with the side inputs that were refused as its violations, as the module inside gave them."""
    outer, anchor = found.call, found.call.anchor
    for path, side in outer.sides:
        if anchor is None or path not in found.paths:
            continue
        wanted = [one for one in violations if isinstance(one.expected, torch.dtype) and _is_same(side, one.value)]
        own = next((one for one in wanted if one.expected is not anchor.dtype), None)
        if own is not None:  # the integers of an embedding
            outer.violations.append(dataclasses.replace(own, argument=written(path), value=side, path=path))
        else:
            report_dtype(outer, path, side, anchor.dtype, "", anchor)
    outer.sides = [(path, side) for path, side in outer.sides if path not in found.paths]
    return outer


def listed(call: CallState) -> str:
    """The side inputs of a call, as messages show them."""
    return ", ".join(f"{written(path)} = {summary(side)}" for path, side in call.sides)
