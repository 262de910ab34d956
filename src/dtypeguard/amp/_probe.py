"""Which dtype autocast has where the model computes."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._core.check.regions import autocast_enabled
from ._tensors import spread

# In eval these leave their fused kernels where a module inside has hooks, and give other last digits.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class Probe:
    """Hooks that look at the forwards of one step: the last one counts, and layers know better than the door."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._looks: list[_Look] = []

    def dtype(self, parameters: Iterable[Tensor]) -> torch.dtype | None:
        """What autocast computed in, where a model has these parameters; float16 if any layer saw that."""
        mine = {id(parameter) for parameter in parameters}
        met = [look for look in self._looks if look.met and mine & look.parameters]
        seen = {look.dtype for look in [look for look in met if look.layer] or met}
        return torch.float16 if torch.float16 in seen else next(iter(seen), None)

    def arm(self, models: list[nn.Module], held: set[int]) -> None:
        """Look at the next forwards: at the models' doors, and at a few layers, as autocast may begin or end inside.

        Layers are those whose parameters are trained, by their ids in `held`.
        """
        self.disarm()
        for model in models:
            fused = {part for module in model.modules() if isinstance(module, _FUSED) for part in module.modules()}
            modules = [module for module in model.modules() if module not in fused]
            own = {m: [p for p in m._parameters.values() if p is not None] for m in modules}
            owners = [m for m in modules if any(id(p) in held and p.ndim > 1 for p in own[m])]
            for module in {m: None for m in (model, *spread(owners, 4)) if m not in fused}:
                if not isinstance(module, torch.jit.ScriptModule):
                    look = _Look(module, module in owners)
                    self._looks.append(look)
                    self._handles.append(module.register_forward_pre_hook(look))

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._looks = []


def compiles() -> bool:
    """Whether something in this process asked for `torch.compile`.

    Dynamo guards on the hooks that are on when it first traces a module, and would trace it anew once they are gone.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return any(map(callable, getattr(dynamo, "cached_backends", {}).values()))


class _Look:
    """A forward pre-hook; copies and pickles of the module get one that does nothing."""

    met = False
    dtype: torch.dtype | None = None

    def __init__(self, module: nn.Module | None, layer: bool = False) -> None:
        self.layer, self.on = layer, module is not None
        self.parameters = {id(p) for p in module.parameters(recurse=not layer)} if module is not None else set[int]()

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not self.on or not (module.training and torch.is_grad_enabled()):
            return
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        self.met, self.dtype = True, torch.get_autocast_dtype(device) if autocast_enabled(device) else None

    def __reduce__(self) -> Any:
        return _Look, (None,)
