"""What generated code calls: the way of a call that did not pass its checks, and of one that yields."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Generator
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from ..base import private
from ..base.dtypes import FLOATING
from ..base.errors import plain
from ..check.arrays import from_numpy, numpy_fix
from ..check.expressions import Arguments
from ..check.scope import adopt, scope
from ..check.sides import again, call_of, door_at, listed
from ..check.state import CallState, note_returned
from ..contract.anchor import anchor_of
from ..contract.model import Contract, Omitted, checked_values, written
from ..repair.plans import MISSED, follow, is_repaired, remember
from ..repair.settle import enter, inside, leave, look_back

_P = inspect.Parameter
_CHECKPOINT = torch.utils.checkpoint.__file__
_compiling = torch.compiler.is_compiling


def slow(contract: Contract, values: tuple[Any, ...]) -> Any:
    """A call that the straight-line checks did not pass: a known repair, else the reference checker."""
    compiling = _compiling()
    if contract.guarded and not contract.door and not compiling and _has_lapsed(contract, values[0]):
        return _run(contract, CallState(contract, values))
    if contract.door and not compiling:
        found = _at_door(contract, values[0])
        if found is None:
            return _run(contract, CallState(contract, values))
        contract = found
    if not compiling:  # in this order: Dynamo would guard on the plans
        wrapper = sys._getframe(1)
        if is_repaired(wrapper):
            return MISSED
        if contract.plans and (result := follow(contract, values, wrapper)) is not MISSED:
            if contract.sides and len(contract.params) > 2:
                note_returned(values[0], result)
            return result
    call = enter(contract, values)
    if call.records:
        remember(call, values)
    try:
        if call.sides:
            with inside(values[0]):
                result = _run(contract, call)
        else:
            result = _run(contract, call)
    finally:
        look_back(call)
    if call.records and contract.sides:
        note_returned(values[0], result)
    return leave(call, result)


def _at_door(contract: Contract, module: Any) -> Contract | None:
    """What a module inside of a model is held to now; None if it was not the model that called it.

    A checkpointed block runs again in a backward, without the model around it.
    """
    door = door_at(module)
    if door is None:
        backward = module in again and private.graph_task() != -1
        return dataclasses.replace(contract, border=True, plans=[]) if backward else None
    if module not in again and _is_checkpointed():
        again.add(module)
    found: Contract = door.contract
    return found


def _is_checkpointed() -> bool:
    """Whether a block runs that will run again, between this check and that of the model around it."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code is not slow.__code__:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def _has_lapsed(contract: Contract, module: Any) -> bool:
    """Whether a guard was taken off or replaced, while something (accelerate, a hook) still holds its wrapper."""
    key = getattr(type(module), "_dtypeguard_key", None)
    return key is not contract.key and key != contract.key


def _run(contract: Contract, call: CallState) -> Any:
    args, kwargs = _arguments(contract, call.values)
    try:
        return _body(contract, call, args, kwargs)
    except NOTED as error:
        if contract.guarded:
            note(error, contract, call.values)
        raise


def _body(contract: Contract, call: CallState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not contract.scoped or torch.compiler.is_compiling():
        return contract.body(*args, **kwargs)
    with scope(call.arguments(), call.axes, call.variadics, contract.checker) as bound:
        result = contract.body(*args, **kwargs)
    adopt(call, bound)
    return result


def _arguments(contract: Contract, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    """The values in the order of the parameters, as a call passes them."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    omitted = False
    for param, value in zip(contract.params, values, strict=True):
        if isinstance(value, Omitted):  # not `is OMITTED`: Dynamo in torch 2.9 compares no symbolic number with it
            omitted = True
        elif param.kind is _P.VAR_POSITIONAL:
            args.extend(value)
        elif param.kind is _P.VAR_KEYWORD:
            kwargs.update(value)
        elif param.kind is _P.KEYWORD_ONLY or (omitted and param.kind is _P.POSITIONAL_OR_KEYWORD):
            kwargs[param.name] = value
        else:
            args.append(value)
    return args, kwargs


def judge(contract: Contract, values: tuple[Any, ...], result: Any, bound: scope | None = None) -> Any:
    """A result that the straight-line checks did not pass; the arguments did, so they only bind their axes again."""
    call = enter(contract, values)
    adopt(call, bound)
    return leave(call, result)


async def slow_coroutine(contract: Contract, values: tuple[Any, ...]) -> Any:
    """`slow` of an async function."""
    call = enter(contract, values)
    try:
        result = await _run(contract, call)
    finally:
        look_back(call)
    return leave(call, result)


def yielded(call: CallState, item: Any) -> Any:
    """One item that a generator yields, checked like a result."""
    if call.contract.yields is None:
        return item
    contract = dataclasses.replace(call.contract, returns=call.contract.yields)
    return leave(dataclasses.replace(call, contract=contract, leaving="yield"), item)


def slow_generator(contract: Contract, values: tuple[Any, ...]) -> Generator[Any, Any, Any]:
    """A generator: its arguments are checked at the first `next`, then every item, and what it returns.

    Else it does what `yield from` does.
    """
    call = enter(contract, values)
    stream = _run(contract, call)
    step, given = stream.send, None
    try:
        while True:
            try:
                item = step(given)
            except StopIteration as stop:
                result = stop.value
                break
            item = yielded(call, item)
            try:
                given = yield item
                step = stream.send
            except GeneratorExit:
                raise
            except BaseException as error:
                step, given = stream.throw, error
    finally:  # without a question to the body where an item is wrong
        stream.close()
        look_back(call)
    return leave(call, result)


def slow_stream(contract: Contract, values: tuple[Any, ...]) -> Any:
    """An async generator, likewise: there is no `yield from` for these, so the wrapper itself goes on."""
    call = enter(contract, values)
    return call, _run(contract, call)


NOTED = (RuntimeError, IndexError, AttributeError, TypeError)  # what torch and Python say of wrong arguments
_NOTE = "dtypeguard: raised inside"
_TORCH_SAYS = re.compile(
    r"dtype|device|scalar type|bias type|weight type|not implemented for|can't be cast|cannot be converted to type"
    r"|must be long|used as indices|different from other|ScalarType|to have the same type"
)


def note(error: Exception, contract: Contract, values: tuple[Any, ...]) -> None:
    """Say on torch's own dtype or device error which guarded module it left; the error itself is not touched."""
    module = values[0]
    card = vars(module).get("_dtypeguard")
    if card is None or any(_NOTE in n for n in getattr(error, "__notes__", ())):
        return
    anchor = anchor_of(module)
    if isinstance(error, AttributeError | TypeError):
        for _, path, value in checked_values(contract, values) if "numpy" in str(error) else ():
            if (tensor := from_numpy(value)) is not None:
                before, after = numpy_fix(value)
                wanted = anchor.dtype if anchor is not None and tensor.dtype in FLOATING else None
                cast = f".to({wanted})" if wanted not in (None, tensor.dtype) else ""
                given = Arguments(CallState(contract, values), sys._getframe(1))[path]
                text = written(path) if given is None else given.operand if after[1:] else given.text
                said = f"`{written(path)}` is a NumPy array: pass `{before}{text}{after}{cast}`"
                error.add_note(f"{_NOTE} {card.path}, {said}")
        return
    if not _TORCH_SAYS.search(str(error)):
        return
    facts = [plain(fact) for fact in (anchor.dtype, anchor.device) if fact is not None] if anchor is not None else []
    if anchor is not None and anchor.dtype is None:
        dtypes = dict.fromkeys(plain(one.dtype) for one in module.parameters() if one.dtype in FLOATING)
        facts = [" and ".join(dtypes), *facts]
    parameters = f" (its parameters: {', '.join(facts)})" if facts else ""
    error.add_note(f"{_NOTE} {card.path}{parameters}{card.advice(module, error)}")
    call = call_of(module)
    if call is not None:
        error.add_note(f"dtypeguard: side inputs of {card.path}: {listed(call)}")
