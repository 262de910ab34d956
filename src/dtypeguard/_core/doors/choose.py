"""Which modules of a model a guard is put on, and why the others have none."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..base.dtypes import FLOATING, TABLE, Kind, name_of
from ..base.frames import TORCH
from ..base.options import refuse_no_module
from ..contract.anchor import LAZY, WIDER, floating, is_ready, own_parameters, quiet
from ..contract.hints import annotations_of
from ..wrap.build import signed
from .forward import Options, is_torch_own, matches

# Never called with a tensor from outside, or cannot be guarded.
_MACHINERY = (torch.nn.utils.parametrize.ParametrizationList, torch.jit.ScriptModule)


class Choice(NamedTuple):
    """One module of a model; `why` it is not guarded, None if it is."""

    path: str
    module: nn.Module
    why: str | None


def choices(root: nn.Module, options: Options, skip: tuple[Any, ...]) -> Iterator[Choice]:
    """All modules of a model: the root, which is guarded in any case, and by depth those inside."""
    shallow = shallow_by(root, options)
    for path, module in list(root.named_modules()):
        why = BORDER if is_border(module) else None
        if path and why is None:
            why = no_owner(path, module, skip) or shallow
        if path and why is None and options.depth != "all" and not refuses_wider(module):
            # In a model of several dtypes the authors cast at the borders, in code of their own. What PyTorch's own
            # modules would refuse is no such border.
            own = is_torch_own(type(module))
            why = "takes input of other dtypes" if own else "is not one of PyTorch's modules, so its code may cast"
        yield Choice(path, module, why)


BORDER = "casts what enters it, as `keep` asked, guarded or not"


def is_border(module: nn.Module) -> bool:
    """Whether a module stands where a kept part of a model meets the rest; its casts are a part of the model."""
    card: Any = vars(module).get("_dtypeguard")
    return card is not None and bool(card.key.options.border)


def shallow_by(root: nn.Module, options: Options) -> str | None:
    """Why no module inside is guarded; None if they are."""
    if options.depth == "boundary":
        return 'is inside, and the depth is "boundary"'
    if options.depth == "auto" and options.dtype is not None:
        return "is inside, and dtype= holds for all parameters"
    if options.depth == "auto" and len({tensor.dtype for _, tensor, _ in floating(root)}) < 2:
        return "is inside, and all parameters have one dtype"
    return None


def owners(root: nn.Module, skip: tuple[Any, ...] = ()) -> Iterator[tuple[str, nn.Module]]:
    """The submodules that own floating parameters, with their paths, but those to skip."""
    for path, module in list(root.named_modules()):
        if path and no_owner(path, module, skip) is None:
            yield path, module


def no_owner(path: str, module: nn.Module, skip: tuple[Any, ...]) -> str | None:
    """Why a submodule has nothing to hold its inputs to, or must be left alone; None if neither."""
    held = [tensor.dtype for tensor in own_parameters(module).values() if tensor is not None]
    if not any(dtype in FLOATING for dtype in held):
        stored = next((dtype for dtype in held if TABLE[dtype].kind is Kind.STORAGE), None)
        if stored is not None:
            return f"stores its parameters in {name_of(stored)}, and computes in another dtype"
        return "has no floating parameters of its own"
    if not has_forward(module):
        return "has no forward"
    if any(matches(pattern, path, module) for pattern in skip):
        return "is named in skip_modules"
    return "is machinery of PyTorch" if isinstance(module, _MACHINERY) else None


def refuses_wider(module: nn.Module) -> bool:
    """Whether a module raises where its floating input is wider than its parameters."""
    return is_torch_own(type(module)) and not isinstance(module, WIDER) and not is_changed(module)


def is_changed(module: nn.Module) -> bool:
    """Whether another author's code has a part in what one of PyTorch's modules computes, and may cast.

    It may stand in a subclass, on the instance or in a parametrization, be patched over the class's forward, or be
    what the weights do by themselves.
    """
    parametrized = nn.utils.parametrize.is_parametrized(module)
    cls: Any = type(module).__bases__[0] if parametrized else type(module)
    order = [one for one in cls.__mro__ if "_dtypeguard_base" not in vars(one)]
    first = next(n for n, one in enumerate(order) if one.__module__.startswith("torch."))
    bases = [one for one in order[first:] if issubclass(one, nn.Module) and one is not nn.Module]
    names = {name for one in bases for name in (*vars(one), *annotations_of(one)) if not name.startswith("__")}
    names = names - {"extra_repr", "reset_parameters", "_reset_parameters"} | {"forward", "__getattr__"}
    own = {name: value for name, value in vars(module).items() if name in names and callable(value)}
    if "_hf_hook" in vars(module):  # accelerate's hooks move tensors; behind them stands the forward as it was
        own["forward"] = vars(module).get("_old_forward", order[first].forward)
    return (
        any(not names.isdisjoint(vars(one)) for one in order[:first])
        or not all(map(is_torch_code, (order[first].forward, *own.values())))
        or (parametrized and not all(is_torch_own(type(part)) for part in _parametrizations(module)))
        or not all(quiet(tensor) for tensor in own_parameters(module).values() if tensor is not None)
    )


def _parametrizations(module: Any) -> Iterator[nn.Module]:
    for parts in module.parametrizations.values():
        yield from parts


def is_torch_code(function: Any) -> bool:
    """Whether PyTorch wrote a function; a wrapper has its name, but not its code."""
    function = getattr(function, "__func__", function)
    note = signed(function)
    code = getattr(function if note is None else note[0], "__code__", None)
    return code is not None and str(code.co_filename).startswith(TORCH)


def has_forward(module: nn.Module) -> bool:
    """Whether a module can be called."""
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def refuse(model: Any, name: str = "guard") -> None:
    """A clear TypeError for what cannot be guarded; `name` is the function that was called."""
    refuse_no_module(name, model, "decorate functions with dtypeguard.enforce")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{type(model).__name__} is compiled by TorchScript: guard the model before jit.script or trace"
        )
    if not is_ready(model):
        raise TypeError(f"{type(model).__name__} is not initialized: call super().__init__() first")
    for path, module in model.named_modules():
        if any(isinstance(t, LAZY) for t in (*module._parameters.values(), *module._buffers.values())):
            where = f"its submodule {path!r}" if path else "it"
            raise TypeError(f"{where} is lazy and has no parameters yet: call the model once, then guard it")
    if not has_forward(model):
        raise TypeError(f"{type(model).__name__} has no forward: guard the modules in it, or the model that holds it")
