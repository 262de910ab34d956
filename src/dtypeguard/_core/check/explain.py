"""The exception of a call that broke its contract: what is wrong, where, and what to write instead."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..base import private
from ..base.codes import REFUSED, WRITTEN
from ..base.dtypes import may_cast
from ..base.errors import (
    CastError,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    Violation,
    fix_of,
    headline,
    make_error,
    plain,
)
from ..base.frames import caller, installed, place, place_of, return_of, user
from ..contract.model import Path, argument_of
from .expressions import Arguments
from .names import caster_of, keeps_digits
from .sides import door_at, listed, need, only_side, refusal
from .state import CallState
from .verify import changed, compact, loses, narrowing, narrows


def why_not(call: CallState, violation: Violation) -> str:
    """Why lenient mode does not repair a violation, to be added to its reason."""
    if violation.error in (DtypeError, DeviceError):
        violation.code = REFUSED.id
    root = violation.argument.split("[")[0].split(".")[0]
    if root in call.contract.mutates:
        violation.code = WRITTEN.id
        return f"; `{root}` is written to, so it is never cast"
    if call.contract.checker:
        return "; under jaxtyping's decorator nothing can be cast: put @dtypeguard.enforce on the function itself"
    if violation.error is DeviceError:
        return "; a meta tensor has no data to move" if str(violation.actual) == "meta" else _OPAQUE
    if violation.error is DtypeError and isinstance(violation.actual, torch.dtype):
        if isinstance(violation.expected, torch.dtype) and may_cast(violation.actual, violation.expected, call.casting):
            return _OPAQUE
        casting = call.casting.name.lower()
        wanted = plain(violation.expected)
        into = "it" if violation.reason.endswith(wanted) else wanted
        return f", and casting={casting!r} does not turn {plain(violation.actual)} into {into}"
    return ""


_OPAQUE = "; its container cannot be rebuilt around a copy"


def lossy(
    call: CallState, path: Path, source: Tensor, fresh: Tensor, infinite: bool, whole: bool = True
) -> tuple[str, tuple[str, ...]] | None:
    """What a narrowing has lost that nobody can have meant to lose, and what to write instead.

    Args:
        infinite: whether it made a finite value infinite.
        whole: whether to look for whole numbers that it changed.
    """
    name, when = plain(fresh.dtype), "" if call.leaving else " before the call"
    if infinite:
        out = " keep it out with skip_args," if call.contract.guarded else ""
        text = f"clamp it to torch.finfo({fresh.dtype}),{out} or use a wider dtype than {name}"
        return f"finite values of it become infinite in {name}", (text,)
    out = "annotate it with a wider dtype"
    if call.contract.guarded:
        out = f"keep it out with skip_args={argument_of(path)!r}"
        if keeps_digits(path, fresh.dtype) and loses(source, fresh):
            why = f"digits of it are lost in {name}, and a loss compares with them: {out}"
            return why, (f"{out}, or, where that is meant, write ", f".to({fresh.dtype}){when}")
    odd = changed(source, fresh) if whole else None
    if odd is None:
        return None
    if call.contract.guarded and any(_is_alike(value, source) for value in call.values):
        out = f"pass the other inputs in {name}, and it stays as it is, or {out}"
    module = call.values[0] if call.values else None
    torchs = isinstance(module, nn.Module) and type(module).__module__.startswith("torch.")
    if torchs or "." in str(module_path(call)):  # inside of a model, where a module needs it
        out = "give the model numbers that stay what they are"
    why = f"{odd[0]} becomes {odd[1]} in {name}: {out}"
    return why, (f"{out}, or, where that is meant, write ", f".to({fresh.dtype}){when}")


def _is_alike(value: Any, source: Tensor) -> bool:
    """Whether a value is another input of the same floating dtype: of two, neither is known to be a side input."""
    return isinstance(value, Tensor) and value is not source and value.dtype is source.dtype


def _without_loss(call: CallState, violation: Violation) -> bool:
    """Whether the cast that a violation asks for keeps its values; if not, it is not what to write."""
    source, target = violation.value, violation.expected
    strided = type(source) in (Tensor, nn.Parameter) and source.layout is torch.strided and not source.is_meta
    if violation.error is not DtypeError or not strided or not isinstance(target, torch.dtype):
        return True
    if not narrows(source.dtype, target) or private.MODES_AND_AUTOCAST is None:
        return True
    with private.without_keys(private.MODES_AND_AUTOCAST):  # what records the program hears nothing of it
        fresh = compact(source.detach()).to(target)
        loss = lossy(call, violation.path, source, fresh, narrowing(source, fresh)[1])
    if loss is not None:
        first, *rest = loss[1]
        violation.fix = (f"{loss[0].partition(':')[0]}, so {first}", *rest)
    return loss is None


def module_path(call: CallState) -> str | None:
    module = call.values[0] if call.values else None
    if not isinstance(module, nn.Module):
        return None
    card = door_at(module) if call.contract.door else module.__dict__.get("_dtypeguard")
    return type(module).__name__ if card is None else str(card.path)


def _maker(call: CallState) -> str:
    """The call that took the options of a contract, as the user writes it."""
    if not call.contract.guarded:
        return "{}"
    return getattr(vars(call.values[0]).get("_dtypeguard"), "maker", "dtypeguard.guard(model, {})")


def error_for(
    call: CallState, violations: list[Violation], kind: type[DtypeGuardError], placed: bool = True
) -> DtypeGuardError:
    contract = call.contract
    if torch.compiler.is_compiling():  # Dynamo can build an exception from one text, and only that
        fix = fix_of(violations)
        write = "the same call without torch.compile says more" if fix is None else f"fix: {fix}"
        return kind(f"{contract.function}: {headline(violations[0])} [{violations[0].code or kind._code}]; {write}")
    instead, found = "", need(call, [violation.value for violation in violations])
    keeps = [_without_loss(call, violation) for violation in violations]  # each, for each has a fix of its own
    if kind is not CastError and all(keeps) and all(violation.repairable for violation in violations):
        instead = _maker(call if found is None else found.call).format('mode="lenient"')
        name = violations[0].argument
        if contract.guarded and not call.leaving and (caster := caster_of(name, call.values[0])):
            instead += f", or skip_args={name!r}, as {caster} casts it itself"
    axes: dict[str, Any] = {**call.axes, **{f"*{name}": list(shape) for name, (_, shape) in call.variadics.items()}}
    more: dict[str, str] = {}
    frame = None
    inside = caller()
    if found is not None and not found.paths and inside is not None and installed(inside.f_code.co_filename):
        # Of a line of an installed package nobody can change the cast.
        found = found._replace(paths=only_side(found, [violation.value for violation in violations]))
    # The caller knows the argument, not the module inside that refuses it.
    if found is not None and found.paths and kind is DtypeError:
        more["needed by"] = f"{module_path(call)} ({type(call.values[0]).__name__}) at {place(caller())}"
        call, frame = refusal(found, violations), found.frame
        contract, violations, axes = call.contract, call.violations, {}
    others = call if found is None else found.call
    if others.sides:
        more["beside"] = listed(others)
    arguments = Arguments(call, frame)
    for violation in violations:
        violation.expression = arguments[violation.path]
    if call.leaving and not contract.guarded:  # the mistake is in the function, not where it is called
        line = return_of(contract.body)
        more["defined at" if line is None else "return at"] = line or place_of(contract.body) or ""
    path, site = module_path(call), place(caller(frame))
    mine = place(user(frame or sys._getframe()))
    if mine is not None and mine != site and mine not in more.get("needed by", ""):  # the line is of a package
        more["reached at"] = mine
    with private.no_function():
        return make_error(kind, contract.function, violations, path, site, axes, instead, more, placed)
