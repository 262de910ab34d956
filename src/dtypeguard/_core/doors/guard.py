"""`guard`: contracts for models without annotations.

An instance's class is swapped for a generated subclass, so that
`state_dict`, `isinstance`, hooks, optimizers and pickling stay what they were.
"""

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ..base.config import LOOKS, AutocastName, CastingName, ModeName, VerifyName, written_in
from ..base.dtypes import FloatName
from ..base.errors import DtypeGuardWarning
from ..base.frames import caller, warn_at
from ..base.modules import root_of
from ..base.options import explained
from ..contract.anchor import slots
from ..contract.hints import annotations_of
from ..contract.model import Contract
from ..wrap.build import build, sign, signed
from ..wrap.script import shallow
from .card import Card, inner
from .choose import choices, is_border, refuse
from .enforce import enforce
from .forward import (
    Key,
    Options,
    around_instance,
    body_of,
    check_names,
    check_patterns,
    contract_of,
    hooks_of,
    with_self,
)
from .inside import take
from .options import Depth, read_options
from .state import State, holder_of, leave_alone, look_after

M = TypeVar("M", bound=nn.Module)


class GuardedModule(nn.Module):
    """Base class of every guarded model.

    If a class derives from it, its `forward` is enforced. `GuardedModule(model, ...)` is `guard(model, ...)`.

    >>> import torch, dtypeguard
    >>> from jaxtyping import Float
    >>> class Net(dtypeguard.GuardedModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = torch.nn.Linear(3, 1)
    ...
    ...     def forward(self, x: Float[torch.Tensor, "b 3"]) -> Float[torch.Tensor, "b 1"]:
    ...         return self.fc(x)
    >>> Net()(torch.ones(2, 3)).dtype
    torch.float32
    """

    if TYPE_CHECKING:
        forward: Callable[..., Any]  # of a subclass; an annotation that stayed would be one of its fields

    _dtypeguard_base: Any = None  # of a generated class: what it was generated from
    _dtypeguard_key: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "_dtypeguard_base" in vars(cls):  # generated: its base was registered wherever it wanted to be
            return
        super().__init_subclass__(**kwargs)
        forward = vars(cls).get("forward", cls.forward)
        # A class whose base is guarded needs no annotations.
        needs_none = _generated_class(cls) is not None and not annotations_of(inspect.unwrap(forward))
        if forward is not nn.Module.forward and signed(forward) is None and not needs_none:
            cls.forward = enforce(forward)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is GuardedModule:
            if not args:
                raise TypeError("GuardedModule(model) needs a model; or derive a class with a forward from it")
            return guard(*args, **kwargs)
        make = super().__new__
        return make(cls) if make is object.__new__ else make(cls, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        cls = _generated_class(type(self))
        if cls is not type(self) or not isinstance(reduced, tuple):
            return reduced
        recipe = [_swapped(part, cls, _Generated) for part in (reduced[0], *reduced[1])]
        return (_rebuild, (cls._dtypeguard_base, cls._dtypeguard_key, *recipe), *reduced[2:])

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        card = vars(self).get("_dtypeguard")
        if card is not None and card.holder is not None:
            look_after(self, card.holder)

    def __prepare_scriptable__(self) -> nn.Module:
        if any(map(is_border, self.modules())):
            raise TypeError(
                f"torch.jit.script cannot read the casts that `keep` put into {type(self).__name__}: use torch.export "
                "or torch.compile"
            )
        text = f"torch.jit.script sees {type(self).__name__} without its guard"
        advice = "a module around it that is scripted keeps the unguarded twin: guard it anew"
        warn_at(caller(), DtypeGuardWarning(f"{text}; {advice}"))
        return unguard(shallow(self))


class _Generated:
    """Stands in a pickle for the generated class, which no module holds."""


def _swapped(part: Any, old: type, new: type) -> Any:
    if isinstance(part, functools.partial):
        func, *args = (_swapped(item, old, new) for item in (part.func, *part.args))
        return functools.partial(func, *args, **part.keywords)
    return new if part is old else part


def _rebuild(base: Any, key: Key, *recipe: Any) -> Any:
    """What a pickle calls: the model's own recipe, with the class generated anew."""
    cls = _guarded_class(base, key)
    make, *args = (_swapped(part, _Generated, cls) for part in recipe)
    model = make(*args)
    if type(model) is base:  # its own `__reduce__` names the class
        object.__setattr__(model, "__class__", cls)
    return model


@explained
def guard(
    model: M,
    /,
    *,
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    depth: Depth = "auto",
    dtype: torch.dtype | FloatName | None = None,
    device: torch.device | str | None = None,
    autocast: AutocastName | None = None,
    skip_args: str | Iterable[str] = (),
    skip_modules: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    move_args: str | Iterable[str] = (),
    verify: VerifyName = "first",
    non_blocking: bool = False,
    output_dtype: torch.dtype | FloatName | None = None,
    state: State | None = None,
) -> M:
    """Check a model's inputs against the dtype and device of its parameters. Returns the same model.

    Floating tensors, in containers too, must have the parameters' dtype and device. If at least one of them has that
    dtype, others that differ are side inputs (a float32 timestep beside a half model), and so are masks beside ids:
    they are not cast until they reach one of PyTorch's own modules that cannot compute with them. Arguments with
    jaxtyping annotations are checked against these. Strict mode raises, lenient mode casts and moves. Calls of
    `forward` are checked, those of other methods (`model.forward_features(x)`) are not. A second call of `guard`
    replaces the first guard.

    Args:
        model: any nn.Module that is called. For a compiled or data-parallel wrapper, the model inside is guarded.
        mode: 'strict', 'lenient', 'warn' or 'off'; default: the mode that is set when a call is checked.
        casting: which casts lenient mode may make: 'safe', 'precision' (default), 'promote' or 'unsafe'.
        depth: which forwards are checked. 'boundary': the model's. 'all': the model's, and that of each submodule with
            floating parameters of its own. 'auto': the model's; and if its floating parameters differ in dtype, or in
            calls with side inputs, those of PyTorch's own submodules (Linear, Conv2d, ...). Submodules of other
            authors are left out then, because their code may cast.
        dtype, device: the dtype and device to expect, instead of the parameters'.
        autocast: 'follow' (default), 'ignore' or 'disable'.
        skip_args: the name of an argument that is not checked, as the model itself casts it, or several names.
        skip_modules: a name, a pattern of names (`encoder.*`) or a class of submodules that are not checked, or several
            of these.
        move_args: the name of an integer or bool argument that is moved from the CPU too, or several names.
        verify: as for `enforce`.
        non_blocking: move without waiting. Use it only for pinned memory that is not written to meanwhile.
        output_dtype: the dtype that floating results must have.
        state: a manifest, or the path of one, of what the model must hold. That is checked at its first call, and at
            the first one after `.to()`, `load_state_dict` and the like, of the model or a module inside: strict mode
            raises `StateError`, lenient mode warns. What the model holds is not changed.

    Returns:
        The same object, of a generated subclass of its class.

    Raises:
        TypeError: if the model cannot be guarded; the message says what to do instead.
        ValueError: for unknown options, and for names and patterns that match nothing.

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
    options, skip = read_options(
        mode=mode, casting=casting, depth=depth, dtype=dtype, device=device, autocast=autocast, skip_args=skip_args,
        skip_modules=skip_modules, move_args=move_args, verify=verify, non_blocking=non_blocking,
        output_dtype=output_dtype,
    )  # fmt: skip
    root, file = root_of(model), written_in(sys._getframe(1))
    refuse(root)
    holder = None if state is None else holder_of(state, options.mode, file)
    before = guards_of(root)
    check_patterns(root, skip)
    unguard(root)
    try:
        name, chosen = type(root).__name__, choices(root, options, skip)
        targets = [(f"{name}.{path}" if path else name, module) for path, module, why in chosen if why is None]
        contracts = [_guard_one(module, path, options, file, module is root) for path, module in targets]
        if depth == "auto" and [module for _, module in targets] == [root]:
            card = root.__dict__["_dtypeguard"]
            card.skip, card.follows = skip, True
        check_names(root, options, contracts or [contract_for(root, Key(options, None))])
        if holder is not None:
            vars(root)["_dtypeguard"].holder = holder
            look_after(root, holder)
    except BaseException:  # all or nothing
        restore(root, before)
        raise
    return model


def guards_of(root: nn.Module) -> list[tuple[nn.Module, Card]]:
    """The guards in a model, but for borders, which stay."""
    guarded = [module for module in root.modules() if "_dtypeguard" in vars(module) and not is_border(module)]
    return [(module, vars(module)["_dtypeguard"]) for module in guarded]


def restore(root: nn.Module, guards: list[tuple[nn.Module, Card]]) -> None:
    """Give a model the guards that it had, and no others."""
    unguard(root)
    for module, card in guards:
        _guard_one(module, card.path, card.key.options, card.file, True)
        made = vars(module)["_dtypeguard"]
        made.skip, made.follows, made.maker = card.skip, card.follows, card.maker
        if card.hooks and not made.hooks:
            made.hooks = (module.register_forward_pre_hook(_do_nothing),)
        if card.holder is not None:
            made.holder = card.holder
            look_after(module, card.holder)


def border(module: nn.Module, path: str, options: Options, parent: nn.Module | None) -> None:
    """Guard one module inside of a model, instead of the guard that it has."""
    _unguard_one(module)
    _guard_one(module, path, options, None, True)
    if isinstance(parent, nn.TransformerEncoderLayer):  # its fused path reads the parameters of what is inside
        module.__dict__["_dtypeguard"].hooks += (module.register_forward_pre_hook(_do_nothing),)


def _do_nothing(module: nn.Module, args: Any) -> None:
    """A hook that does nothing: where there is one, PyTorch calls the module."""


def _guard_one(module: nn.Module, path: str, options: Options, file: str | None, root: bool) -> Contract:
    """Guard one module; returns its contract."""
    key = Key(options if root else inner(options), slots(module))
    card = module.__dict__["_dtypeguard"] = Card(path, key, file=file)  # first, so that `unguard` undoes half a guard
    cls: Any = type(module)
    if isinstance(module, torch.fx.GraphModule):
        contract = contract_of(cls, cls.forward, key)
        card.hooks = hooks_of(module, contract)
    else:
        base, hidden = _base_of(cls, module), _hidden_name(module)
        guarded = _guarded_class(base, key)
        contract = guarded.forward.__dtypeguard__[1]
        shadow = module.__dict__.get(hidden)
        try:
            object.__setattr__(module, "__class__", _rebase_class(cls, base, guarded))
        except TypeError as error:
            raise TypeError(f"the class of {path} cannot be swapped ({error}): use enforce on its forward") from None
        if shadow is not None:
            made = around_instance(shadow, module, key)
            made.__wrapped__ = type(module).forward  # accelerate goes along this to take its own wrapper off
            module.__dict__[hidden] = types.MethodType(made, module)
            card.shadow = (hidden, shadow, module.__dict__[hidden])
    return contract


def contract_for(module: nn.Module, key: Key) -> Contract:
    """The contract that a guard holds a module to, whether the module is guarded or not."""
    cls: Any = type(module)
    if isinstance(module, torch.fx.GraphModule):
        return contract_of(cls, cls.forward, key)
    card: Card | None = module.__dict__.get("_dtypeguard")
    base = _base_of(cls, module) if card is None else _generated_class(cls)._dtypeguard_base
    shadow = module.__dict__.get(_hidden_name(module)) if card is None or card.shadow is None else card.shadow[1]
    return contract_of(base, _forward_of(base) if shadow is None else body_of(shadow, module), key)


def _base_of(cls: Any, module: nn.Module) -> Any:
    """The class that a guard is made from."""
    # torch takes a parametrization off by going back to the first base, so the guard stands beneath it.
    return cls.__bases__[0] if torch.nn.utils.parametrize.is_parametrized(module) else cls


def _hidden_name(module: nn.Module) -> str:
    """What a forward is called that an instance has of its own."""
    # Behind accelerate's hooks, which load weights and move inputs, stands the forward to guard.
    return "_old_forward" if "_hf_hook" in module.__dict__ and "_old_forward" in module.__dict__ else "forward"


def _forward_of(base: Any) -> Any:
    """The forward of a class, as a function that takes the module first."""
    body = inspect.getattr_static(base, "forward")
    forward = with_self(base.forward, base) if isinstance(body, staticmethod | classmethod) else base.forward
    if not inspect.isfunction(forward) and type(forward).__name__ != "cython_function_or_method":
        kind = type(body).__name__
        raise TypeError(f"the forward of {base.__name__} is a {kind}, which guard cannot wrap: write it as a method")
    return forward


def _generated_class(cls: type) -> Any:
    """The class in an MRO that `guard` generated, or None."""
    return next((c for c in cls.__mro__ if "_dtypeguard_base" in vars(c) and c is not GuardedModule), None)


def _rebase_class(cls: Any, old: Any, new: Any) -> Any:
    """A class with `old` in its ancestry replaced by `new`: what was put on top (a parametrization, FSDP2) stays."""
    if cls is old:
        return new
    bases = tuple(_rebase_class(base, old, new) if issubclass(base, old) else base for base in cls.__bases__)
    return _class(cls.__name__, bases, dict(vars(cls)))


def _class(name: str, bases: tuple[Any, ...], members: dict[str, Any]) -> Any:
    """A class that no metaclass of the user's is told of: a registry would take it for the user's class of that name.

    Python's own metaclasses are told: `ABCMeta` keeps what each class needs.
    """
    meta: Any = types.prepare_class(name, bases)[0]
    own: Any = next(cls for cls in meta.__mro__ if cls.__module__.partition(".")[0] in sys.stdlib_module_names)
    return own.__new__(meta, name, bases, dict(members))


def _guarded_class(base: Any, key: Key) -> Any:
    """The subclass `(GuardedModule, base)` whose forward checks first; it carries its base's names."""
    body = inspect.getattr_static(base, "forward")
    for known in base.__subclasses__():  # weak references: a class that nobody uses may go
        if vars(known).get("_dtypeguard_key") == key and vars(known)["_dtypeguard_body"] is body:
            return known
    forward = _forward_of(base)
    contract = contract_of(base, forward, key)
    inner = signed(forward)
    if inner is not None:  # enforced already: checked once, by one wrapper
        forward = inner[0]
    made = build(forward, contract, anchor=key.slots)
    signature = inspect.signature(forward)
    if inspect.signature(made) != signature:  # not else: `functools.wraps` copies it to where there is no `self`
        made.__signature__ = signature
    sign(made, forward, contract)
    members = {name: vars(base)[name] for name in LOOKS if name in vars(base)}
    members["__qualname__"] = base.__qualname__
    members |= {"forward": made, "_dtypeguard_base": base, "_dtypeguard_key": key, "_dtypeguard_body": body}
    members |= _constructors(base)
    # The mixin's methods stand in the class itself, since they must come first whichever base does.
    members |= {name: vars(GuardedModule)[name] for name in ("__reduce_ex__", "__prepare_scriptable__")}
    orders = [(base,)] if issubclass(base, GuardedModule) else [(GuardedModule, base), (base, GuardedModule)]
    cls: Any = None
    for bases in orders:
        cls = _class(base.__name__, bases, members)
        with contextlib.suppress(TypeError):
            object.__setattr__(object.__new__(base), "__class__", cls)  # Generic or ABC first: another layout
            break
    return cls


def _constructors(base: Any) -> dict[str, Any]:
    """`__new__` and `__init__` with the base's signature; GuardedModule(model) must not draw weights anew."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls) if base.__new__ is object.__new__ else base.__new__(cls, *args, **kwargs)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not (args and args[0] is self):  # Python calls it again after `__new__` returned a guarded model
            base.__init__(self, *args, **kwargs)

    made: dict[str, Any] = {"__new__": new, "__init__": init}
    for function in made.values():
        function.__signature__ = inspect.signature(base.__init__)
    return made


@explained
def unguard(model: M, /, *, borders: bool = False) -> M:
    """Remove the guard from a model and all its submodules. Returns the same model.

    Functions that `enforce` decorates, and the forward of a class that derives from `GuardedModule`, still check.

    Args:
        model: guarded or not.
        borders: remove the casts of a model that `Kept.apply` has changed, too. Without them it does not run where
            its modules of two dtypes meet.

    Returns:
        The same object, of its own class.

    >>> import torch, dtypeguard
    >>> model = dtypeguard.unguard(dtypeguard.guard(torch.nn.Linear(3, 1)))
    >>> dtypeguard.is_guarded(model)
    False
    """
    root = root_of(model)
    if not isinstance(root, nn.Module):
        refuse(root, "unguard")
    for module in list(root.modules()):
        if borders or not is_border(module):
            _unguard_one(module)
    return model


def _unguard_one(module: nn.Module) -> None:
    take(module)
    card = module.__dict__.pop("_dtypeguard", None)
    cls = _generated_class(type(module))
    # Without a card: `model[:1]` of a guarded Sequential is one too, but not what a user derived from its class.
    if cls is not None and (card is not None or type(module) is cls):
        object.__setattr__(module, "__class__", _rebase_class(type(module), cls, cls._dtypeguard_base))
    if card is None:
        return
    name, original, guarded = card.shadow or ("", None, None)
    if guarded is not None and module.__dict__.get(name) is guarded:  # not if somebody took it away meanwhile
        module.__dict__[name] = original
    for hook in card.hooks:
        hook.remove()
    if card.holder is not None:
        leave_alone(module, card.holder)


def move_guards(model: nn.Module, file: str | None, maker: str) -> None:
    """Have the guards of a model count as written in another file, and as made by another call."""
    for module in root_of(model).modules():
        card = module.__dict__.get("_dtypeguard")
        if card is not None:
            card.file, card.maker = file, maker


def is_guarded(model: nn.Module, /) -> bool:
    """Whether a model is guarded: by `guard`, or because its class derives from `GuardedModule`.

    `unguard` does not change the second. A compiled or data-parallel wrapper is guarded if the model inside is.

    Args:
        model: any nn.Module.

    Returns:
        True for a guarded model.

    >>> import torch, dtypeguard
    >>> dtypeguard.is_guarded(dtypeguard.guard(torch.nn.Linear(3, 1)))
    True
    """
    return isinstance(root_of(model), GuardedModule) or is_held(model)


def is_held(model: nn.Module) -> bool:
    """Whether `guard` was called on a model, and nothing has taken the guard off since."""
    root = root_of(model)
    if not isinstance(root, nn.Module):
        return False
    card = vars(root).get("_dtypeguard")
    hooks = card.hooks if card is not None else ()
    if is_border(root):
        return False
    there = {*root._forward_pre_hooks, *root._forward_hooks}  # a pickled GraphModule has lost them
    return _generated_class(type(root)) is not None or (bool(hooks) and all(hook.id in there for hook in hooks))


GuardedModule.__module__ = "dtypeguard"
