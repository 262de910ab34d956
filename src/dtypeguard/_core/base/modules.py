"""One walk over a model: modules, what they hold, and what it is called."""

import re
from collections.abc import Iterator
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
