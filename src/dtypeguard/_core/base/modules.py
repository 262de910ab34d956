"""One walk over a model: modules, what they hold, and what it is called."""

import contextlib
import copy
import re
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

# What wrappers put into the names of what they wrap: torch.compile, FSDP, checkpoint_wrapper, Fabric, PEFT.
_WRAPPERS = re.compile(
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module|base_layer"
    r"|original_module)\."
)


# Wrappers whose own forward only passes the call on: what they hold is the model.
_PASSING = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
}


def root_of(model: Any) -> Any:
    """What a compiled or data-parallel wrapper holds; any other model itself."""
    while isinstance(model, nn.Module):
        held = next((_PASSING[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in _PASSING), None)
        if held is None:
            break
        model = getattr(model, held)
    return model


def walk(root: nn.Module, again: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """A module and all in it, whatever its class has made of `named_modules` and of hashing.

    Each is given once; with `again` by each of its paths, as a `state_dict` has it.
    """
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module, tuple[int, ...]]] = [("", root, ())]
    while stack:
        path, module, above = stack.pop()
        if id(module) in (above if again else seen):
            continue
        seen.add(id(module))
        yield path, module
        children = vars(module).get("_modules")
        if children:
            above, start = (*above, id(module)) if again else (), path and f"{path}."
            stack += [(start + name, child, above) for name, child in reversed(children.items()) if child is not None]


def copy_of(model: nn.Module) -> nn.Module:
    """A deep copy; a function that was set on a module, as its forward, computes with the copy's modules too.

    `copy.deepcopy` leaves functions as they are, so what they hold is that of the model. Recurrent layers on a GPU run
    as in training without dropout, which is the same function, as cuDNN refuses their backward otherwise.
    """
    memo: dict[int, Any] = {}
    made: nn.Module = copy.deepcopy(model, memo)
    for _, module in walk(made):
        own = vars(module)
        own.update({name: _of_copy(value, memo) for name, value in own.items() if isinstance(value, FunctionType)})
        if isinstance(module, nn.RNNBase) and any(one.is_cuda for one in module.parameters()):
            if not module.training:
                module.training, module.dropout = True, 0.0
            module.flatten_parameters()
    return made


def _of_copy(value: Any, memo: dict[int, Any]) -> Any:
    """What stands for a value where `memo` has what was copied."""
    if isinstance(value, nn.Module | Tensor):
        return memo.get(id(value), value)
    if isinstance(value, MethodType):
        owner = _of_copy(value.__self__, memo)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if not isinstance(value, FunctionType) or id(value) in memo:
        return memo.get(id(value), value)
    memo[id(value)] = value  # it may hold itself
    cells = tuple(_cell_of_copy(cell, memo) for cell in value.__closure__ or ())
    defaults = tuple(_of_copy(one, memo) for one in value.__defaults__ or ())
    named = {name: _of_copy(one, memo) for name, one in (value.__kwdefaults__ or {}).items()}
    before = [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if all(a is b for a, b in zip(before, (*cells, *defaults, *named.values()), strict=True)):
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, defaults or None, cells or None)
    made.__kwdefaults__, made.__qualname__, made.__doc__ = named or None, value.__qualname__, value.__doc__
    made.__annotations__, made.__module__ = value.__annotations__, value.__module__
    made.__dict__.update(value.__dict__)
    memo[id(value)] = made
    return made


def _cell_of_copy(cell: CellType, memo: dict[int, Any]) -> CellType:
    with contextlib.suppress(ValueError):  # which is empty
        if (other := _of_copy(cell.cell_contents, memo)) is not cell.cell_contents:
            return CellType(other)
    return cell


def tensors_below(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, str, Tensor]]:
    """The parameters and buffers of a module and of all in it: path and module, kind, name, tensor."""
    for path, module in walk(root):
        for kind, name, tensor in tensors_of(module):
            yield path, module, kind, name, tensor


def inside(path: str, name: str) -> str:
    """The path of what is in a module."""
    return f"{path}.{name}" if path and name else path or name


def tensors_of(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Its own parameters and buffers: kind, name, tensor."""
    own = vars(module)
    for kind, where in (("parameter", "_parameters"), ("buffer", "_buffers")):
        held = own.get(where)
        for name, tensor in held.items() if held else ():
            if tensor is not None:
                yield kind, name, tensor


def unwrapped(name: str) -> str:
    """The name that the model's author gave a tensor: without what wrappers put into it."""
    return _WRAPPERS.sub("", name) if "_mod" in name or "base_layer" in name else name
