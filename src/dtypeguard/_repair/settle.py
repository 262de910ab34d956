"""Violations become an error, a warning or a repair; repairs are counted and said aloud.

`enter` and `leave` are the two ends of a call that did not pass the
fast path. Nothing here ever writes to the caller's tensors.
"""

import logging
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from .._base.config import Mode, Verify
from .._base.dtypes import BY_NAME, may_cast
from .._base.errors import (
    CastError,
    CastWarning,
    ContractWarning,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    InplaceOnCastWarning,
    Violation,
    error_of,
    headline,
    plain,
)
from .._base.frames import caller, place
from .._check.reference import check, check_result, from_numpy
from .._check.sides import listed, need, refusal
from .._contract.containers import children
from .._contract.model import Call, Contract, Edit, Path, argument_of, written
from .records import CastRecord, Key, record_lock, records, warn_once
from .replay import Rebuilt, rebuild
from .verify import changed, compact, narrowing, size, whole

logger = logging.getLogger("dtypeguard")
logger.addHandler(logging.NullHandler())


def enter(contract: Contract, values: tuple[Any, ...]) -> Call:
    """Check the arguments of a call, then raise, repair, report or pass, as the mode says.

    The returned call's `values` are what the body must get.
    """
    __tracebackhide__ = True
    mode = contract.mode_for(values)
    if mode is Mode.OFF:
        return Call(contract, values, passive=True)
    call = check(contract, values)
    if call.sides:
        _arm(values[0])
    if call.violations:
        call.values = tuple(_settle(call, mode, call.arguments()).values())
    return call


def _arm(module: Any) -> None:
    """Have what is inside of a module guarded too, since it gets side inputs."""
    card = module.__dict__.get("_dtypeguard")
    if card is None or card.armed:
        return
    if torch.compiler.is_dynamo_compiling():
        _arm_traced(module)
    else:
        card.arm(module)


def _arm_traced(module: Any) -> None:
    """The same while Dynamo traces, which may have seen the modules as they were: it begins anew."""
    from torch._dynamo.exc import UnspecializeRestartAnalysis

    module.__dict__["_dtypeguard"].arm(module)
    raise UnspecializeRestartAnalysis(restart_reason="dtypeguard: the modules inside are guarded now")


vars(_arm_traced)["_dynamo_marked_constant"] = True  # it runs at once, see `_record_traced`


def leave(call: Call, result: Any) -> Any:
    """Check what the body returned, and whether it wrote to a copy that the caller will never see."""
    __tracebackhide__ = True
    if call.passive:
        return result
    outcome = check_result(call, result)
    if not outcome.violations:
        return result
    return _settle(outcome, call.mode, {"result": result})["result"]


def _settle(call: Call, mode: Mode, values: dict[str, Any]) -> dict[str, Any]:
    __tracebackhide__ = True
    if mode is Mode.STRICT:
        raise _error(call, call.violations, call.violations[0].error)
    if mode is Mode.WARN:
        _warn_only(call)
        return values
    beyond = [violation for violation in call.violations if not violation.fixed]
    if beyond:
        for violation in beyond:
            violation.reason += _why_not(call, violation)
        kind = beyond[0].error
        raise _error(call, beyond, CastError if kind in (DtypeError, DeviceError) else kind)
    return _repair(call, values)


def _why_not(call: Call, violation: Violation) -> str:
    root = violation.argument.split("[")[0].split(".")[0]
    if root in call.contract.mutates:
        return f"; `{root}` is written to, so it is never cast"
    if call.contract.checker:
        return "; under jaxtyping's decorator nothing can be cast: put @dtypeguard.enforce on the function itself"
    if violation.error is DeviceError:
        return "; a meta tensor has no data to move" if str(violation.actual) == "meta" else _OPAQUE
    if violation.error is DtypeError and isinstance(violation.actual, torch.dtype):
        if isinstance(violation.expected, torch.dtype) and may_cast(violation.actual, violation.expected, call.casting):
            return _OPAQUE
        casting = call.casting.name.lower()
        return f", and casting={casting!r} does not turn {plain(violation.actual)} into it"
    return ""


_OPAQUE = "; what it stands in cannot be rebuilt around a copy"


def _module_path(call: Call) -> str | None:
    module = call.values[0] if call.values else None
    if not isinstance(module, nn.Module):
        return None
    card = module.__dict__.get("_dtypeguard")
    return type(module).__name__ if card is None else str(card.path)


def _error(call: Call, violations: list[Violation], kind: type[DtypeGuardError]) -> DtypeGuardError:
    contract = call.contract
    if torch.compiler.is_compiling():  # Dynamo can build an exception from one text, and only that
        return kind(f"{contract.function}: {headline(violations[0])}")
    instead = ""
    if kind is not CastError and all(violation.fixed for violation in violations):
        instead = 'dtypeguard.guard(model, mode="lenient")' if contract.guarded else 'mode="lenient"'
    axes: dict[str, Any] = {**call.axes, **{f"*{name}": list(shape) for name, (_, shape) in call.variadics.items()}}
    more: dict[str, str] = {}
    frame = None
    found = need(call, [violation.value for violation in violations])
    if (
        found is not None and found.paths and kind is DtypeError
    ):  # the caller knows the argument, not the module inside that refuses it
        more["needed by"] = f"{_module_path(call)} ({type(call.values[0]).__name__}) at {place(caller())}"
        call, frame = refusal(found), found.frame
        contract, violations, axes = call.contract, call.violations, {}
    others = call if found is None else found.call
    if others.sides:
        more["beside"] = listed(others)
    path, site = _module_path(call), place(caller(frame))
    with torch._C.DisableTorchFunctionSubclass():
        return error_of(kind, contract.function, violations, path, site, axes, instead, more)


def _warn_only(call: Call) -> None:
    if torch.compiler.is_compiling():
        return
    error = _error(call, call.violations, DtypeGuardError)
    facts = tuple((v.argument, str(v.actual), str(v.expected)) for v in call.violations)
    warn_once(("warn", call.contract.function, facts, error.call_site), str(error), ContractWarning)


# ---------------------------------------------------------------- repairs


def _repair(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    __tracebackhide__ = True
    made: dict[tuple[Any, ...], Any] = {}  # one tensor passed twice is cast once
    replaced: dict[Path, Any] = {}
    for path, edit in call.edits.items():
        key = (_identity(edit.value, call), edit.dtype, edit.device)
        if key not in made:
            made[key] = _cast(call, edit, _alike(path, values[path[0]]))
        replaced[path] = made[key]
    ways = {path[:n] for path in replaced for n in range(1, len(path) + 1)}
    return {
        name: _replace(call, value, (name,), replaced, ways) if (name,) in ways else value
        for name, value in values.items()
    }


def _identity(value: Any, call: Call) -> int:
    if torch.compiler.is_compiling():  # a graph that knows an `id` is good for one tensor only
        return next(n for n, edit in enumerate(call.edits.values()) if edit.value is value)
    return id(value)


def _cast(call: Call, edit: Edit, alike: Path) -> Any:
    """The copy that keeps the contract, differentiable, with expanded axes still expanded."""
    __tracebackhide__ = True
    source = edit.value
    fresh: Any
    if isinstance(source, Tensor):
        fresh = _to(call, edit)
    elif edit.convert:
        tensor: Any = from_numpy(source)
        fresh = tensor.to(device=edit.device, dtype=edit.dtype or tensor.dtype)
        fresh = fresh.clone() if fresh is tensor else fresh  # the body may write to it, the array is the caller's
    else:
        import numpy as np

        with np.errstate(over="ignore"):  # what became infinite is refused below, with more words
            fresh = source.astype(plain(edit.dtype))
    if torch.compiler.is_compiling():
        said = (written(edit.path), call.contract.function, str(source.dtype), str(fresh.dtype))
        _record_traced(*said, str(source.device), str(fresh.device))
        return fresh
    _record(call, edit, fresh, alike)
    if isinstance(source, Tensor) and isinstance(fresh, Tensor) and not fresh.is_inference():
        call.copies.append((written(edit.path), source, fresh, fresh._version))
    return fresh


def _refusal(call: Call, why: str) -> DtypeGuardError:
    for violation in call.violations:
        violation.reason += f", and {why}"
    return _error(call, call.violations, CastError)


def _to(call: Call, edit: Edit) -> Tensor:
    __tracebackhide__ = True
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


def _record(call: Call, edit: Edit, fresh: Any, alike: Path) -> None:
    """Count a repair; the first of its kind is verified, then announced."""
    __tracebackhide__ = True
    source, frame, function, argument, place_of_need = edit.value, caller(), call.contract.function, edit.path, ""
    found = need(call, [source]) if "." in str(_module_path(call)) else None
    if found is not None and found.paths:  # the caller knows the argument, not the module inside that it was cast for
        function, argument, alike = found.call.contract.function, found.paths[0], found.paths[0]
        place_of_need, frame = f", where {_module_path(call)} needs it", caller(found.frame)
    line = None if frame is None else (frame.f_code, frame.f_lineno)
    devices = (getattr(source, "device", None), getattr(fresh, "device", None))
    key = (function, alike, source.dtype, fresh.dtype, *devices, line)
    record = records.get(key)
    if record is None:
        call.first.add(key)
    error = _verify(call, edit, fresh, 0 if record is None else record.count, first=key in call.first)
    if record is None:
        dtypes = (_as_torch(source.dtype), _as_torch(fresh.dtype))
        old, new = (device if isinstance(device, torch.device) else None for device in devices)
        record = CastRecord(written(argument), function, *dtypes, old, new, place(frame))
        converted = type(source).__module__ == "numpy" and edit.convert
        _announce(record, key, converted, place_of_need, frame)  # may raise, under -W error
    with record_lock:
        record = records.setdefault(key, record)
        record.count += 1
        record.bytes += size(fresh)
        record.error = error if record.error is None else max(record.error, error or 0.0)
    call.records.append(record)


def _alike(path: Path, value: Any) -> Path:
    """The path that all elements of a list share: one kind of repair, however long the list is."""
    steps = [path[0]]
    for kind, key in path[1:]:
        steps.append((kind, ... if isinstance(value, list) else key))
        value = value[key] if kind == "item" else getattr(value, key)
    return tuple(steps)


def _announce(record: CastRecord, key: Key, converted: bool, where: str = "", frame: FrameType | None = None) -> None:
    what = []
    if converted:
        what.append("turned from a NumPy array into a tensor")
    if record.from_dtype is not record.to_dtype:
        what.append(f"cast from {plain(record.from_dtype)} to {plain(record.to_dtype)}")
    if record.from_device != record.to_device and record.from_device is not None:
        what.append(f"moved from {record.from_device} to {record.to_device}")
    subject = "the result" if record.argument == "result" else f"`{record.argument}`"
    text = f"{record.function}: {subject} was {' and '.join(what)}{where}; called at {record.site}"
    logger.warning(text)
    warn_once(key, text, CastWarning, frame)


def _record_traced(argument: str, function: str, old: str, new: str, old_device: str, new_device: str) -> None:
    """The same while Dynamo traces: the cast is in the graph, so it is counted once, when traced."""
    old_dtype, new_dtype = (BY_NAME.get(name.removeprefix("torch.")) for name in (old, new))
    site = place(caller())
    key = (function, argument, old, new, old_device, new_device, site)
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


def _verify(call: Call, edit: Edit, fresh: Any, count: int, first: bool) -> float | None:
    """The relative error of a narrowing; refuses one that made a finite value infinite, or changed whole numbers."""
    __tracebackhide__ = True
    source, verify = edit.value, call.contract.verify
    if verify is Verify.NEVER:
        return None
    if not isinstance(source, Tensor):
        source, fresh = from_numpy(source), fresh if isinstance(fresh, Tensor) else from_numpy(fresh)
    if source is None or fresh is None:
        return None
    error, infinite = narrowing(source, fresh) if first or verify is Verify.ALWAYS else (None, False)
    if infinite:
        name = plain(fresh.dtype)
        fix = f"clamp it to torch.finfo({fresh.dtype}), keep it out with skip_args, or use a wider dtype than {name}"
        raise _lossy(call, edit, source, fresh, f"finite values of it become infinite in {name}", fix)
    look = first or type(source) is not Tensor or whole(source.dtype, source.is_cpu)(source, count + 1, None)
    odd = changed(source, fresh) if look else None
    if odd is not None:
        out = "annotate it with a wider dtype"
        if call.contract.guarded:
            out = f"keep it out with skip_args=[{argument_of(edit.path)!r}]"
        if "." in str(_module_path(call)):  # inside of a model, where a module needs it
            out = "give the model numbers that stay what they are"
        why = f"{odd[0]} becomes {odd[1]} in {plain(fresh.dtype)}: {out}"
        cast = f"{written(edit.path)}.to({fresh.dtype})"
        raise _lossy(call, edit, source, fresh, why, f"{out}, or, where that is meant, write {cast} before the call")
    return error


def _lossy(call: Call, edit: Edit, source: Tensor, fresh: Tensor, why: str, fix: str) -> DtypeGuardError:
    facts = (written(edit.path), source, source.dtype, fresh.dtype, f"and {why}", "")
    return _error(call, [Violation(CastError, *facts, fix=fix)], CastError)


# ---------------------------------------------------------------- containers


def _replace(call: Call, value: Any, path: Path, replaced: dict[Path, Any], ways: set[Path]) -> Any:
    """The value with its repaired leaves; a container is rebuilt only if something in it was."""
    if path in replaced:
        return replaced[path]
    new = {
        step: _replace(call, child, (*path, step), replaced, ways)
        for step, child in children(value) or ()
        if (*path, step) in ways
    }
    if not new:
        return value
    # One container passed twice is rebuilt once; Dynamo knows no identity of containers.
    for original, known, twin in () if torch.compiler.is_compiling() else call.twins:
        if original is value and list(known) == list(new) and all(known[step] is new[step] for step in new):
            return twin
    rebuilt = rebuild(value, new)
    call.twins.append((value, new, rebuilt))
    if not isinstance(rebuilt, tuple) and not torch.compiler.is_compiling():
        call.rebuilt.append(Rebuilt(written(path), value, rebuilt))
    return rebuilt


def look_back(call: Call) -> None:
    """After the body: say what it did to copies, and do to the caller's containers what it did to rebuilt ones."""
    if torch.compiler.is_compiling() or not (call.copies or call.rebuilt):
        return
    for argument, source, fresh, version in call.copies:
        look_back_at(call.contract, argument, source, fresh, version)
    for rebuilt in call.rebuilt:
        if not rebuilt.changed():
            continue
        function, argument, refused = call.contract.function, rebuilt.argument, rebuilt.replay()
        outcome = "the same change was made to the caller's own"
        if refused is not None:
            own = f"the caller's {type(rebuilt.original).__name__}"
            outcome = f"{own} allows no such change, so it stays as it was; cast before the call ({refused})"
        text = f"{function} changed `{argument}`, which was rebuilt for a cast: {outcome}"
        warn_once(("replay", function, argument, place(caller())), text, InplaceOnCastWarning)


def look_back_at(contract: Contract, argument: str, source: Tensor, fresh: Tensor, version: int) -> None:
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
    warn_once(("inplace", function, argument, deed, place(caller())), text, InplaceOnCastWarning)
