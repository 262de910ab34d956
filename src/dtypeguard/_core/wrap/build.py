"""The wrapper around a function: its checks inline, the reference checker behind them.

`build` generates a wrapper whose code only finds out whether everything is right. If so the body is called; if not,
`slow` repeats a known repair, or asks the reference checker. The generated code never explains and never repairs.
"""

import functools
import inspect
import itertools
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..base import private
from ..base.config import Autocast
from ..base.frames import hide_frames
from ..base.options import indefinite
from ..check.scope import scope
from ..contract.anchor import Slots, facts_for_wrapper, find, slots
from ..contract.model import OMITTED, Contract, Param
from ..contract.spec import UnpackedSpec
from ..repair.settle import look_back
from .emit import Inexpressible, Writer
from .slow import NOTED, judge, note, slow, slow_coroutine, slow_generator, slow_stream, yielded

_numbers = itertools.count(1)
_NUMBER = "the number of this wrapper"  # stands in the generated text for what `named_after` puts there
_P = inspect.Parameter


def _call_arguments(params: tuple[Param, ...]) -> str:
    """How the wrapper passes its parameters on to the body."""
    forms = {_P.VAR_POSITIONAL: "*{0}", _P.VAR_KEYWORD: "**{0}", _P.KEYWORD_ONLY: "{0}={0}"}
    return ", ".join(forms.get(param.kind, "{0}").format(param.name) for param in params)


def _declaration(params: tuple[Param, ...]) -> str:
    """The wrapper's own parameter list: the same names, kinds and defaults."""
    parts: list[str] = []
    previous: Any = None
    for param in params:
        if previous is _P.POSITIONAL_ONLY and param.kind is not _P.POSITIONAL_ONLY:
            parts.append("/")
        if param.kind is _P.KEYWORD_ONLY and previous not in (_P.KEYWORD_ONLY, _P.VAR_POSITIONAL):
            parts.append("*")
        star = {_P.VAR_POSITIONAL: "*", _P.VAR_KEYWORD: "**"}.get(param.kind, "")
        parts.append(star + param.name + ("" if param.default is _P.empty else f"=_dg_is_{param.name}"))
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
if _dg_type(_dg_{variable}) is not {kind}: _dg_{variable} = _dg_asked({self}, _dg_{variable})
"""
# The wrapper of an async generator must be one itself: what `slow_generator` does.
_STREAM = """\
_dg_call, _dg_stream = _dg_slow({values})
try:
    _dg_step = _dg_stream.asend(None)
    while True:
        try: _dg_item = await _dg_step
        except _dg_StopAsyncIteration: return
        _dg_item = _dg_yielded(_dg_call, _dg_item)
        try: _dg_sent = yield _dg_item
        except _dg_GeneratorExit: raise
        except _dg_BaseException as _dg_error: _dg_step = _dg_stream.athrow(_dg_error)
        else: _dg_step = _dg_stream.asend(_dg_sent)
finally:
    await _dg_stream.aclose()
    _dg_look_back(_dg_call)
"""
# Bound, because a NamedTuple's functions see no builtins, and a user's module may hide them.
_EXCEPTIONS = {
    f"_dg_{error.__name__}": error for error in (Exception, BaseException, StopAsyncIteration, GeneratorExit)
} | {"_dg_KeyErrors": (KeyError, AttributeError), "_dg_Errors": NOTED}
# For each kind of function: what calls its body, what is called where the checks did not pass, and how.
_KINDS: dict[str, tuple[str, Any, str]] = {
    "function": ("{out}{call}", slow, "return _dg_slow({values})"),
    "coroutine": ("{out}await {call}", slow_coroutine, "return await _dg_slow({values})"),
    "generator": ("", slow_generator, "return (yield from _dg_slow({values}))"),
    "async generator": ("", slow_stream, _STREAM),
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
        if anchor is None or contract.device.index is not None:
            return "_dg_contract.device"
        return "(_dg_p.device if _dg_p.device.type == _dg_contract.device.type else _dg_contract.device)"
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
            names = {"path": path.format(self=self_name), "otherwise": otherwise, "self": self_name}
            names["kind"] = "_dg_Parameter" if "_parameters[" in path else "_dg_Tensor"
            lines += _READ.format(variable=variable, **names).splitlines()
    dtype, cpu = "None", "False"
    if anchor is not None:
        dtype = "_dg_p.dtype" if anchor.other is None else "_dg_p.dtype if _dg_p.dtype is _dg_o.dtype else None"
        cpu = "_dg_p.is_cpu" if anchor.elsewhere is None else "_dg_p.is_cpu and _dg_e.is_cpu"
    if contract.device is not None:
        cpu = str(contract.device.type == "cpu")
    dtype = dtype if contract.dtype is None else "_dg_contract.dtype"
    return [*lines, f"_dg_a = {dtype}", f"_dg_cpu = {cpu}"]


def _checks(contract: Contract, anchored: bool, device: str) -> tuple[Writer, list[str] | None, list[str] | None]:
    """The lines that check arguments and result; None where the reference checks all of them."""
    params, several = enumerate(contract.params), (_P.VAR_POSITIONAL, _P.VAR_KEYWORD)
    # The arguments that only the reference can check; None is the result.
    asked: set[int | None] = {place for place, param in params if param.kind in several and contract.skip_args}
    while True:
        writer = Writer(contract, anchored, device)
        try:
            if contract.anchor is not None and (contract.anchor != "self" or len(asked - {None}) > 1):
                return writer, None, None  # to look for the anchor at each of them would cost more than all at once
            _write_arguments(writer, asked)
            arguments, writer.lines = writer.lines, []
            if contract.output_dtype is not None:
                return writer, arguments, None
            writer.entry, writer.late, writer.place = dict(writer.axes), contract.scoped, None
            if contract.returns is not None and None in asked:
                writer.ask(contract.returns)
            elif contract.returns is not None:
                writer.spec(contract.returns, "_dg_out")
            return writer, arguments, writer.lines
        except Inexpressible:
            asked.add(writer.place)


def _write_arguments(writer: Writer, asked: set[int | None]) -> None:
    contract = writer.contract
    for place, param in enumerate(contract.params):
        spec, writer.place = param.spec, place
        several = param.kind in (_P.VAR_POSITIONAL, _P.VAR_KEYWORD)
        if param.skip or (spec is None and not contract.guarded):
            continue
        if param.default is OMITTED:
            writer.miss_if(f"{param.name} is {writer.const(OMITTED, 'omitted')}")
        if place in asked:
            writer.ask(spec)
        elif spec is None:
            writer.guarded(param.name, several)
        elif several and not isinstance(spec, UnpackedSpec):
            item = writer.fresh("i")
            values = f"{param.name}.values()" if param.kind is _P.VAR_KEYWORD else param.name
            with writer.block(f"for {item} in {values}:", loop=True):
                writer.spec(spec, item)
        elif param.default is not _P.empty and param.default is not OMITTED:
            default = "None" if param.default is None else writer.const(param.default, "default")
            with writer.block(f"if {param.name} is not {default}:"):
                writer.spec(spec, param.name)
        else:
            writer.spec(spec, param.name)


def source(fn: Any, contract: Contract, anchor: Slots | None) -> tuple[list[str], dict[str, Any]]:
    """The wrapper's source and what it closes over."""
    names, kind = [param.name for param in contract.params], kind_of(fn)
    overridden = contract.dtype is not None or contract.device is not None
    anchored = (anchor is not None or overridden) if contract.guarded else contract.anchor == "self"
    device = _device(contract, anchor)
    writer, arguments, result = _checks(contract, anchored, device)
    body, slow_way, give_up = _KINDS[kind]
    closure = writer.closure | _EXCEPTIONS
    closure |= {"_dg_fn": fn, "_dg_contract": contract, "_dg_slow": slow_way, "_dg_judge": judge, "_dg_find": find}
    closure |= {"_dg_scope": scope, "_dg_note": note, "_dg_slot": None, "_dg_compiling": torch.compiler.is_compiling}
    closure |= {
        "_dg_type": type,
        "_dg_Parameter": nn.Parameter,
        "_dg_asked": facts_for_wrapper,
        "_dg_yielded": yielded,
        "_dg_look_back": look_back,
    }
    closure |= {f"_dg_is_{param.name}": param.default for param in contract.params if param.default is not _P.empty}
    values = f"_dg_contract, ({', '.join(names)}{',' if len(names) == 1 else ''})"
    give_up = give_up.format(values=values)
    prefix = "async def" if kind.startswith(("async", "coroutine")) else "def"
    lines = [f"{prefix} wrapper({_declaration(contract.params)}):", f"    __tracebackhide__ = {_NUMBER!r}"]
    if arguments is None or kind.endswith("generator"):
        return [*lines, *(f"    {line}" for line in give_up.splitlines())], closure
    out = "return " if result == [] else "_dg_out = "  # a result that nothing is asked of goes straight to the caller
    body = body.format(out=out, call=f"_dg_fn({_call_arguments(contract.params)})")
    run, bound = [body], ""
    if contract.scoped:
        inside: tuple[list[str], ...] = [f"{name!r}: {name}" for name in names], [], []
        for (several, axis), (name, _) in writer.entry.items():
            inside[1 + several].append(f"{axis!r}: {name}")
        known = ", ".join("{" + ", ".join(part) + "}" for part in inside)
        entered = f"_dg_scope({known}, {contract.checker})"
        run, bound = ["_dg_bound = None", f"if _dg_compiling(): {body}", "else:"], ", _dg_bound"
        run += [f"    with {entered} as _dg_bound: {body}"]
        result = result and [f"            {line}" for line in writer.recall()] + result
    if "_dg_side" in writer.initial:
        apart = [*run]
        run = ["if _dg_side is None or _dg_side is True:", *(f"    {line}" for line in apart)]
        run += ["else:", "    with _dg_side:", *(f"        {line}" for line in apart)]
    if contract.guarded:
        run = ["try:", *(f"    {line}" for line in run), "except _dg_Errors as _dg_error:"]
        run += [f"    _dg_note(_dg_error, {values})", "    raise"]
    tail = [f"    {line}" for line in run]
    if result:
        tail += ["    try:", "        while True:", *result, "            return _dg_out"]
        tail += ["    except _dg_Exception: pass"]
    if result != []:
        tail += [f"    return _dg_judge({values}, _dg_out{bound})"]
    lines += [f"    {variable} = None" for variable in writer.initial]
    head = _anchor_lines(contract, names[0], anchor, device) if anchored and (arguments or result) else []
    if not arguments and not head:
        return [*lines, *tail], closure
    lines += ["    while True:", "        try:", *(f"            {line}" for line in head), *arguments]
    lines += ["        except _dg_Exception: break", *(f"    {line}" for line in tail)]
    return [*lines, f"    {give_up}"], closure


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
    kind = kind_of(fn)
    contract.body = fn
    contract.scoped = contract.scoped and kind == "function"
    lines, closure = source(fn, contract, anchor)
    closure["_dg_hide_frames"] = hide_frames
    guarded = ["    try:", *(f"    {line}" for line in lines[2:]), "    except: _dg_hide_frames(); raise"]
    inner = "\n".join(f"    {line}" for line in (*lines[:2], *guarded))
    closure = {name: value for name, value in closure.items() if name in inner}
    if _may_have_no_source(fn) and "_dg_contract" in closure:
        inner, closure["_dg_contract"] = inner.replace("_dg_contract", "_dg_contract()"), _reader(contract)
    code = _compiled(f"def _dg_factory({', '.join(closure)}):\n{inner}\n    return wrapper\n")
    namespace: dict[str, Any] = {}
    exec(code, getattr(fn, "__globals__", {}), namespace)
    wrapper = namespace["_dg_factory"](**closure)
    named_after(wrapper, fn)
    if kind == "function" and "_dg_fn" in closure:  # else it checks nothing by itself
        contract.wrapper = wrapper
    if "_dg_slot" in wrapper.__code__.co_freevars:  # the first call of a wrapper that knows no module finds the anchor
        cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("_dg_slot")]
        cell.cell_contents = _first_look(cell, _find_named if contract.named else _find_any)
    return wrapper


def _may_have_no_source(fn: Any) -> bool:
    """Whether it is a method of a class whose objects may be made in a graph: there Dynamo knows globals only."""
    name = getattr(fn, "__qualname__", "").rpartition("<locals>.")[2]
    return "." in name and not name.endswith(".forward")


_of_methods: dict[int, weakref.ref[Contract]] = {}


def _reader(contract: Contract) -> Callable[[], Contract | None]:
    """Gives a contract for as long as the reader lives."""
    number = next(_numbers)

    def read() -> Contract | None:
        return _of_methods[number]()

    def forget(_: object) -> None:
        _of_methods.pop(number, None)

    _of_methods[number] = weakref.ref(contract, forget)
    read.contract = contract  # type: ignore[attr-defined]  # which Dynamo does not look at
    return read


# `warnings.warn(stacklevel=2)` does not count frames of files with both words in their names, so a warning that a body
# means for its caller arrives there.
_UNCOUNTED = ", as importlib _bootstrap"


@functools.lru_cache(4096)
def _compiled(text: str) -> Any:
    """Code for a text; functions that differ in their closures only share it."""
    filename = f"<dtypeguard checks {next(_numbers)}{_UNCOUNTED}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    return compile(text, filename, "exec")


def named_after(wrapper: Any, fn: Any) -> Any:
    """Names, doc, annotations and attributes of the body; not `__wrapped__` (see `_enforce`)."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, attribute, getattr(fn, attribute, getattr(wrapper, attribute)))
    if hasattr(fn, "__type_params__"):  # of PEP 695, which strings among the annotations name
        wrapper.__type_params__ = fn.__type_params__
    # Dynamo counts recompiles per code object, and code that is written alike is equal: a number tells it apart.
    code, number = wrapper.__code__, next(_numbers)
    consts = tuple(number if const == _NUMBER else const for const in code.co_consts)
    wrapper.__code__ = code.replace(co_name=fn.__name__, co_qualname=wrapper.__qualname__, co_consts=consts)
    annotate = getattr(fn, "__annotate__", None)  # PEP 649. Python < 3.14: nothing is deferred; goes with that floor
    if annotate is None:
        wrapper.__annotations__ = dict(getattr(fn, "__annotations__", {}))
    else:  # values once evaluated stay: evaluated again, annotations of jaxtyping would be other classes
        wrapper.__annotate__ = lambda form: dict(fn.__annotations__) if form == 1 else annotate(form)
    wrapper.__dict__.update(getattr(fn, "__dict__", {}))
    wrapper.__dict__.pop("__wrapped__", None)  # the body's own, if a decorator made it
    return wrapper


def sign(made: Any, fn: Any, contract: Contract) -> None:
    """Note on a wrapper what it wraps, and its contract."""
    made.__dtypeguard__ = (fn, contract, made.__code__)


def signed(function: Any) -> tuple[Any, Contract] | None:
    """What `sign` noted on this function; `functools.wraps` copies the note onto others, of other code."""
    note: tuple[Any, Contract, Any] | None = getattr(function, "__dtypeguard__", None)
    return note[:2] if note is not None and note[2] == getattr(function, "__code__", None) else None


def function_name(fn: Any) -> str:
    """`Net.forward` for `test.<locals>.Net.forward`."""
    return str(getattr(fn, "__qualname__", None) or fn.__name__).rpartition("<locals>.")[2]


_READER = """\
def read(self):
    try: found = {path}
    except (KeyError, AttributeError): found = find(self)
    return found if type(found) is Parameter or found is None else asked(self, found)
"""


def _without_autocast(fn: Any) -> Any:
    """The body with autocast off around it; what `custom_fwd(cast_inputs=...)` does."""
    if kind_of(fn) != "function":
        name = f"{function_name(fn)} is {indefinite(kind_of(fn))}"
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


def _first_look(cell: Any, find_any: Callable[[Any], Tensor | None]) -> Callable[[Any], Tensor | None]:
    """Finds the anchor of the first module that comes by, and leaves a fast reader for its like in the cell."""

    def look(module: Any) -> Tensor | None:
        with private.no_function():
            tensor = find_any(module)
            found = None if torch.compiler.is_compiling() or tensor is None else slots(module)
        # A buffer stands for a module without parameters only, and the next instance may have some.
        if found is not None and isinstance(tensor, nn.Parameter):
            namespace: dict[str, Any] = {"find": find_any, "asked": facts_for_wrapper, "Parameter": nn.Parameter}
            exec(_READER.format(path=found.first.format(self="self")), namespace)
            look.cell.cell_contents = namespace["read"]  # type: ignore[attr-defined]
        return tensor

    look.cell = cell  # type: ignore[attr-defined]  # Dynamo takes no cell among what a function closes over
    return look


def _find_any(module: Any) -> Tensor | None:
    return find(module) if isinstance(module, nn.Module) else None


def _find_named(module: nn.Module) -> Tensor | None:
    if not isinstance(module, nn.Module):
        raise TypeError  # the reference says so
    return find(module)
