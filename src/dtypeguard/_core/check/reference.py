"""The reference checker: complete and slow.

`check` walks over a call's arguments and collects every violation with the repair that would mend it. The generated
wrappers of `wrap` only answer whether everything is right, and come here where it is not.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..base import private
from ..base.codes import AXIS
from ..base.config import Autocast
from ..base.dtypes import (
    BY_NAME,
    FLOATING,
    TABLE,
    Kind,
    lost,
    name_of,
    names_accept,
)
from ..base.errors import DeviceError, DtypeError, HintError
from ..base.options import indefinite
from ..contract.anchor import Anchor, anchor_of, is_count
from ..contract.beartyped import bearable, innermost, is_own
from ..contract.containers import SCALARS, are_scalars, children, leaves, members
from ..contract.model import Contract, Param, Path, PathStep, argument_of, checked_values, written
from ..contract.spec import (
    CollectionSpec,
    FieldsSpec,
    MappingSpec,
    NoneSpec,
    OtherSpec,
    SelfSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    UnionSpec,
    UnpackedSpec,
    ValidatedSpec,
)
from .arrays import from_numpy, numbers_fix, numpy_fix
from .axes import check_dims
from .family import prefer, within
from .names import are_labels, instead, is_called_mask, is_ids, is_mask
from .operators import declines
from .regions import autocast_casts, region_of
from .reports import fits_none, give, report, report_dtype, report_kind
from .state import CallState, is_returned


def check(contract: Contract, values: tuple[Any, ...]) -> CallState:
    """Check the arguments of one call; `values` stand in the order of `contract.params`.

    Raises:
        AnnotationError: an axis cannot be computed, and nothing before it was wrong.
    """
    return _raise_first_fault(collect(contract, values))


def _raise_first_fault(call: CallState) -> CallState:
    for error, _, first in call.faults:
        if first:
            raise error
    return call


def collect(contract: Contract, values: tuple[Any, ...]) -> CallState:
    """Like `check`, for calls the user did not make: annotation errors are stored, not raised."""
    with private.no_function():  # the user's subclasses are not asked through their own code
        call = CallState(contract, values, find_anchor(contract, values))
        for param, path, value in checked_values(contract, values):
            _check_given(param, value, path, call)
    return call


def check_result(call: CallState, result: Any) -> CallState:
    """Check what the body returned against the same axes; the violations found stand in a new CallState."""
    contract, leaving = call.contract, call.leaving or "return"
    if declines(contract, call.values, result):
        return dataclasses.replace(call, violations=[], edits={}, leaving=leaving)
    outcome = dataclasses.replace(
        call, violations=[], edits={}, faults=[], earlier=call.violations, sides_pass=False, leaving=leaving
    )
    if contract.anchor != "self":  # the other arguments follow a named one; a float32 loss of bfloat16 logits is right
        outcome.anchor = None
    with private.no_function():
        if contract.output_dtype is not None:
            outcome.anchor = Anchor(contract.output_dtype, None, reason="output_dtype is")
            outcome.contract = dataclasses.replace(contract, autocast=Autocast.IGNORE)
            _check_guarded(result, ("result",), outcome)
        if contract.returns is not None:
            _check_argument(contract.returns, result, ("result",), outcome)
    return _raise_first_fault(outcome)


def find_anchor(contract: Contract, values: tuple[Any, ...]) -> Anchor | None:
    if contract.anchor is None:
        return None
    if contract.anchor != "self":
        given = zip(contract.params, values, strict=True)
        param, value = next(pair for pair in given if pair[0].name == contract.anchor)
        if not isinstance(value, Tensor):
            found = anchor_of(value)
            return found and dataclasses.replace(found, name=f"{param.name}.{found.name}")
        alone = CallState(contract, values)
        _check_argument(param.spec, value, (param.name,), alone)  # what lenient mode will make of it
        dtype = next((e.dtype for e in alone.edits.values() if e.dtype is not None), value.dtype)
        reason = f"`{param.name}` is" if dtype is value.dtype else f"`{param.name}` becomes"
        return Anchor(dtype, value.device, f"argument {param.name}", value, reason=reason)
    anchor = anchor_of(values[0]) if values else None
    if contract.border and anchor is not None:  # a norm that takes narrower input would give a narrower result
        anchor.accepts = frozenset()
    if contract.dtype is not None or contract.device is not None:
        anchor = anchor or Anchor(None, None)
        if contract.dtype is not None:
            anchor.dtype, anchor.tensor, anchor.reason = contract.dtype, None, "the guard expects"
        anchor.device = contract.device or anchor.device
    return anchor


def check_one(
    contract: Contract,
    index: int | None,
    values: tuple[Any, ...],
    axes: dict[str, Any],
    variadics: dict[str, Any],
    result: Any = None,
) -> CallState | None:
    """The state of a call in which one argument (index None: the result) holds beside known axes; else None."""
    with private.no_function():
        call = CallState(contract, values, find_anchor(contract, values))
        call.axes = {name: size for name, size in axes.items() if size is not None}
        call.variadics = {name: (False, tuple(shape)) for name, shape in variadics.items() if shape is not None}
        if index is None:
            call.anchor = call.anchor if contract.anchor == "self" else None
            _check_argument(contract.returns, result, ("result",), call)
        for param, path, value in checked_values(contract, values) if index is not None else ():
            if param is contract.params[index or 0]:
                _check_given(param, value, path, call)
    return None if call.violations or call.sides or call.faults else call


def _check_given(param: Param, value: Any, path: Path, call: CallState) -> None:
    if not call.contract.named or param.name != call.contract.anchor:
        _check_argument(param.spec, value, path, call)
        return
    before, anchor, call.anchor = len(call.violations), call.anchor, None  # it does not follow itself
    _check_argument(param.spec, value, path, call)
    call.anchor = anchor
    fits = value is None or isinstance(value, Tensor | nn.Module | torch.fx.Proxy)
    if not fits and len(call.violations) == before:
        report_kind(call, path, value, "a tensor or an nn.Module", asks="`anchor`")


def _check_argument(spec: Spec | None, value: Any, path: Path, call: CallState) -> None:
    if isinstance(value, torch.fx.Proxy):  # symbolic tracing: it stands for a value of which nothing is known
        return
    if spec is not None:
        _CHECKERS[type(spec)](spec, value, path, call)
    elif call.contract.guarded:
        _check_guarded(value, path, call)


# ---------------------------------------------------------------- arrays


def _check_tensor(spec: TensorSpec, value: Any, path: Path, call: CallState) -> None:
    if not _is_instance(value, spec.array_type):
        array = getattr(spec.array_type, "__name__", "array")
        tensor, one = from_numpy(value) if spec.torch_only else None, indefinite(array)
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        actual, reason = "is None" if value is None else f"is {indefinite(kind)}", f"the annotation wants {one}"
        fix = numpy_fix(value) if tensor is not None else numbers_fix(spec, value, call) or (f"{give(call)} {one}",)
        report(call, path, HintError, value, actual, array, reason, spec.hint, fix=fix, repairable=tensor is not None)
        if tensor is None:
            return
        call.edit(path, value).convert = True
        value = tensor
    _check_dtype(spec, value, path, call)
    if isinstance(value, Tensor):
        _check_device(value, path, call, True, spec.hint)
    if spec.torch_only and path in call.edits:
        call.edits[path].array_type = spec.array_type
    check_dims(spec, value, path, call)


def _is_instance(value: Any, array_type: Any) -> bool:
    if array_type is Any:
        return hasattr(value, "shape") and hasattr(value, "dtype")
    return isinstance(value, array_type)


def _check_dtype(spec: TensorSpec, value: Any, path: Path, call: CallState) -> None:
    anchor = call.anchor
    if not isinstance(value, Tensor):
        if not names_accept(spec.names, name_of(value.dtype)):
            report_dtype(call, path, value, prefer(spec, BY_NAME.get(name_of(value.dtype)), None, call), spec.hint)
        return
    wanted = anchor.dtype if anchor is not None else None
    concrete = spec.concrete
    follows = concrete is None and value.dtype in FLOATING and wanted is not None and within(wanted, spec)
    if within(value.dtype, spec) and not (follows and not _follows_anchor(value.dtype, anchor)):
        return
    target = concrete or (wanted if follows else prefer(spec, value.dtype, wanted, call))
    if autocast_casts(value, path, target, wanted, call):
        return
    by_anchor = target is not None and target is wanted and concrete is None
    report_dtype(call, path, value, target, spec.hint, anchor if by_anchor else None, family=concrete is None)


def _follows_anchor(dtype: torch.dtype, anchor: Anchor | None) -> bool:
    return anchor is None or anchor.dtype is None or dtype is anchor.dtype or dtype in anchor.accepts


def _check_device(value: Tensor, path: Path, call: CallState, annotated: bool, hint: str) -> None:
    anchor = call.anchor
    if anchor is None or anchor.device is None or same_device(value.device, anchor.device):
        return
    if value.device.type == "cpu":
        if value.dim() == 0:
            return
        if not annotated and value.dtype not in FLOATING and argument_of(path) not in call.contract.move_args:
            return
    movable = value.device.type != "meta"
    fix = ("", f".to({str(anchor.device)!r})") if movable else (f"create `{written(path)}` on {anchor.device}",)
    told = call.contract.device is not None
    reason = f"{'the guard expects' if told else f'{anchor.reason} on'} {anchor.device}"
    like = None if told else anchor.like
    report(
        call, path, DeviceError, value, value.device, anchor.device, reason, hint, like=like, fix=fix,
        repairable=value.device.type != "meta",
    )  # fmt: skip
    call.edit(path, value).device = anchor.device


def same_device(a: torch.device, b: torch.device) -> bool:
    return a == b or (a.type == b.type and (a.index is None or b.index is None))


# ---------------------------------------------------------------- containers and other hints


def _check_union(spec: UnionSpec, value: Any, path: Path, call: CallState) -> None:
    options = spec.options if value is None else tuple(o for o in spec.options if not isinstance(o, NoneSpec))
    best: CallState | None = None
    tried: list[CallState] = []
    masks = False  # whether an option is a bool tensor
    for option in options:
        trial = call.attempt()
        _CHECKERS[type(option)](option, value, path, trial)
        if not trial.violations:
            call.adopt(trial)
            return
        masks |= any(violation.expected is torch.bool for violation in trial.violations)
        tried.append(trial)
        # The option to complain about, and to repair to, is the one that least is wrong with.
        if best is None or _better(trial, best, value):
            best = trial
    if best is not None:
        first = best.violations[0]
        strange, beyond, _ = _faults(best)
        if beyond and first.path == path and first.code != AXIS.id:  # neither a cast nor the axes say which is meant
            rivals = [(one, trial) for one, trial in zip(options, tried, strict=True) if _faults(trial)[0] is strange]
            if len({trial.violations[0].reason for _, trial in rivals}) > 1:
                fits_none(first, [one.hint for one, _ in rivals])
        for violation in best.violations:
            violation.hint = spec.hint
            counts = violation.actual in TABLE and TABLE[violation.actual].kind is Kind.INT
            if masks and counts and violation.fix and violation.expected is not torch.bool:
                violation.fix = "", " != 0 for a mask, or ", *violation.fix[1:]  # as numbers 1 and 0 hide nothing
        call.adopt(best)


def _better(trial: CallState, best: CallState, value: Any) -> bool:
    """Whether less is wrong with an option than with one that is written before it.

    Of options that are equally wrong it is the cast that loses less that is better. Where one cast loses digits, and
    the other range, it is the one to what autocast computes in, else the first.
    """
    faults, before = _faults(trial), _faults(best)
    if faults != before:
        return faults < before
    (rung, *rest), (rung_before, *rest_before) = _losses(trial), _losses(best)
    if rung != rung_before:
        return rung < rung_before
    less = any(a < b for a, b in zip(rest, rest_before, strict=True))
    if less is not any(a > b for a, b in zip(rest, rest_before, strict=True)):
        return less
    region = region_of(value.device.type) if isinstance(value, Tensor) else None
    wanted, wanted_before = ([violation.expected for violation in one.violations] for one in (trial, best))
    return region is not None and region in wanted and region not in wanted_before


def _faults(trial: CallState) -> tuple[bool, int, int]:
    """Another type is worse than a fault inside the right type; what cannot be repaired is worse than what can."""
    strangers = any(violation.error is HintError and not violation.repairable for violation in trial.violations)
    return strangers, sum(not violation.repairable for violation in trial.violations), len(trial.violations)


def _losses(trial: CallState) -> tuple[int, ...]:
    """The most that one of the casts loses, of everything that casts lose."""
    casts = [(BY_NAME.get(name_of(e.value.dtype)), e.dtype) for e in trial.edits.values() if e.dtype is not None]
    return tuple(map(max, zip((0, 0, 0, False), *(lost(old, new) for old, new in casts if old), strict=True)))


def _check_none(spec: NoneSpec, value: Any, path: Path, call: CallState) -> None:
    if value is not None:
        report_kind(call, path, value, spec.hint)


def _check_other(spec: OtherSpec, value: Any, path: Path, call: CallState) -> None:
    if not bearable(spec, value):
        report_kind(call, *innermost(spec.annotation, path, value, spec.hint))


def _check_collection(spec: CollectionSpec, value: Any, path: Path, call: CallState) -> None:
    scalar = isinstance(value, str) or (isinstance(value, Tensor) and value.dim() == 0)
    if not isinstance(value, spec.origin) or scalar:
        report_kind(call, path, value, spec.hint, count=True)
    elif not _is_recursive(value, call):
        held, rebuildable = members(value)
        _check_items(value, [(spec.item, *item) for item in held], path, call, rebuildable)


def _check_tuple(spec: TupleSpec, value: Any, path: Path, call: CallState) -> None:
    if not isinstance(value, spec.origin) or len(value) != len(spec.items):
        report_kind(call, path, value, spec.hint, count=True)
    elif not _is_recursive(value, call):
        held, rebuildable = members(value)
        items = [(item_spec, *item) for item_spec, item in zip(spec.items, held, strict=True) if item_spec]
        _check_items(value, items, path, call, rebuildable)


def _check_mapping(spec: MappingSpec, value: Any, path: Path, call: CallState) -> None:
    if not isinstance(value, spec.origin):
        report_kind(call, path, value, spec.hint, count=True)
    elif not _is_recursive(value, call):
        mapping: Any = value
        keys = [(spec.key, ("member", f"key {i}"), key) for i, key in enumerate(mapping)] if spec.key else []
        _check_items(value, keys, path, call, False)  # a copy is another key
        items = [(spec.value, ("item", key), item) for key, item in mapping.items()] if spec.value else []
        _check_items(value, items, path, call, children(value) is not None)


def _check_fields(spec: FieldsSpec, value: Any, path: Path, call: CallState) -> None:
    missing = sorted(spec.required - set(value)) if isinstance(value, dict) else []
    if not isinstance(value, spec.origin) or missing:
        others = [key for key in value if key not in {**spec.fields, **spec.others}] if missing else []
        report_kind(call, path, value, spec.hint, True, *missing, others=others)
    elif not _is_recursive(value, call):
        held = {step[1]: (step, item) for step, item in children(value) or ()}
        items = [(field_spec, *held[name]) for name, field_spec in spec.fields.items() if name in held]
        _check_items(value, items, path, call)


def _check_items(
    value: Any, items: list[tuple[Any, PathStep, Any]], path: Path, call: CallState, rebuildable: bool = True
) -> None:
    """Check what a container holds, by specs or (None) as of an unannotated argument; it may hold itself."""
    call.open.append(value)
    before = len(call.violations)
    for spec, step, item in items:
        if spec is None:
            _check_guarded(item, (*path, step), call)
        else:
            _CHECKERS[type(spec)](spec, item, (*path, step), call)
    call.open.pop()
    if not rebuildable:
        _not_repairable(before, call)


def _check_validated(spec: ValidatedSpec, value: Any, path: Path, call: CallState) -> None:
    before = len(call.violations)
    _CHECKERS[type(spec.spec)](spec.spec, value, path, call)
    if all(violation.error is not HintError for violation in call.violations[before:]):
        _check_other(spec.validators, value, path, call)


def _check_self(spec: SelfSpec, value: Any, path: Path, call: CallState) -> None:
    if not is_own(call.contract.function, call.values, value):
        report_kind(call, path, value, spec.hint)


_CHECKERS: dict[type, Callable[[Any, Any, Path, CallState], None]] = {
    TensorSpec: _check_tensor,
    UnionSpec: _check_union,
    NoneSpec: _check_none,
    CollectionSpec: _check_collection,
    TupleSpec: _check_tuple,
    MappingSpec: _check_mapping,
    FieldsSpec: _check_fields,
    UnpackedSpec: lambda spec, *rest: _CHECKERS[type(spec.whole)](spec.whole, *rest),
    ValidatedSpec: _check_validated,
    SelfSpec: _check_self,
    OtherSpec: _check_other,
}


def _check_guarded(value: Any, path: Path, call: CallState) -> None:
    """An unannotated argument of a guarded model: floating tensors follow the anchor, wherever they are."""
    if isinstance(value, Tensor):
        anchor = call.anchor
        if (
            anchor is not None
            and value.dtype in FLOATING
            and not _follows_anchor(value.dtype, anchor)
            and not is_count(value, anchor.dtype)
            and not autocast_casts(value, path, anchor.dtype, anchor.dtype, call)
            and not is_mask(call.contract, path, value.dtype, anchor.dtype, call.values)
        ):
            if _is_side(path, call):
                call.sides.append((path, value))
            elif is_ids(path, value, call.values[0]):
                reason = "ids of an embedding are integers"
                report(call, path, DtypeError, value, value.dtype, torch.int64, reason, "", fix=("", ".long()"))
            else:
                report_dtype(call, path, value, anchor.dtype, "", anchor)
                if call.contract.guarded and (fix := instead(path, value, anchor.dtype, call.values[0])):
                    call.violations[-1].fix = fix
        _check_device(value, path, call, False, "")
    elif not _is_plain(value) and not _is_recursive(value, call):
        held = children(value)
        _check_items(value, [(None, *item) for item in held or leaves(value)], path, call, held is not None)


def _is_plain(value: Any) -> bool:
    """Whether a value surely holds no tensor: a number or a string, or a list of them, however long."""
    return type(value) in SCALARS or (type(value) is list and are_scalars(value))


def _is_side(path: Path, call: CallState) -> bool:
    """Whether an unannotated argument of another dtype than the anchor's passes as a side input."""
    if call.sides_pass is None:
        dtype = call.anchor.dtype if call.anchor is not None else None
        given = call.contract, call.values, dtype
        call.masks_pass = call.contract.sides and only_masks_differ(*given)
        call.sides_pass = call.contract.sides and dtype_is_shown(*given)
    return call.sides_pass or (call.masks_pass and is_called_mask(path))


def dtype_is_shown(contract: Contract, values: tuple[Any, ...], dtype: torch.dtype | None) -> bool:
    """Whether a floating argument has the anchor's dtype, so that the caller knows which one that is.

    A 0-dim tensor shows nothing: it has the default dtype, as `torch.tensor(0.5)` does.
    """
    return any(contains_dtype(values[0], value, dtype) for _, _, value in checked_values(contract, values))


def contains_dtype(module: Any, value: Any, dtype: torch.dtype | None, around: tuple[Any, ...] = ()) -> bool:
    """Whether a tensor of a dtype, of one axis or more, is in a value, but for what a module made itself."""
    if isinstance(value, Tensor):
        return value.dtype is dtype and value.dim() > 0 and not is_returned(module, value)
    if _is_plain(value) or isinstance(value, torch.fx.Proxy):
        return False
    if not torch.compiler.is_compiling() and any(value is outer for outer in around):
        return False
    return any(contains_dtype(module, child, dtype, (*around, value)) for _, child in children(value) or leaves(value))


_DEEPEST = 16  # containers in containers, which may hold themselves


def only_masks_differ(contract: Contract, values: tuple[Any, ...], dtype: torch.dtype | None) -> bool:
    """Whether ids stand beside masks, and nothing but labels has another floating dtype: then no cast was forgotten.

    What a model does with a mask is its own affair: many compare it with zero, or cast it to the dtype of their scores.
    """
    ids = False
    for _, path, value in checked_values(contract, values):
        for place, tensor in _tensors(path, value):
            mask = is_called_mask(place)
            if tensor.dtype in FLOATING and tensor.dtype is not dtype and not (mask or are_labels(place)):
                return False
            ids = ids or (TABLE[tensor.dtype].kind is Kind.INT and not mask)
    return ids


def _tensors(path: Path, value: Any, depth: int = 0) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif not _is_plain(value) and depth < _DEEPEST:  # Dynamo cannot compare tuples by identity
        for step, item in children(value) or leaves(value):
            yield from _tensors((*path, step), item, depth + 1)


def _is_recursive(value: Any, call: CallState) -> bool:
    """Whether a container is inside itself; not asked of Dynamo, which could not have traced such a one."""
    return not torch.compiler.is_compiling() and any(value is outer for outer in call.open)


def _not_repairable(before: int, call: CallState) -> None:
    """What is wrong inside a container that cannot be rebuilt cannot be repaired."""
    for violation in call.violations[before:]:
        violation.repairable = False
