"""The two ends of a call that did not pass the fast path: violations become an error, a warning or a repair.

Nothing here ever writes to the caller's tensors.
"""

import contextlib
import ctypes
from typing import Any

import torch

from ..base.config import Mode
from ..base.errors import CastError, ContractWarning, DeviceError, DtypeError, DtypeGuardError, InplaceOnCastWarning
from ..base.frames import caller, same_line
from ..check.explain import error_for, why_not
from ..check.reference import check, check_result
from ..check.sides import need
from ..check.state import CallState
from ..contract.model import Contract, alike
from .cast import repaired, warn_of_copy
from .containers import Rebuilt
from .records import warn_once

_NOTHING = contextlib.nullcontext()


def enter(contract: Contract, values: tuple[Any, ...]) -> CallState:
    """Check the arguments of a call, then raise, repair, warn or let pass, by the mode.

    The returned call's `values` are what the body must get.
    """
    mode = contract.mode_for(values)
    if mode is Mode.OFF:
        return CallState(contract, values, passive=True)
    call = check(contract, values)
    if call.sides and torch.compiler.is_dynamo_compiling() and _follows(values[0]):
        _put_doors(id(values[0]))  # torch < 2.13: a module itself is no constant; goes with that floor
    if call.violations:
        call.values = tuple(_settle(call, mode, call.arguments()).values())
    if call.unbound is not None:
        raise call.unbound
    return call


def _follows(module: Any) -> bool:
    card = module.__dict__.get("_dtypeguard")
    return card is not None and card.follows


def inside(module: Any) -> Any:
    """Around the body of a call with side inputs: PyTorch's modules inside of the model are checked too."""
    if _follows(module) and not torch.compiler.is_dynamo_compiling():
        return module.__dict__["_dtypeguard"].opened(module)
    return _NOTHING


def _put_doors(address: int) -> None:
    """The same while Dynamo traces, for good. It may have seen the modules as they were: it begins anew."""
    from torch._dynamo.exc import UnspecializeRestartAnalysis

    module = ctypes.cast(address, ctypes.py_object).value  # it is alive: its call is traced
    if module.__dict__["_dtypeguard"].keep_open(module):
        raise UnspecializeRestartAnalysis(restart_reason="dtypeguard: the modules inside are guarded now")


vars(_put_doors)["_dynamo_marked_constant"] = True  # it runs at once, see `_record_traced`


def leave(call: CallState, result: Any) -> Any:
    """Check what the body returned, and whether it wrote to a copy that the caller will never see."""
    if call.passive:
        return result
    outcome = check_result(call, result)
    if outcome.violations:
        result = _settle(outcome, call.mode, {"result": result})["result"]
    if outcome.unbound is not None:
        raise outcome.unbound
    return result


def _settle(call: CallState, mode: Mode, values: dict[str, Any]) -> dict[str, Any]:
    if mode is Mode.STRICT:
        raise error_for(call, call.violations, call.violations[0].error)
    if mode is Mode.WARN:
        if not torch.compiler.is_compiling():
            error = error_for(call, call.violations, DtypeGuardError, placed=False)  # Python prints a warning's line
            warning = ContractWarning(*error.args)
            warning.code, warning.fix = error.code, error.fix
            kinds = ((alike(call.contract, v.path, values[v.path[0]]), v) for v in call.violations)
            facts = frozenset((kind, str(v.actual), str(v.expected)) for kind, v in kinds)
            found = need(call, [violation.value for violation in call.violations])
            frame = caller() if found is None else caller(found.frame)
            warn_once(("warn", call.contract.function, facts, same_line(frame)), warning)
        return values
    beyond = [violation for violation in call.violations if not violation.repairable]
    if beyond:
        for violation in beyond:
            violation.reason += why_not(call, violation)
        kind = beyond[0].error
        raise error_for(call, beyond, CastError if kind in (DtypeError, DeviceError) else kind)
    return repaired(call, values)


def look_back(call: CallState) -> None:
    """After the body: warn of changed copies, and change the caller's containers as the body changed rebuilt ones."""
    if torch.compiler.is_compiling():
        return
    for argument, kind, source, fresh, version in call.copies:
        warn_of_copy(call.contract, argument, source, fresh, version, kind)
    for rebuilt in call.rebuilt:
        if rebuilt.changed():
            _replay(call.contract.function, rebuilt)


def _replay(function: str, rebuilt: Rebuilt) -> None:
    own, refused = f"the caller's {type(rebuilt.original).__name__}", rebuilt.replay()
    outcome = f"{own} was changed in the same way"
    if refused is not None:
        outcome = f"{own} allows no such change, so it stays as it was; cast before the call ({refused})"
    text = f"{function} changed `{rebuilt.argument}`, which was rebuilt for a cast: {outcome}"
    warn_once(("replay", function, rebuilt.kind, same_line(caller())), InplaceOnCastWarning(text))
