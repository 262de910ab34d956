"""The wrapper around a function: its checks inline, the reference checker behind them.

Floor 4. `build` generates a wrapper whose code answers one question: is
everything right? If so the body is called; if not, `_mend` repeats a repair
that is known, or `_cast.enter` takes over with the reference checker. The
generated code never explains and never repairs.
"""

import dataclasses
import functools
import inspect
import itertools
import linecache
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._anchor import Slots, anchor_of, find, slots
from ._cast import enter, leave, look_back
from ._config import Autocast
from ._contract import Call, Contract, Param
from ._emit import attempt
from ._errors import plain
from ._mend import look_at, mend

_numbers = itertools.count(1)
_P = inspect.Parameter


def _call_arguments(params: tuple[Param, ...]) -> str:
    """How the wrapper passes its parameters on to the body."""
    forms = {_P.VAR_POSITIONAL: "*{0}", _P.VAR_KEYWORD: "**{0}", _P.KEYWORD_ONLY: "{0}={0}"}
    return ", ".join(forms.get(param.kind, "{0}").format(param.name) for param in params)


def _declaration(params: tuple[Param, ...], defaults: dict[str, str]) -> str:
    """The wrapper's own parameter list: the same names, kinds and defaults."""
    parts: list[str] = []
    previous: Any = None
    for param in params:
        if previous is _P.POSITIONAL_ONLY and param.kind is not _P.POSITIONAL_ONLY:
            parts.append("/")
        if param.kind is _P.KEYWORD_ONLY and previous not in (_P.KEYWORD_ONLY, _P.VAR_POSITIONAL):
            parts.append("*")
        star = {_P.VAR_POSITIONAL: "*", _P.VAR_KEYWORD: "**"}.get(param.kind, "")
        parts.append(star + param.name + (f"={defaults[param.name]}" if param.name in defaults else ""))
        previous = param.kind
    if previous is _P.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


_FIND = """\
_dg_p = _dg_slot({self})
if _dg_p is None: _dg_a, _dg_cpu = None, False
else: _dg_a, _dg_cpu = _dg_p.dtype, _dg_p.is_cpu
"""
_READ = """\
try: _dg_{variable} = {path}
except _dg_KeyErrors: _dg_{variable} = {otherwise}
"""
_MEND = """\
_dg_known = _dg_mend(_dg_contract, {values})
if _dg_known is not None:
    {names} = _dg_known.values
    try: return {call}
    finally: _dg_look_at(_dg_known)
"""
_ASYNC_STREAM = """\
_dg_stream = {call}
_dg_step = _dg_stream.asend(None)
while True:
    try: _dg_item = await _dg_step
    except _dg_StopAsyncIteration: break
    try: _dg_item = _dg_yielded(_dg_call, _dg_item)
    except _dg_BaseException:
        await _dg_stream.aclose()
        raise
    try: _dg_sent = yield _dg_item
    except _dg_GeneratorExit:
        await _dg_stream.aclose()
        raise
    except _dg_BaseException as _dg_error: _dg_step = _dg_stream.athrow(_dg_error)
    else: _dg_step = _dg_stream.asend(_dg_sent)
"""
# Bound, because a NamedTuple's functions see no builtins, and a user's module may hide them.
_EXCEPTIONS = {
    f"_dg_{error.__name__}": error for error in (Exception, BaseException, StopAsyncIteration, GeneratorExit)
} | {"_dg_KeyErrors": (KeyError, AttributeError), "_dg_Errors": (RuntimeError, IndexError)}
_BODY = {
    "function": "_dg_out = {call}",
    "coroutine": "_dg_out = await {call}",
    "generator": "_dg_out = yield from _dg_yields(_dg_call, {call})",
    "async generator": _ASYNC_STREAM,
}


def kind_of(fn: Any) -> str:
    """Which of the four kinds of function this is."""
    if inspect.isasyncgenfunction(fn):
        return "async generator"
    if inspect.isgeneratorfunction(fn):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(fn) else "function"


def _device(contract: Contract, anchor: Slots | None) -> str:
    """The expression of the anchor's device; a CPU is compared by `is_cpu` alone, so it is rarely evaluated."""
    if contract.device is not None:
        return "_dg_contract.device"
    if contract.guarded and anchor is None:
        return "None"
    if anchor is not None and anchor.elsewhere is not None:  # as long as these two disagree, there is none
        return "(_dg_p.device if _dg_p.device == _dg_e.device else None)"
    return "_dg_p.device"


def _anchor_lines(contract: Contract, self_name: str, anchor: Slots | None, device: str) -> list[str]:
    """How the anchor's dtype, and whether its device is a CPU, get into `_dg_a` and `_dg_cpu`."""
    if not contract.guarded:
        return _FIND.format(self=self_name).splitlines()
    reads = {} if anchor is None else {"p": anchor.first, "o": anchor.other, "e": anchor.elsewhere}
    lines = []
    for variable, path in reads.items():
        if path is not None:
            otherwise = f"_dg_find({self_name})" if variable == "p" else "_dg_p"
            read = _READ.format(variable=variable, path=path.format(self=self_name), otherwise=otherwise)
            lines += read.splitlines()
    dtype, cpu = "None", "False"
    if anchor is not None:
        dtype = "_dg_p.dtype" if anchor.other is None else "_dg_p.dtype if _dg_p.dtype is _dg_o.dtype else None"
        cpu = "_dg_p.is_cpu" if anchor.elsewhere is None else "_dg_p.is_cpu and _dg_e.is_cpu"
    if contract.device is not None:
        cpu = str(contract.device.type == "cpu")
    dtype = dtype if contract.dtype is None else "_dg_contract.dtype"
    return [*lines, f"_dg_a = {dtype}", f"_dg_cpu = {cpu}"]


def source(
    fn: Any, contract: Contract, anchor: Slots | None, scoped: bool
) -> tuple[list[str], dict[str, Any], list[str] | None]:
    """The wrapper's source, what it closes over, and the lines that check the arguments, if only those."""
    names, kind = [param.name for param in contract.params], kind_of(fn)
    overridden = contract.dtype is not None or contract.device is not None
    anchored = (anchor is not None or overridden) if contract.guarded else contract.anchor == "self"
    device = _device(contract, anchor)
    writer, arguments, result = attempt(contract, anchored, device)
    if kind.endswith("generator"):
        arguments = None
    closure = dict(writer.closure)
    closure |= {"_dg_fn": fn, "_dg_enter": enter, "_dg_leave": leave, "_dg_contract": contract, "_dg_find": find}
    closure |= {"_dg_yields": yields, "_dg_yielded": yielded, "_dg_scope": scope, "_dg_note": note, "_dg_slot": None}
    closure |= {"_dg_mend": mend, "_dg_look_at": look_at, "_dg_look_back": look_back}
    closure["_dg_compiling"] = torch.compiler.is_compiling
    closure |= _EXCEPTIONS
    defaults = {param.name: f"_dg_is_{param.name}" for param in contract.params if param.default is not _P.empty}
    closure |= {defaults[param.name]: param.default for param in contract.params if param.name in defaults}
    comma = "," if len(names) == 1 else ""
    values = f"({', '.join(names)}{comma})"
    call = f"_dg_fn({_call_arguments(contract.params)})"

    def body(axes: str) -> list[str]:
        lines = _BODY[kind].format(call=call).splitlines()
        if scoped and kind == "function":
            lines = [f"if _dg_compiling(): {lines[0]}", "else:", f"    with _dg_scope({axes}): {lines[0]}"]
        if contract.guarded:
            noted = [f"    {line}" for line in lines]
            lines = ["try:", *noted, "except _dg_Errors as _dg_error:", f"    _dg_note(_dg_error, {names[0]})"]
            lines += ["    raise"]
        return lines

    enters = [f"_dg_call = _dg_enter(_dg_contract, {values})"]
    slow = [*enters, *([f"{values[1:-1]} = _dg_call.values"] if names else [])]
    inner = body("_dg_call.axes, _dg_call.variadics")
    slow += ["try:", *(f"    {line}" for line in inner), "finally: _dg_look_back(_dg_call)"]
    if kind != "async generator":
        slow += ["return _dg_leave(_dg_call, _dg_out)"]
    prefix = "async def" if kind.startswith(("async", "coroutine")) else "def"
    name = fn.__name__ if fn.__name__.isidentifier() else "wrapper"
    lines = [f"{prefix} {name}({_declaration(contract.params, defaults)}):", "    __tracebackhide__ = _dg_number"]
    if arguments is None:
        return [*lines, *(f"    {line}" for line in slow)], closure, None
    head = _anchor_lines(contract, names[0], anchor, device) if anchored else []
    checks = [*(f"            {line}" for line in (*(f"{name} = None" for name in writer.initial), *head)), *arguments]
    lines += [f"    {variable} = None" for variable in writer.initial]
    lines += ["    _dg_ok = False", "    try:", "        while True:", *(f"            {line}" for line in head)]
    lines += [*arguments, "            _dg_ok = True", "            break", "    except _dg_Exception: pass"]
    lines += ["    if not _dg_ok:"]
    if kind == "function" and names:
        lines += [
            f"        {line}"
            for line in _MEND.format(
                values=values, call=call.replace("_dg_fn", "_dg_contract.wrapper", 1), names=values[1:-1]
            ).splitlines()
        ]
    lines += [f"        {line}" for line in slow]
    single = {axis: variable for (variadic, axis), (variable, _) in writer.axes.items() if not variadic}
    several = {axis: variable for (variadic, axis), (variable, _) in writer.axes.items() if variadic}
    pairs = [", ".join(f"{axis!r}: {variable}" for axis, variable in part.items()) for part in (single, several)]
    lines += [f"    {line}" for line in body(f"{{{pairs[0]}}}, {{{pairs[1]}}}")]
    if result is not None and contract.returns is None:
        return [*lines, "    return _dg_out"], closure, checks
    if result is not None:
        lines += [
            "    try:",
            "        while True:",
            *result,
            "            return _dg_out",
            "    except _dg_Exception: pass",
        ]
    return [*lines, *(f"    {line}" for line in enters), "    return _dg_leave(_dg_call, _dg_out)"], closure, checks


def build(fn: Any, contract: Contract, *, anchor: Slots | None = None) -> Any:
    """The wrapper of `fn`.

    Args:
        fn: the body.
        contract: what its arguments and result must be.
        anchor: how to read the anchor, where the module is known; else the first call finds it.

    Raises:
        TypeError: autocast cannot be off for a body that is suspended and resumed.
    """
    if contract.autocast is Autocast.DISABLE:
        fn = _without_autocast(fn)
    code = getattr(fn, "__code__", None)
    scoped = code is not None and "isinstance" in code.co_names and not contract.guarded
    lines, closure, arguments = source(fn, contract, anchor, scoped)
    inner = "\n".join(f"    {line}" for line in lines)
    closure = {name: value for name, value in closure.items() if name in inner}
    text = f"def _dg_factory({', '.join(closure)}):\n{inner}"
    name = lines[0].partition("(")[0].split()[-1]
    text += f"\n    return {name}\n"
    # Dynamo counts recompiles per code object, and code that is written alike is equal: the number tells it apart.
    number = next(_numbers)
    text = text.replace("_dg_number", str(number), 1)
    filename = f"<dtypeguard {contract.function} {number}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), getattr(fn, "__globals__", {}), namespace)
    wrapper = namespace["_dg_factory"](**closure)
    _name_after(wrapper, fn)
    if "_dg_slot" in wrapper.__code__.co_freevars:
        cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("_dg_slot")]
        cell.cell_contents = _first_look(cell)
    contract.wrapper = wrapper
    if arguments is not None and kind_of(fn) == "function":
        contract.right = functools.partial(_right, contract, arguments, closure)
    return wrapper


def _right(contract: Contract, arguments: list[str], closure: dict[str, Any]) -> Any:
    """The check of the arguments as a function of its own, made when the first repair becomes a habit."""
    names = ", ".join(param.name for param in contract.params)
    lines = [f"def _dg_factory({', '.join(closure)}):", f"  def right({names}):", "    try:", "        while True:"]
    lines += [
        *arguments,
        "            return True",
        "    except _dg_Exception: pass",
        "    return False",
        "  return right",
    ]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), {}, namespace)
    return namespace["_dg_factory"](**closure)


def _name_after(wrapper: Any, fn: Any) -> None:
    """Names, doc, annotations and attributes of the body; not `__wrapped__` (see `_enforce`)."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(fn, attribute, getattr(wrapper, attribute)))
    wrapper.__code__ = wrapper.__code__.replace(co_name=fn.__name__)
    if hasattr(fn, "__annotate__"):  # PEP 649: stay deferred
        wrapper.__annotate__ = fn.__annotate__
    else:
        wrapper.__annotations__ = dict(getattr(fn, "__annotations__", {}))
    wrapper.__dict__.update(getattr(fn, "__dict__", {}))


_READER = """\
def read(self):
    try: return {path}
    except (KeyError, AttributeError): return find(self)
"""


def _without_autocast(fn: Any) -> Any:
    """The body with autocast off around it; what `custom_fwd(cast_inputs=...)` does."""
    if kind_of(fn) != "function":
        name = f"{fn.__qualname__.rpartition('<locals>.')[2]} is a {kind_of(fn)}"
        raise TypeError(
            f"autocast='disable' needs a plain function, and {name}: use a `with torch.autocast(...)` inside"
        )
    accelerator = torch.accelerator.current_accelerator()
    device_type = "cuda" if accelerator is None else accelerator.type

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast(device_type, enabled=False):
            return fn(*args, **kwargs)

    return disabled


def _first_look(cell: Any) -> Callable[[Any], Tensor | None]:
    """Finds the anchor of the first module that comes by, and leaves a fast reader for its like in the cell."""

    def look(module: Any) -> Tensor | None:
        tensor = find(module) if isinstance(module, nn.Module) else None
        # A buffer stands for a module without parameters only, and the next instance may have some.
        if isinstance(tensor, nn.Parameter) and not torch.compiler.is_compiling():
            namespace: dict[str, Any] = {"find": _find_any}
            found = slots(module)
            assert found is not None  # as `find` found one
            exec(_READER.format(path=found.first.format(self="self")), namespace)
            cell.cell_contents = namespace["read"]
        return tensor

    return look


def _find_any(module: Any) -> Tensor | None:
    return find(module) if isinstance(module, nn.Module) else None


# ---------------------------------------------------------------- what generated code calls


def yielded(call: Call, item: Any) -> Any:
    """One item that a generator yields, checked like a result."""
    __tracebackhide__ = True
    if call.contract.yields is None:
        return item
    contract = dataclasses.replace(call.contract, returns=call.contract.yields)
    return leave(dataclasses.replace(call, contract=contract), item)


def yields(call: Call, stream: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """What `yield from stream` does, with every item checked."""
    __tracebackhide__ = True
    step: Callable[[Any], Any] = stream.send
    given: Any = None
    while True:
        try:
            item = step(given)
        except StopIteration as stop:
            return stop.value
        try:
            item = yielded(call, item)
        except BaseException:  # between us and the caller: the body is not asked
            stream.close()
            raise
        try:
            given = yield item
            step = stream.send
        except GeneratorExit:
            stream.close()
            raise
        except BaseException as error:
            step, given = stream.throw, error


@contextmanager
def scope(axes: dict[str, Any], variadics: dict[str, Any]) -> Iterator[None]:
    """jaxtyping's own scope with the call's axes, for a body that asks `isinstance(y, Float[Tensor, "b c"])`."""
    from jaxtyping import _storage

    single, several, *_ = _storage.push_shape_memo({})
    single.update({name: size for name, size in axes.items() if size is not None})
    for name, shape in variadics.items():
        if shape is not None:
            several[name] = shape if isinstance(shape, tuple) and isinstance(shape[0], bool) else (False, tuple(shape))
    try:
        yield
    finally:
        _storage.pop_shape_memo()


_NOTE = "dtypeguard: raised inside"
_TORCH_SAYS = re.compile(
    r"dtype|device|scalar type|bias type|weight type|not implemented for|can't be cast|cannot be converted to type"
    r"|must be long|used as indices|different from other"
)


def note(error: Exception, module: Any) -> None:
    """Say on torch's own dtype or device error which guarded module it left; the error itself is not touched."""
    card = getattr(module, "_dtypeguard", None)
    if card is None or not _TORCH_SAYS.search(str(error)) or any(_NOTE in n for n in getattr(error, "__notes__", ())):
        return
    anchor = anchor_of(module)
    facts = [plain(fact) for fact in (anchor.dtype, anchor.device) if fact is not None] if anchor is not None else []
    parameters = f" (its parameters: {', '.join(facts)})" if facts else ""
    error.add_note(f"{_NOTE} {card.path}{parameters}{card.advice(module)}")
