"""The copies that keep a contract: made, verified, counted, and announced the first time.

Nothing here ever writes to the caller's tensors.
"""

import dataclasses
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..base.codes import LOST, REFUSED
from ..base.config import Verify
from ..base.dtypes import BY_NAME
from ..base.errors import CastError, CastWarning, DtypeGuardError, InplaceOnCastWarning, Violation, fix_of, plain
from ..base.frames import caller, place, same_line
from ..check.arrays import from_numpy
from ..check.explain import error_for, lossy, module_path
from ..check.expressions import Arguments
from ..check.sides import need
from ..check.state import CallState, Edit
from ..check.verify import compact, narrowing, size, whole
from ..contract.model import Contract, Path, alike, written
from .containers import with_leaves
from .records import CastRecord, Key, record_lock, registry, warn_once


def repaired(call: CallState, values: dict[str, Any]) -> dict[str, Any]:
    ways = {
        path[:n]: alike(call.contract, path[:n], values[path[0]])
        for path in call.edits
        for n in range(1, len(path) + 1)
    }
    made: dict[tuple[Any, ...], Any] = {}  # one tensor passed twice is cast once
    replaced: dict[Path, Any] = {}
    for path, edit in call.edits.items():
        key = (_identity(edit.value, call), edit.dtype, edit.device)
        if key not in made:
            made[key] = _cast_copy(call, edit, ways[path])
        replaced[path] = made[key]
    return {
        name: with_leaves(call, value, (name,), replaced, ways) if (name,) in ways else value
        for name, value in values.items()
    }


def _identity(value: Any, call: CallState) -> int:
    if torch.compiler.is_compiling():  # a graph that knows an `id` is good for one tensor only
        return next(n for n, edit in enumerate(call.edits.values()) if edit.value is value)
    return id(value)


def _cast_copy(call: CallState, edit: Edit, kind: Path) -> Any:
    """The copy that keeps the contract, differentiable, with expanded axes still expanded."""
    source = edit.value
    fresh: Any
    if isinstance(source, Tensor):
        fresh = _move_and_cast(call, edit)
    elif edit.convert:
        tensor: Any = from_numpy(source)
        fresh = tensor.to(device=edit.device, dtype=edit.dtype or tensor.dtype)
        fresh = fresh.clone() if fresh is tensor else fresh  # the body may write to it, the array is the caller's
    else:
        import numpy as np

        with np.errstate(over="ignore"):  # what became infinite is refused below, with more words
            fresh = source.astype(plain(edit.dtype))
    if torch.compiler.is_compiling():
        if not call.contract.border:
            facts = (written(edit.path), call.contract.function, str(source.dtype), str(fresh.dtype))
            _record_traced(*facts, str(source.device), str(fresh.device))
        return fresh
    if not call.contract.border:
        _record(call, edit, fresh, kind)
    if isinstance(source, Tensor) and isinstance(fresh, Tensor) and not fresh.is_inference():
        call.copies.append((written(edit.path), kind, source, fresh, fresh._version))
    return fresh


def _refusal(call: CallState, why: str) -> DtypeGuardError:
    for violation in call.violations:
        violation.reason += f", and {why}"
        violation.code = REFUSED.id
    return error_for(call, call.violations, CastError)


def _move_and_cast(call: CallState, edit: Edit) -> Tensor:
    tensor: Tensor = edit.value
    small = tensor.dequantize() if tensor.is_quantized else compact(tensor)
    try:
        fresh = small.to(device=edit.device, dtype=edit.dtype or tensor.dtype, non_blocking=call.contract.non_blocking)
    except (NotImplementedError, TypeError) as error:  # MKL-DNN layouts, masked tensors, some subclasses
        raise _refusal(call, f"a {type(tensor).__name__} of layout {tensor.layout} cannot be cast") from error
    if edit.array_type is not Tensor and not isinstance(fresh, edit.array_type):
        raise _refusal(call, f"a cast makes a {type(fresh).__name__} of it")
    return fresh if small is tensor or tensor.is_quantized else fresh.expand(tensor.shape)


def _as_torch(dtype: Any) -> torch.dtype | None:
    return dtype if isinstance(dtype, torch.dtype) else BY_NAME.get(getattr(dtype, "name", ""))


def _record(call: CallState, edit: Edit, fresh: Any, kind: Path) -> None:
    """Count a repair; the first of its kind is verified, then announced."""
    source, frame, function, argument, place_of_need = edit.value, caller(), call.contract.function, edit.path, ""
    outer, wrapper = call, None  # the call that the user made
    module = str(module_path(call) or "")
    found = need(call, [source]) if "." in module else None
    inside = (module,) if "." in module else ()
    if found is not None and found.paths:  # the caller knows the argument, not the module inside that it was cast for
        function, argument, kind = found.call.contract.function, found.paths[0], found.paths[0]
        place_of_need, frame, inside = f", where {module} needs it", caller(found.frame), ()
        outer, wrapper = found.call, found.frame
    devices = (getattr(source, "device", None), getattr(fresh, "device", None))
    key = (function, kind, source.dtype, fresh.dtype, *devices, same_line(frame))
    records = registry().records
    record = records.get(key)
    if record is None:
        call.first.add(key)
    error = _verify(call, edit, fresh, 0 if record is None else record.count, first=key in call.first)
    if record is None:
        dtypes = (_as_torch(source.dtype), _as_torch(fresh.dtype))
        old, new = (device if isinstance(device, torch.device) else None for device in devices)
        record = CastRecord(written(argument), function, *dtypes, old, new, place(frame), modules=inside)
        converted = type(source).__module__ == "numpy" and edit.convert
        expression = Arguments(outer, wrapper)[argument]
        wrong = [violation for violation in call.violations if violation.path == edit.path]
        told = [dataclasses.replace(one, argument=record.argument, expression=expression) for one in wrong]
        _announce(record, key, converted, told, place_of_need, frame)  # may raise, under -W error
    with record_lock:
        record = records.setdefault(key, record)
        record.count += 1
        record.bytes += size(fresh)
        record.error = error if record.error is None else max(record.error, error or 0.0)
        record.modules = tuple(dict.fromkeys([*record.modules, *inside]))
    call.records.append(record)


def _announce(
    record: CastRecord,
    key: Key,
    converted: bool,
    violations: Sequence[Violation] = (),
    where: str = "",
    frame: FrameType | None = None,
) -> None:
    what = []
    if converted:
        what.append("turned from a NumPy array into a tensor")
    if record.from_dtype is not record.to_dtype:
        what.append(f"cast from {plain(record.from_dtype)} to {plain(record.to_dtype)}")
    if record.from_device != record.to_device and record.from_device is not None:
        what.append(f"moved from {record.from_device} to {record.to_device}")
    subject = "the result" if record.argument == "result" else f"`{record.argument}`"
    expression = violations[0].expression if violations else None
    passed = "" if expression is None else f"; passed as `{expression.text}`"
    inside = f" in {record.modules[0]}" if record.modules else ""
    warning = CastWarning(f"{record.function}{inside}: {subject} was {' and '.join(what)}{where}{passed}")
    warning.fix = fix_of(violations)
    warn_once(key, warning, frame)


def _record_traced(argument: str, function: str, old: str, new: str, old_device: str, new_device: str) -> None:
    """The same while Dynamo traces: the cast is in the graph, so it is counted once, when traced."""
    old_dtype, new_dtype = (BY_NAME.get(name.removeprefix("torch.")) for name in (old, new))
    site = place(caller())
    key = (function, argument, old, new, old_device, new_device, site)
    records = registry().records
    with record_lock:
        known = key in records
        record = records.setdefault(
            key,
            CastRecord(
                argument, function, old_dtype, new_dtype, torch.device(old_device), torch.device(new_device), site
            ),
        )
        record.count += 1
    if not known:
        _announce(record, key, False)


# What `torch.compiler.assume_constant_result` sets, without its import of all of Dynamo (over a second).
vars(_record_traced)["_dynamo_marked_constant"] = True


def _verify(call: CallState, edit: Edit, fresh: Any, count: int, first: bool) -> float | None:
    """The relative error of a narrowing; refuses one that made a finite value infinite, or changed whole numbers."""
    source, verify = edit.value, call.contract.verify
    if verify is Verify.NEVER:
        return None
    if not isinstance(source, Tensor):
        source, fresh = from_numpy(source), fresh if isinstance(fresh, Tensor) else from_numpy(fresh)
    if source is None or fresh is None:
        return None
    error, infinite = narrowing(source, fresh) if first or verify is Verify.ALWAYS else (None, False)
    look = first or type(source) is not Tensor or whole(source.dtype, source.is_cpu)(source, count + 1, None)
    loss = lossy(call, edit.path, source, fresh, infinite, look)
    if loss is not None:
        facts = (written(edit.path), source, source.dtype, fresh.dtype, f"and {loss[0]}", "")
        raise error_for(
            call,
            [Violation(CastError, *facts, fix=loss[1], code=LOST.id, path=edit.path, returned=call.leaving)],
            CastError,
        )
    return error


def warn_of_copy(
    contract: Contract, argument: str, source: Tensor, fresh: Tensor, version: int, kind: Path = ()
) -> None:
    """Warn if the body wrote to a cast copy, or asked for its gradient."""
    function, option = contract.function, "skip_args" if contract.guarded else "mutates"
    asked = fresh.is_leaf and fresh.requires_grad and not source.requires_grad
    if fresh._version == version and not asked:
        return
    deed = "called requires_grad_ on" if fresh._version == version else "changed in place"
    text = (
        f"{function} {deed} `{argument}`, which is a cast copy: the caller's {plain(source.dtype)} tensor "
        f"did not change; cast it to {plain(fresh.dtype)} before the call, or name it in {option}="
    )
    warn_once(("inplace", function, kind or (argument,), deed, same_line(caller())), InplaceOnCastWarning(text))
