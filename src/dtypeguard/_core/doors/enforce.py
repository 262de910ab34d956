"""`enforce` and `check`: contracts read from annotations."""

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from types import CellType, FrameType, FunctionType
from typing import Any, TypeVar, overload

import torch
from torch import nn

from ..base import config as _config
from ..base import private
from ..base.config import Autocast, AutocastName, CastingName, ModeName, Verify, VerifyName, read, written_in
from ..base.errors import AnnotationError, DtypeGuardWarning
from ..base.frames import caller, hide_frames, internal, warn_at, warn_of
from ..base.options import argument_name, argument_names, explained, switch
from ..check.scope import asks
from ..contract.hints import annotations_of, by_name, hints_of_class, is_array_hint, show
from ..contract.model import Contract, Param
from ..contract.spec import Spec, holds_tensor, spec_of
from ..repair.settle import enter
from ..wrap.annotations import located, read_annotation, resolved, stream_hints, unknown_name
from ..wrap.build import build, function_name, kind_of, named_after, sign, signed
from ..wrap.script import scriptable
from .roles import check_roles

T = TypeVar("T")
_P = inspect.Parameter
ContractOptions = dict[str, Any]
_METHODS = (FunctionType, property, classmethod, staticmethod)
UNCHECKED = "install_import_hook leaves it unchecked"


@overload
def enforce(
    fn_or_class: T,
    /,
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    anchor: str | None = None,
    autocast: AutocastName | None = None,
    mutates: str | Iterable[str] = (),
    verify: VerifyName = "first",
    returns: bool = True,
) -> T: ...
@overload
def enforce(
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    anchor: str | None = None,
    autocast: AutocastName | None = None,
    mutates: str | Iterable[str] = (),
    verify: VerifyName = "first",
    returns: bool = True,
) -> Callable[[T], T]: ...
@explained
def enforce(
    fn_or_class: Any = None,
    /,
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    anchor: str | None = None,
    autocast: AutocastName | None = None,
    mutates: str | Iterable[str] = (),
    verify: VerifyName = "first",
    returns: bool = True,
) -> Any:
    """Check the arguments and the result of a function against its jaxtyping annotations.

    Arguments are checked before the function runs, and the result after it. Lenient mode repairs them with casts.
    `enforce` decorates functions, methods, static and class methods, properties, coroutines, generators, nn.Module
    classes (their `forward`), dataclasses and NamedTuples (their construction) and custom operators of
    `torch.library`. It warns if no annotation has a tensor.

    Args:
        fn_or_class: what to decorate; leave it out to pass options.
        mode: 'strict', 'lenient', 'warn' or 'off'; default: the mode that is set when a call is checked.
        casting: which casts lenient mode may make: 'safe', 'precision' (default), 'promote' or 'unsafe'.
        anchor: the name of the argument whose dtype and device the others must have: a tensor, or an nn.Module, which
            stands for its parameters. Methods of an nn.Module compare with its own without it.
        autocast: 'follow' (default for methods of an nn.Module), 'ignore' (default for all else) or 'disable'.
        mutates: the name of an argument that the function writes to, or several names. These arguments are checked, but
            never cast.
        verify: when a narrowing repair is verified, so that no finite value becomes infinite: 'first' (the first
            repair of a line), 'always' or 'never'. With 'never', whole numbers are not compared either.
        returns: whether the result is checked.

    Returns:
        The function, with its checks; a module class, a dataclass or a NamedTuple is changed in place. Without
        `fn_or_class`, a decorator.

    Raises:
        DtypeError, ShapeError, DeviceError, HintError: at a call, in strict mode. ShapeError and HintError also in
            lenient mode, for what no cast can repair.
        CastError: at a call, in lenient mode, if the casting rule forbids the repair, or values would be lost.
        AnnotationError: for a malformed annotation, at decoration.
        TypeError, ValueError: for a target that cannot be decorated, for unknown options, and for an `anchor` that is
            annotated as no tensor and no module, at decoration.

    >>> import torch
    >>> from dtypeguard import enforce
    >>> from jaxtyping import Float32
    >>> from torch import Tensor
    >>> @enforce(mode="strict")
    ... def mse(pred: Float32[Tensor, "b"], target: Float32[Tensor, "b"]) -> Float32[Tensor, ""]:
    ...     return ((pred - target) ** 2).mean()
    >>> mse(torch.ones(3), torch.zeros(3))
    tensor(1.)
    >>> mse(torch.ones(3), torch.zeros(3, dtype=torch.float64))
    Traceback (most recent call last):
    ...
    dtypeguard.DtypeError: mse: argument `target` is float64, the annotation wants float32
    ...
    """
    options = read(mode=mode, casting=casting, autocast=autocast, verify=verify)
    options |= {"file": written_in(sys._getframe(1)), "mutates": argument_names("mutates", mutates)}
    options = {**DEFAULTS, **options, "anchor": argument_name("anchor", anchor), "returns": switch("returns", returns)}

    def decorate(target: Any) -> Any:
        try:  # as below: a bare `raise` leaves out only the frame that it stands in
            return _decorate_and_warn(target, options, sys._getframe(1))
        except BaseException:
            hide_frames()
            raise

    if fn_or_class is None:
        return decorate
    try:
        return _decorate_and_warn(fn_or_class, options, sys._getframe(2))
    except BaseException:
        hide_frames()
        raise


def _decorate_and_warn(target: Any, options: ContractOptions, frame: FrameType) -> Any:
    made = decorate(target, options, names_around(frame))
    idle = _warning_if_unchecked(made)
    if idle and options["autocast"] is not Autocast.DISABLE:
        warn_at(caller(frame), DtypeGuardWarning(idle))
    return made


def _warning_if_unchecked(made: Any) -> str:
    """The warning where annotations have no tensor; empty if they have one, or cannot be read yet."""
    functions = [made]
    if isinstance(made, property):
        functions = [function for function in (made.fget, made.fset, made.fdel) if function is not None]
    elif isinstance(made, staticmethod | classmethod):
        functions = [made.__func__]
    elif isinstance(made, type):
        functions = [vars(made).get(name) for name in ("forward", "__init__", "__new__")]
    notes = [note for note in map(signed, functions) if note is not None]
    later = any(hasattr(function, "__dtypeguard_later__") for function in functions)
    if later or not notes or any(contract.checker or _names_tensor(fn, contract) for fn, contract in notes):
        return ""
    contract = notes[0][1]
    checked = "only their types are checked" if contract.specs else "nothing is checked"
    advice = 'annotate its tensors, as Float[Tensor, "batch 3"]'
    if contract.function.rpartition(".")[2] == "forward":
        advice += ", or use dtypeguard.guard(model), which needs no annotations"
    annotated = any(annotations_of(inspect.unwrap(fn)) for fn, _ in notes)
    found = f"the annotations of {contract.function} have no tensor" if annotated else f"{contract.function} has none"
    return f"enforce reads annotations; {found}, so {checked}: {advice}"


def _names_tensor(fn: Any, contract: Contract) -> bool:
    """Whether a tensor is asked for, or named where none is looked for: `Callable[[Tensor], None]`."""
    return any(map(holds_tensor, contract.specs)) or any(
        "Tensor" in show(hint) or is_array_hint(hint) for hint in annotations_of(inspect.unwrap(fn)).values()
    )


def names_around(frame: FrameType | None) -> dict[str, Any]:
    """The local names where a decorator stands; around a class body, those of the function that it stands in too."""
    frame = _user_frame(frame)
    names: dict[str, Any] = {}
    while frame is not None and frame.f_locals is not frame.f_globals:
        names = {**frame.f_locals, **by_name(frame.f_locals.get("__type_params__", ())), **names}
        # Between a class with type parameters and what is around it stands a frame that only has those.
        inside = "__qualname__" in frame.f_locals or frame.f_code.co_name.startswith("<generic parameters of")
        frame = frame.f_back if inside else None
    return names


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that asks for a contract; code without a file, of `exec` and `python -c`, is the user's here."""
    while frame is not None and frame.f_code.co_filename != "<string>" and internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def decorate(target: Any, options: ContractOptions, local: dict[str, Any]) -> Any:
    """What `enforce` makes of a function or class."""
    if _config.OFF_AT_IMPORT:
        return target
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_decorate_function(target.__func__, options, local))
    if isinstance(target, property):
        get, put, drop = (f and _decorate_function(f, options, local) for f in (target.fget, target.fset, target.fdel))
        return property(get, put, drop, target.__doc__)
    if isinstance(target, type):
        return _decorate_class(target, options, local)
    if isinstance(target, nn.Module):
        raise TypeError(f"enforce decorates functions and classes; for this {type(target).__name__} use guard(model)")
    if isinstance(target, private.CustomOp):
        return _decorate_custom_op(target, options, local)
    bound = isinstance(target, functools.partial)  # which from Python 3.14 on binds like a method
    if bound or not inspect.isroutine(target) or inspect.isbuiltin(target):
        is_mode = isinstance(target, str) and target.upper() in _config.Mode.__members__
        advice = f"write enforce(mode={target!r})" if is_mode else "wrap it in a function of your own"
        raise TypeError(f"enforce decorates functions and classes, not {target!r}; {advice}")
    return _decorate_function(target, options, local)


def _decorate_class(cls: type, options: ContractOptions, local: dict[str, Any]) -> type:
    local = {**local, cls.__name__: cls}
    if issubclass(cls, nn.Module):
        method = "forward"
    elif "__dataclass_params__" in vars(cls):
        method = "__init__"
    elif dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass yet: put @enforce above @dataclass")
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        method = "__new__"
    else:
        fields = vars(cls).get("__annotations__") and not any(map(inspect.isroutine, vars(cls).values()))
        way = "put @enforce above @dataclass, if it is to be one" if fields else "decorate its methods"
        raise TypeError(f"enforce takes nn.Module classes, dataclasses and NamedTuples, not {cls.__name__}: {way}")
    fn = getattr(cls, method)
    if method != "forward":
        fn.__annotations__ = {**fn.__annotations__, **_field_hints(cls, fn, local)}
    made = _decorate_function(fn, options, local)
    made.__qualname__ = f"{cls.__qualname__}.{method}"
    setattr(cls, method, made)
    return cls


def _field_hints(cls: type, fn: Any, local: dict[str, Any]) -> dict[str, Any]:
    """The hints of a constructor that come from fields, which base classes in other modules may have written."""
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        fields |= annotations_of(base)
    try:
        with located(f"{cls.__name__}.{fn.__name__}"):
            hints = hints_of_class(cls, local)
    except NameError:  # a forward reference: the first call will read it
        return {}
    own = fn.__annotations__  # another one in a constructor that the class wrote itself is what counts
    return {name: hint for name, hint in hints.items() if name in own and own[name] == fields[name]}


def _decorate_custom_op(op: Any, options: ContractOptions, local: dict[str, Any]) -> Any:
    """A `torch.library.custom_op`: arguments that its schema marks as written are never cast; its methods are kept."""
    schema = op._opoverload._schema
    written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    options = {**options, "mutates": options["mutates"] | written}

    @functools.wraps(op._init_fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    made = _decorate_function(call, options, local)
    for name in dir(op):
        if not name.startswith("_"):
            setattr(made, name, getattr(op, name))
    return made


def _decorate_function(fn: Any, options: ContractOptions, local: dict[str, Any]) -> Any:
    note = signed(fn)
    if note is not None and note[1].hooked:  # by `install_import_hook`: what is written counts instead
        fn = note[0]
    contract = _contract(fn, _signature(fn), options)
    contract.checker = _is_from_jaxtyping(fn)
    contract.scoped = contract.checker or asks(fn, local)
    if _read_annotations(contract, fn, options, local):  # a forward reference: its name will exist at the first call
        params = tuple(dataclasses.replace(param, spec=None) for param in contract.params)
        bare = dataclasses.replace(contract, anchor=None, named=False, params=params, returns=None, yields=None)
        made = build(fn, bare)
        names, cell = made.__code__.co_freevars, CellType()
        if "_dg_fn" in names:
            cell = made.__closure__[names.index("_dg_fn")]
        else:  # a generator, whose body is the contract's
            bare.body = lambda *args, **kwargs: cell.cell_contents(*args, **kwargs)
        cell.cell_contents = made.__dtypeguard_later__ = _resolver(cell, fn, contract, options, local)
    else:
        made = build(fn, contract)
        sign(made, fn, contract)
    made.__wrapped__ = named_after(scriptable(made, fn), made) if fn.__name__ == "forward" else fn
    return made


def _is_from_jaxtyping(fn: Any) -> bool:
    """Whether jaxtyping made this function up, to have a checker look at the arguments or the result of another."""
    if "__name__" in getattr(fn, "__globals__", ("__name__",)):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "jaxtyping._decorator":
        frame = frame.f_back
    return frame is not None


def _signature(fn: Any) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):  # Python < 3.14: annotations are evaluated already; goes with that floor
            return inspect.signature(fn, annotation_format=typing.cast(Any, inspect).Format.FORWARDREF)
        return inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise TypeError(f"enforce cannot read the signature of {fn!r}: {error}") from None


def _contract(fn: Any, signature: inspect.Signature, options: ContractOptions) -> Contract:
    params = tuple(Param(p.name, p.kind, None, p.default) for p in signature.parameters.values())
    names = [param.name for param in params]
    method = bool(names) and params[0].kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD)
    method = method and ("." in function_name(fn) or names[0] == "self") and fn.__name__ != "__init__"
    anchor = options["anchor"] or ("self" if method else None)
    autocast = options["autocast"] or (Autocast.FOLLOW if anchor == "self" else Autocast.IGNORE)
    chosen = {key: options[key] for key in ("mode", "casting", "file", "verify", "hooked")}
    mutates = options["mutates"] | {"out"}
    modules_only = options["autocast"] is None  # the default of a method that turns out to be no module's is "ignore"
    return Contract(
        function_name(fn), params, anchor=anchor, named=bool(options["anchor"]), autocast=autocast,
        modules_only=modules_only, mutates=mutates, **chosen,
    )  # fmt: skip


def _read_annotations(
    contract: Contract, fn: Any, options: ContractOptions, local: dict[str, Any]
) -> dict[str, NameError]:
    """Put the specs of the annotations into a contract.

    Returns:
        The arguments whose annotations have a name that does not exist (yet), and `return`.

    Raises:
        AnnotationError: with the function and the argument in front.
    """
    inner = inspect.unwrap(fn)
    annotations = annotations_of(inner)
    # A method is no type: `float` is Python's own, beside a method of that name.
    local = {name: value for name, value in local.items() if not isinstance(value, _METHODS)}
    unknown: dict[str, NameError] = {}
    for param in contract.params:
        if param.name in annotations:
            try:
                param.spec = read_annotation(contract.function, param.name, annotations[param.name], inner, local)
            except NameError as error:
                unknown[param.name] = error
    if options["returns"] and "return" in annotations and _annotation_applies(fn, inner):
        try:
            with located(contract.function, "return"):
                returned, item = stream_hints(kind_of(inner), resolved(annotations["return"], inner, local))
                contract.returns = spec_of(returned, local)
            with located(contract.function, "yield"):
                contract.yields = spec_of(item, local)
        except NameError as error:
            unknown["return"] = error
    check_roles(contract, options["mutates"], unknown)
    return unknown


def _annotation_applies(fn: Any, inner: Any) -> bool:
    """Whether the return annotation of a function inside speaks of what a decorator's function returns.

    It does not with `contextlib.contextmanager` above a generator.
    """
    return (kind_of(fn), kind_of(inner)) == ("coroutine", "function") or kind_of(fn) == kind_of(inner)


def _resolver(
    cell: Any, fn: Any, contract: Contract, options: ContractOptions, local: dict[str, Any]
) -> Callable[..., Any]:
    def first_call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            read()
            return found[-1](*args, **kwargs)
        read(_class_around(fn, args))
        cell.cell_contents = found[-1]  # not while compiling: the graph is guarded by what was there when it began
        return found[-1](*args, **kwargs)

    found: list[Any] = []

    def read(around: dict[str, Any] | None = None) -> None:
        if found:
            return
        try:
            fill(around)
        except AnnotationError as error:
            if not contract.hooked:
                raise
            warn_of(inspect.unwrap(fn), DtypeGuardWarning(f"{error.args[0]}; {UNCHECKED}"))
        found.append(build(fn, contract) if contract.specs else fn)

    vars(read)["_dynamo_marked_constant"] = True  # it runs while the function is traced, and is not traced itself

    def fill(around: dict[str, Any] | None = None) -> Contract:
        unknown = _read_annotations(contract, fn, options, {**(around or {}), **local})
        if unknown:
            error = next(reversed(unknown.values()))
            raise unknown_name(f"{contract.function}: an annotation", error, _advice(fn, error.name)) from error
        return contract

    first_call.__dict__["fill"] = fill
    return first_call


def _class_around(fn: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The class that a method stands in, by its name: one inside a function is found by the object alone."""
    name = str(getattr(fn, "__qualname__", "")).rpartition(".")[0].rpartition(".")[2]
    first = args[0] if args else None
    classes = first.__mro__ if isinstance(first, type) else type(first).__mro__
    return {cls.__name__: cls for cls in classes if cls.__name__ == name}


def _advice(fn: Any, name: str | None) -> str:
    """What to write instead of a name that cannot be resolved."""
    known = "import it at run time too, not only under TYPE_CHECKING"
    *outside, around, _ = ("", *str(getattr(fn, "__qualname__", "")).split("."))
    if "<locals>" in outside and name == around:
        return f"a class inside a function is not known to its own methods: write Self, or move {name} out"
    if "<locals>" in (*outside, around):
        return f"{known}, or define it above, if it is of the same function"
    return known


DEFAULTS: ContractOptions = {
    "mode": None, "casting": None, "file": None, "anchor": None, "autocast": None, "mutates": frozenset(),
    "verify": Verify.FIRST, "returns": False, "hooked": False,
}  # fmt: skip


def contract_behind(fn: Any) -> Contract:
    """The contract of a function, enforced or not, with every annotation read by now.

    Raises:
        AnnotationError: an annotation is malformed, or names what does not exist.
        TypeError: for what enforce does not take.
    """
    made = fn
    if not hasattr(fn, "__dtypeguard_later__"):
        made = _decorate_function(fn, DEFAULTS, names_around(sys._getframe(1)))
    note = signed(made)
    contract: Contract = note[1] if note is not None else made.__dtypeguard_later__.fill()
    return contract


@explained
def check(
    value: T,
    annotation: Any,
    /,
    *,
    name: str = "value",
    mode: ModeName | None = None,
    casting: CastingName | None = None,
) -> T:
    """Check one value against an annotation, and return it. Lenient mode returns a repaired copy if needed.

    Args:
        value: the value to check.
        annotation: a jaxtyping annotation, or a hint that contains one.
        name: the name of the value in messages.
        mode, casting: as for `enforce`.

    Returns:
        The value; in lenient mode a cast or moved copy, if it violates the annotation.

    Raises:
        DtypeError, ShapeError, DeviceError, HintError, CastError, AnnotationError: as for `enforce`.

    >>> import torch
    >>> from dtypeguard import check
    >>> from jaxtyping import Float32
    >>> from torch import Tensor
    >>> check(torch.zeros(2), Float32[Tensor, "n"], mode="strict")
    tensor([0., 0.])
    """
    if not isinstance(name, str):
        raise TypeError(f"check: name={name!r} is no text: write name='x'")
    frame = sys._getframe(2)  # behind that of `explained`
    spec = _spec_here(annotation, name, _user_frame(frame))
    param, options = Param(name, _P.POSITIONAL_ONLY, spec), read(mode=mode, casting=casting)
    result: T = enter(Contract("check", (param,), file=written_in(caller(frame)), **options), (value,)).values[0]
    return result


def _spec_here(annotation: Any, name: str, frame: FrameType | None) -> Spec | None:
    local = {**frame.f_globals, **frame.f_locals} if isinstance(annotation, str) and frame is not None else {}
    try:
        return read_annotation("check", name, annotation, check, local)
    except NameError as error:
        raise unknown_name(f"check: the annotation of `{name}`", error) from error
