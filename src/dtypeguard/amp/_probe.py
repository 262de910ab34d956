"""Which dtype autocast has where the model computes."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .._check.reference import autocast_enabled
from ._tensors import spread

# In eval these leave their fused kernels where a module inside has hooks, and give other last digits.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class Probe:
    """Hooks that look at the forwards of one step: the last one counts, and layers know better than the door."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._seen: dict[bool, dict[int, torch.dtype | None]] = {}

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computed in; float16 if any layer saw that."""
        seen = set((self._seen.get(True) or self._seen.get(False) or {}).values())
        return torch.float16 if torch.float16 in seen else next(iter(seen), None)

    def arm(self, models: list[nn.Module], held: set[int]) -> None:
        """Look at the next forwards: at the models' doors, and at a few layers, as autocast may begin or end inside.

        Layers are those whose parameters are trained, by their ids in `held`.
        """
        self.disarm()
        for model in models:
            fused = {part for module in model.modules() if isinstance(module, _FUSED) for part in module.modules()}
            modules = [module for module in model.modules() if module not in fused]
            owners = [
                m for m in modules if any(id(p) in held and p.ndim > 1 for p in m._parameters.values() if p is not None)
            ]
            for module in {m: None for m in (model, *spread(owners, 4)) if m not in fused}:
                if not isinstance(module, torch.jit.ScriptModule):
                    hook = _Look(self._seen.setdefault(module in owners, {}))
                    self._handles.append(module.register_forward_pre_hook(hook))

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen = {}


def compiles() -> bool:
    """Whether something in this process asked for `torch.compile`.

    Dynamo guards on the hooks that are on when it first traces a module, and would trace it anew once they are gone.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return any(map(callable, getattr(dynamo, "cached_backends", {}).values()))


class _Look:
    """A forward pre-hook; copies and pickles of the module get one that does nothing."""

    def __init__(self, seen: dict[int, torch.dtype | None] | None) -> None:
        self._seen = seen

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._seen is None or not (module.training and torch.is_grad_enabled()):
            return
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        self._seen[id(module)] = torch.get_autocast_dtype(device) if autocast_enabled(device) else None

    def __reduce__(self) -> Any:
        return _Look, (None,)
