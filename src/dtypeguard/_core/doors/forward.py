"""What a guard asks of one forward: its array annotations, and the anchor for all else."""

import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import inspect
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..base.config import Autocast, Mode, Verify
from ..base.dtypes import Casting
from ..base.errors import AnnotationError
from ..base.frames import hide_frames
from ..base.pyproject import near
from ..check.reference import check
from ..check.state import CallState
from ..contract.anchor import UNCAST, Slots
from ..contract.hints import annotations_of, is_array_hint, resolve_hint
from ..contract.model import OMITTED, Contract, Param, Rest
from ..contract.spec import Spec, spec_of
from ..repair.settle import enter, leave
from ..wrap.annotations import resolved
from ..wrap.build import build, function_name, signed

_NUMBER = re.compile(r"\b\d+\b")
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `guard`; part of the key of a generated class, so it can be pickled."""

    mode: Mode | None
    casting: Casting | None
    depth: str
    dtype: torch.dtype | None
    device: torch.device | None
    autocast: Autocast | None
    skip_args: frozenset[str]
    move_args: frozenset[str]
    verify: Verify
    non_blocking: bool
    output_dtype: torch.dtype | None
    border: bool = False  # between parts of a model that have other dtypes, where casts are meant


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a generated class among those of one base."""

    options: Options
    slots: Slots | None


def is_torch_own(cls: type[nn.Module]) -> bool:
    """Whether PyTorch itself wrote the forward of a class; a GraphModule's is the user's model."""
    forward: Any = cls.forward
    written = getattr(forward, "__module__", "") or ""
    return (
        written.startswith("torch.") and forward is not nn.Module.forward and not issubclass(cls, torch.fx.GraphModule)
    )


# PyTorch's own modules that hand a float mask to `F.scaled_dot_product_attention`, which takes float32 beside half.
_ATTENTION = (
    nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip


def contract_of(cls: type[nn.Module], forward: Any, key: Key) -> Contract:
    """The contract of a forward: its array annotations where it has them, the anchor for all else."""
    options = key.options
    inner = signed(forward)
    if inner is not None and not inner[1].guarded:
        contract: Contract = dataclasses.replace(inner[1], plans=[])
        contract.params = tuple(dataclasses.replace(param) for param in contract.params)
    else:
        name = f"{cls.__name__}.{function_name(forward).rpartition('.')[2]}"
        inside = inspect.unwrap(forward)
        specs = {argument: _array_spec(hint, inside) for argument, hint in annotations_of(inside).items()}
        params = _params(forward, by_name=any(specs[argument] for argument in specs if argument != "return"))
        contract = Contract(name, params, autocast=Autocast.FOLLOW, mutates=frozenset({"out"}))
        for param in contract.params:
            param.spec = specs.get(param.name)
        contract.returns = specs.get("return")
    for n, param in enumerate(contract.params):
        param.skip = n == 0 or param.name in options.skip_args
    contract.guarded, contract.key, contract.anchor = True, key, contract.anchor or "self"
    contract.border = options.border
    contract.sides = not is_torch_own(cls) and not options.border
    contract.uncast = is_torch_own(cls) and issubclass(cls, UNCAST)
    if issubclass(cls, _ATTENTION) and not contract.sides:
        contract.masks = frozenset(param.name for param in contract.params if param.name.endswith("mask"))
    for name in ("mode", "casting", "autocast"):
        told = getattr(options, name)
        if told is not None:
            setattr(contract, name, told)
    for name in ("verify", "dtype", "device", "move_args", "skip_args", "non_blocking", "output_dtype"):
        setattr(contract, name, getattr(options, name))
    return contract


def _params(forward: Any, by_name: bool) -> tuple[Param, ...]:
    """The parameters of a forward.

    A decorator that takes `*args, **kwargs` must get a call as it was given: it may look for a keyword, or add one.
    Only where an annotation must find its argument are the parameters those of the function inside.
    """
    inner, outer = inspect.signature(forward), inspect.signature(forward, follow_wrapped=False)
    if by_name and outer != inner and any(param.kind in _SEVERAL for param in outer.parameters.values()):
        first, *others = inner.parameters.values()
        outer = inner.replace(
            parameters=[first, *(p if p.kind in _SEVERAL else p.replace(default=OMITTED) for p in others)]
        )
        inner = outer
    labels: tuple[str, ...] = ()
    if outer != inner:
        labels = tuple(p.name for p in inner.parameters.values() if p.kind not in _SEVERAL)
    params = [Param(p.name, p.kind, None, p.default) for p in outer.parameters.values()]
    if params and params[0].kind is inspect.Parameter.VAR_POSITIONAL:  # the module itself is the first of them
        params.insert(0, Param("self", inspect.Parameter.POSITIONAL_ONLY))
    named = sum(param.kind not in _SEVERAL for param in params)
    for param in params:
        if param.kind in _SEVERAL and labels:
            param.name = Rest(param.name, labels[named:])
    return tuple(params)


def _array_spec(annotation: Any, fn: Any) -> Spec | None:
    """The spec of an annotation if it holds a jaxtyping annotation; what cannot be resolved is no annotation."""
    with contextlib.suppress(NameError, AnnotationError):
        hint = _resolved(annotation, fn)
        return spec_of(resolved(hint, fn, {})) if is_array_hint(hint) else None
    return None


def around_instance(forward: Any, module: nn.Module, key: Key) -> Any:
    """The guard around an instance's own `forward`, which hides that of the class (accelerate, compile, hooks)."""
    body = body_of(forward, module)
    return build(body, contract_of(type(module), body, key), anchor=key.slots)


def body_of(forward: Any, module: nn.Module) -> Any:
    """An instance's own `forward`, as a function that takes the module first."""
    if isinstance(forward, types.MethodType) and forward.__self__ is module:
        return forward.__func__  # a copy of the model must run its own weights
    return with_self(forward, type(module))


def with_self(forward: Any, cls: type) -> Any:
    """A function that takes no module, as a method that takes one."""

    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    params = [param for param in inspect.signature(forward).parameters.values() if param.name != "self"]
    made: Any = method
    made.__signature__ = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *params])
    inner = inspect.unwrap(forward)  # whose module has the names in its strings
    made.__annotations__ = {name: _resolved(hint, inner) for name, hint in annotations_of(inner).items()}
    made.__name__, made.__qualname__ = "forward", f"{cls.__qualname__}.forward"
    return made


def _resolved(hint: Any, fn: Any) -> Any:
    with contextlib.suppress(NameError, AnnotationError):
        return resolve_hint(hint, getattr(fn, "__globals__", {}), {})
    return hint


def hooks_of(module: nn.Module, contract: Contract) -> tuple[Any, ...]:
    """The guard of a GraphModule, whose class writes itself anew: hooks check what goes in, and what comes out."""
    before = module.register_forward_pre_hook(functools.partial(_check_arguments, contract), with_kwargs=True)
    if contract.output_dtype is None and contract.returns is None:
        return (before,)
    return (before, module.register_forward_hook(functools.partial(_check_result, contract), with_kwargs=True))


def _check_arguments(contract: Contract, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (module, *args)
    try:
        call = enter(contract, _values(contract, given, kwargs))
    except BaseException:
        hide_frames()
        raise
    keywords = {name: value for name, value in call.arguments().items() if name in kwargs}
    return (*call.values[1 : len(given)], *given[len(call.values) :]), {**kwargs, **keywords}


def _check_result(
    contract: Contract, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    call = CallState(contract, _values(contract, (module, *args), kwargs))
    if call.mode is Mode.OFF:
        return result
    try:
        if contract.returns is not None:  # its axes are those of the arguments
            found = check(contract, call.values)
            call.axes, call.variadics, call.owners = found.axes, found.variadics, found.owners
        return leave(call, result)
    except BaseException:
        hide_frames()
        raise


def _values(contract: Contract, given: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A value for each parameter."""
    values = [kwargs.get(param.name, param.default) for param in contract.params]
    values[: len(given)] = given[: len(values)]
    return tuple(values)


# ---------------------------------------------------------------- names in the arguments of `guard`


def check_names(root: nn.Module, options: Options, contracts: list[Contract]) -> None:
    """Refuse names of arguments that the forward does not have."""
    params = [param for contract in contracts for param in contract.params]
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in params)
    names = [param.name for param in params]
    for contract in contracts if takes_any else ():
        with contextlib.suppress(TypeError, ValueError):  # it has none
            names += inspect.signature(contract.body).parameters  # what is inside of decorators with *args, **kwargs
    for option in ("skip_args", "move_args"):
        for name in getattr(options, option):
            known = [one for one in names if _is_slip(name, one)] if takes_any else names
            if name in names or not known:
                continue
            only = "" if takes_any else f", only {', '.join(param.name for param in contracts[0].params[1:])}"
            meant = near(name, known)
            raise ValueError(f"{option}: {type(root).__name__}.forward has no argument {name!r}{meant}{only}")


def _is_slip(name: str, known: str) -> bool:
    """Whether a name is another one but for a letter: with `**kwargs`, all other names may be keys.

    A digit, or a word of one or two letters, is what tells keys apart: `mask2`, `pos_q`; short names are other words.
    """
    if max(len(name), len(known)) < 5:
        return False
    words = {*name.split("_")} ^ {*known.split("_")}
    edits = difflib.SequenceMatcher(None, name, known, autojunk=False).get_opcodes()
    wrong = [(name[a:b], known[c:d]) for kind, a, b, c, d in edits if kind != "equal"]
    letters = "".join(one + other for one, other in wrong)
    few = len(wrong) == 1 and max(map(len, wrong[0])) == 1
    swapped = len(wrong) == len(letters) == 2 and letters[0] == letters[1]
    return (few or swapped) and letters.isalpha() and max(map(len, words)) > 2


def matches(pattern: str | type[nn.Module], path: str, module: nn.Module) -> bool:
    """Whether one of `skip_modules` means this submodule."""
    return fnmatch.fnmatchcase(path, pattern) if isinstance(pattern, str) else isinstance(module, pattern)


def check_patterns(root: nn.Module, patterns: Iterable[Any]) -> None:
    """Refuse patterns of submodules that mean none."""
    modules = dict(root.named_modules())
    for pattern in patterns:
        if any(matches(pattern, path, module) for path, module in modules.items()):
            continue
        what, known = f"called {pattern!r}", [path for path in modules if path]
        if isinstance(pattern, type):
            what = f"of the class {pattern.__name__}"
            known = sorted({type(module).__name__ for path, module in modules.items() if path})
        elif "*" in pattern:
            what = f"that {pattern!r} matches"
            around = [f"{path.rpartition('.')[0]}.*" for path in known if "." in path]
            known = list(dict.fromkeys(_NUMBER.sub("*", path) for path in (*known, *around)))
        what += "" if isinstance(pattern, type) else near(pattern, known)
        raise ValueError(
            f"skip_modules: {type(root).__name__} has no submodule {what}, only {_closest_names(str(pattern), known)}"
        )


def _closest_names(wanted: str, known: list[str]) -> str:
    """Names for a message; of many the ones that are most alike."""
    if len(known) > 8:
        import difflib

        known = [*difflib.get_close_matches(wanted, known, 8, 0.0), "..."]
    return ", ".join(known) or "itself"
