"""`guard`: contracts for models that nobody annotated.

Floor 5. An instance's class is swapped for a generated subclass, so that
`state_dict`, `isinstance`, hooks, optimizers and pickling stay what they were.
"""

import copyreg
import dataclasses
import fnmatch
import functools
import inspect
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from ._anchor import LAZY, anchor_of, floating, own_parameters, slot
from ._cast import enter
from ._codegen import build
from ._config import (
    Autocast,
    AutocastName,
    CastingName,
    Mode,
    ModeName,
    Verify,
    VerifyName,
    as_casting,
    as_mode,
    choose,
)
from ._contract import Contract, Param
from ._dtypes import FLOATING, Casting
from ._enforce import enforce, function_name, read_annotation
from ._errors import AnnotationError, DtypeGuardWarning
from ._spec import annotations_of, is_array_hint, resolve_hint

M = TypeVar("M", bound=nn.Module)
_NEWOBJ: Any = vars(copyreg)["__newobj__"]
Depth = Literal["auto", "all", "boundary"]


@dataclass(frozen=True, slots=True)
class Options:
    """What `guard` was told; part of the key of a generated class, so it can be pickled."""

    mode: Mode | None
    casting: Casting
    depth: str
    dtype: torch.dtype | None
    device: torch.device | None
    autocast: Autocast
    skip_args: frozenset[str]
    move_args: frozenset[str]
    verify: Verify
    non_blocking: bool
    output_dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Key:
    """What tells one generated class of a base from another."""

    options: Options
    path: str | None
    agrees: tuple[bool, bool]


@dataclass(slots=True)
class Card:
    """What an instance knows about its guard: where it stands, and how to take the guard off."""

    path: str
    key: Key
    forward: Any = None  # the instance's own `forward`, which the guard wrapped
    hook: Any = None  # of a GraphModule, whose class cannot be swapped

    def advice(self) -> str:
        inside = self.key.options.depth != "all"
        return '; guard(model, depth="all") also checks what is born inside' if inside else ""


class GuardedModule(nn.Module):
    """Mixin of every guarded model.

    `GuardedModule(model, ...)` is `guard(model, ...)`. A class that derives from it has its `forward` enforced.

    >>> import torch, dtypeguard
    >>> from jaxtyping import Float
    >>> class Net(dtypeguard.GuardedModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = torch.nn.Linear(3, 1)
    ...     def forward(self, x: Float[torch.Tensor, "b 3"]) -> Float[torch.Tensor, "b 1"]:
    ...         return self.fc(x)
    >>> Net()(torch.ones(2, 3)).dtype
    torch.float32
    """

    _dtypeguard_base: type[nn.Module] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "_dtypeguard_base" in vars(cls):  # generated: its base was registered wherever it wanted to be
            return
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            cls.forward = enforce(vars(cls)["forward"])

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is GuardedModule:
            if not args:
                raise TypeError("GuardedModule(model) needs a model; or derive a class with a forward from it")
            return guard(*args, **kwargs)
        make = super().__new__
        return make(cls) if make is object.__new__ else make(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and args[0] is self:  # Python calls it again after `__new__` returned a guarded model
            return
        super().__init__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        base = type(self)._dtypeguard_base
        if base is None or not isinstance(reduced, tuple) or reduced[0] is not _NEWOBJ:
            return reduced
        return (_rebuild, (base, self.__dict__["_dtypeguard"].key, *reduced[1][1:]), *reduced[2:])

    def __prepare_scriptable__(self) -> nn.Module:
        warnings.warn(f"torch.jit.script sees {type(self).__name__} without its guard", DtypeGuardWarning, stacklevel=2)
        return unguard(_shallow(self))


def _shallow(model: M) -> M:
    """Another instance over the same parameters, buffers and (likewise shallow) submodules."""
    twin = model.__new__(type(model))
    twin.__dict__.update(model.__dict__)
    twin.__dict__["_modules"] = {name: child and _shallow(child) for name, child in model._modules.items()}
    return twin


def _rebuild(base: Any, key: Key, *args: Any) -> Any:
    cls = _guarded_class(base, key)
    return base.__new__(cls, *args)


def guard(
    model: M,
    /,
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    depth: Depth = "auto",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    autocast: AutocastName | None = None,
    skip_args: Iterable[str] = (),
    skip_modules: Iterable[str | type[nn.Module]] = (),
    move_args: Iterable[str] = (),
    verify: VerifyName = "first",
    non_blocking: bool = False,
    output_dtype: torch.dtype | None = None,
) -> M:
    """Hold a model's inputs to the dtype and device of its parameters; returns the same model.

    Floating tensors, in containers too, must have the parameters' dtype; all tensors their device. Annotated
    arguments are held to their annotations. Strict mode raises, lenient mode casts and moves. Guarding a guarded
    model anew replaces its guard.

    Args:
        model: any nn.Module that is called; a compiled or data-parallel wrapper passes the guard on to its model.
        mode: 'strict', 'lenient', 'warn' or 'off'; default: the mode in force at the call.
        casting: what lenient mode may cast: 'safe', 'precision' (default), 'promote' or 'unsafe'.
        depth: 'boundary' guards the model's forward; 'all' also every module that owns floating parameters; 'auto'
            is 'boundary' where all floating parameters agree on a dtype, else 'all'.
        dtype, device: expect these instead of the parameters'.
        autocast: 'follow' (default), 'ignore' or 'disable'.
        skip_args: names of arguments to leave alone.
        skip_modules: name patterns (`encoder.*`) or classes of submodules to leave alone.
        move_args: integer and bool arguments to move from the CPU too.
        verify: when a narrowing repair is looked at for overflow: 'first', 'always' or 'never'.
        non_blocking: move without waiting; only for pinned memory that nobody writes to meanwhile.
        output_dtype: what floating results must be.

    Raises:
        TypeError: for what cannot be guarded; the message says what to do instead.
        ValueError: for unknown options.

    >>> import torch, dtypeguard
    >>> model = dtypeguard.guard(torch.nn.Linear(3, 1), mode="strict")
    >>> model(torch.ones(2, 3)).shape
    torch.Size([2, 1])
    >>> model(torch.ones(2, 3, dtype=torch.float64))
    Traceback (most recent call last):
    ...
    dtypeguard.DtypeError: Linear.forward: argument `input` is float64, the module's parameters are float32
    ...
    """
    if depth not in ("auto", "all", "boundary"):
        raise ValueError(f"depth={depth!r} is not a depth: use one of 'auto', 'all', 'boundary'")
    for name, given in (("skip_args", skip_args), ("skip_modules", skip_modules), ("move_args", move_args)):
        if isinstance(given, str):
            raise TypeError(f"{name}={given!r} is one string: write {name}=({given!r},)")
    for name, wanted in (("dtype", dtype), ("output_dtype", output_dtype)):
        if wanted is not None and wanted not in FLOATING:
            raise ValueError(f"{name}={wanted!r} is no floating dtype such as torch.bfloat16")
    options = Options(
        as_mode(mode),
        as_casting(casting),
        depth,
        dtype,
        None if device is None else torch.device(device),
        Autocast.FOLLOW if autocast is None else choose(Autocast, autocast, "autocast"),
        frozenset(skip_args),
        frozenset(move_args),
        choose(Verify, verify, "verify"),
        bool(non_blocking),
        output_dtype,
    )
    root = _root(model)
    _refuse(root)
    targets = _targets(root, options, tuple(skip_modules))
    plans = [(module, _plan(module, path, options, module is root)) for path, module in targets]
    _check_names(root, options, [contract for _, (_, contract, _) in plans])
    unguard(root)  # nothing was changed before every plan was known to work
    for module, (card, contract, cls) in plans:
        _apply(module, card, contract, cls)
    return model


# Wrappers whose own forward only passes the call on: the guard belongs on what they hold.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
}


def _root(model: Any) -> Any:
    while isinstance(model, nn.Module) and type(model).__name__ in _WRAPPERS:
        model = getattr(model, _WRAPPERS[type(model).__name__])
    return model


def _refuse(model: Any) -> None:
    """A clear TypeError for what cannot be guarded."""
    if isinstance(model, type):
        raise TypeError(f"guard takes a model, not the class {model.__name__}: guard({model.__name__}(...))")
    if not isinstance(model, nn.Module):
        kind = "None" if model is None else f"a {type(model).__name__}"
        advice = "decorate functions with dtypeguard.enforce" if callable(model) else "pass the nn.Module itself"
        raise TypeError(f"guard takes an nn.Module, not {kind}: {advice}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{type(model).__name__} is compiled by TorchScript: guard the model, then script or trace it")
    for name, module in model.named_modules():
        if any(isinstance(t, LAZY) for t in (*module._parameters.values(), *module._buffers.values())):
            where = f"its submodule {name!r}" if name else "it"
            raise TypeError(f"{where} is lazy and has no parameters yet: call the model once, then guard it")
    if not _callable(model):
        raise TypeError(f"{type(model).__name__} has no forward: guard the modules in it, or the model that holds it")


def _callable(module: nn.Module) -> bool:
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _targets(root: nn.Module, options: Options, skip: tuple[Any, ...]) -> Iterator[tuple[str, nn.Module]]:
    """The modules to guard with their paths: the root, and by depth the owners of floating parameters."""
    name = type(root).__name__
    yield name, root
    dtypes = {tensor.dtype for _, tensor in floating(root)}
    if options.depth == "boundary" or (options.depth == "auto" and (len(dtypes) < 2 or options.dtype is not None)):
        return
    classes = tuple(pattern for pattern in skip if isinstance(pattern, type))
    for path, module in root.named_modules():
        owner = any(p is not None and p.dtype in FLOATING for p in own_parameters(module).values())
        skipped = isinstance(module, classes) or any(
            fnmatch.fnmatchcase(path, pattern) for pattern in skip if isinstance(pattern, str)
        )
        if path and owner and _callable(module) and not skipped and not _inside(module):
            yield f"{name}.{path}", module


def _inside(module: nn.Module) -> bool:
    """Part of another module's machinery, never called with a tensor from outside."""
    return isinstance(module, torch.nn.utils.parametrize.ParametrizationList)


def _plan(module: nn.Module, path: str, options: Options, root: bool) -> tuple[Card, Contract, type[nn.Module] | None]:
    if not root:
        options = dataclasses.replace(options, output_dtype=None)
    anchor = anchor_of(module)
    agrees = (anchor is not None and anchor.dtype is not None, anchor is not None and anchor.device is not None)
    key = Key(options, slot(module), agrees)
    card = Card(path, key)
    base: Any = type(module)._dtypeguard_base or type(module) if isinstance(module, GuardedModule) else type(module)
    if isinstance(module, torch.fx.GraphModule):
        return card, _contract(type(module), type(module).forward, key), None
    cls = _guarded_class(base, key)
    return card, vars(cls)["forward"].__dtypeguard__[1], cls


def _check_names(root: nn.Module, options: Options, contracts: list[Contract]) -> None:
    params = [param for contract in contracts for param in contract.params]
    if any(param.kind is inspect.Parameter.VAR_KEYWORD for param in params):
        return
    for option in ("skip_args", "move_args"):
        for name in getattr(options, option):
            if name not in {param.name for param in params}:
                known = ", ".join(param.name for param in contracts[0].params[1:])
                raise ValueError(f"{option}: {type(root).__name__}.forward has no argument {name!r}, only {known}")


def _apply(module: nn.Module, card: Card, contract: Contract, cls: type[nn.Module] | None) -> None:
    if cls is None:
        card.hook = module.register_forward_pre_hook(_PreHook(contract), with_kwargs=True)
    else:
        shadow = module.__dict__.get("forward")
        try:
            module.__class__ = cls
        except TypeError as error:
            raise TypeError(
                f"the class of {card.path} cannot be swapped ({error}): use enforce on its forward"
            ) from None
        if shadow is not None:
            card.forward = shadow
            module.__dict__["forward"] = types.MethodType(_around(shadow, type(module), card.key), module)
    module.__dict__["_dtypeguard"] = card


def _around(forward: Any, cls: type[nn.Module], key: Key) -> Any:
    """The guard around an instance's own `forward`, which hides that of the class (accelerate, compile, hooks)."""

    def shadow(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    params = list(inspect.signature(forward).parameters.values())
    only = inspect.Parameter.POSITIONAL_ONLY
    first = only if params and params[0].kind is only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = inspect.Parameter("self", first)
    shadow.__signature__ = inspect.Signature([own, *params])  # type: ignore[attr-defined]
    shadow.__annotations__ = dict(annotations_of(inspect.unwrap(getattr(forward, "__func__", forward))))
    shadow.__name__, shadow.__qualname__ = "forward", f"{cls.__qualname__}.forward"
    return build(shadow, _contract(cls, shadow, key), path=key.path, agrees=key.agrees)


class _PreHook:
    """The guard of a GraphModule: its class writes itself anew, so a hook checks what goes in."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
        bound.apply_defaults()
        call = enter(self.contract, tuple(bound.arguments[param.name] for param in self.contract.params))
        bound.arguments.update({p.name: value for p, value in zip(self.contract.params, call.values, strict=True)})
        return bound.args[1:], bound.kwargs


@functools.cache
def _guarded_class(base: Any, key: Key) -> type[nn.Module]:
    """The subclass `(GuardedModule, base)` whose forward checks first; it carries its base's names."""
    contract, body = _contract(base, base.forward, key), base.forward
    inner = getattr(body, "__dtypeguard__", None)
    if inner is not None:  # enforced already: checked once, by one wrapper
        body = inner[0]
    forward = build(body, contract, path=key.path, agrees=key.agrees)
    forward.__signature__ = inspect.signature(base.forward)
    forward.__dtypeguard__ = (body, contract)
    names = {name: vars(base)[name] for name in ("__module__", "__qualname__", "__doc__") if name in vars(base)}
    members = {**names, "forward": forward, "_dtypeguard_base": base}
    bases = (base,) if issubclass(base, GuardedModule) else (GuardedModule, base)
    return types.new_class(base.__name__, bases, exec_body=lambda namespace: namespace.update(members))


def _contract(cls: type[nn.Module], forward: Any, key: Key) -> Contract:
    """The contract of a forward: its array annotations where it has them, the anchor for all else."""
    options = key.options
    inner = getattr(forward, "__dtypeguard__", None)
    if inner is not None and not inner[1].guarded:
        contract: Contract = dataclasses.replace(inner[1], mode=options.mode or inner[1].mode)
        contract.params = tuple(dataclasses.replace(param) for param in contract.params)
    else:
        params = tuple(Param(p.name, p.kind, None, p.default) for p in inspect.signature(forward).parameters.values())
        contract = Contract(f"{cls.__name__}.{function_name(forward).rpartition('.')[2]}", params, mode=options.mode)
        contract.mutates = frozenset({"out"})
        annotations = annotations_of(inspect.unwrap(forward))
        for param in params:
            param.spec = _array_spec(contract.function, param.name, annotations, forward)
        contract.returns = _array_spec(contract.function, "return", annotations, forward)
    for n, param in enumerate(contract.params):
        param.skip = n == 0 or param.name in options.skip_args
    contract.guarded, contract.anchor = True, "self"
    for name in ("casting", "autocast", "verify", "dtype", "device", "move_args", "skip_args", "non_blocking"):
        setattr(contract, name, getattr(options, name))
    contract.output_dtype = options.output_dtype
    return contract


def _array_spec(function: str, name: str, annotations: dict[str, Any], forward: Any) -> Any:
    """The spec of one annotation if it holds a jaxtyping annotation; what cannot be resolved is no annotation."""
    if name not in annotations:
        return None
    inner = inspect.unwrap(forward)
    try:
        hint = resolve_hint(annotations[name], getattr(inner, "__globals__", {}), {})
        return read_annotation(function, name, hint, inner, {}) if is_array_hint(hint) else None
    except (NameError, AnnotationError):
        return None


def unguard(model: M, /) -> M:
    """Take the guard off a model and all its submodules; returns the same model.

    >>> import torch, dtypeguard
    >>> model = dtypeguard.unguard(dtypeguard.guard(torch.nn.Linear(3, 1)))
    >>> dtypeguard.is_guarded(model)
    False
    """
    root = _root(model)
    if not isinstance(root, nn.Module):
        _refuse(root)
    for module in list(root.modules()):
        card = module.__dict__.pop("_dtypeguard", None)
        if card is None:
            continue
        base: Any = type(module)._dtypeguard_base if isinstance(module, GuardedModule) else None
        if base is not None:
            module.__class__ = base
        if card.forward is not None:
            module.__dict__["forward"] = card.forward
        if card.hook is not None:
            card.hook.remove()
    return model


def is_guarded(model: nn.Module, /) -> bool:
    """Whether `guard` holds this model (or what its compiled or data-parallel wrapper holds).

    >>> import torch, dtypeguard
    >>> dtypeguard.is_guarded(dtypeguard.guard(torch.nn.Linear(3, 1)))
    True
    """
    root = _root(model)
    return isinstance(root, nn.Module) and "_dtypeguard" in vars(root)


GuardedModule.__module__ = "dtypeguard"
