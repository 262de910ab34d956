"""Which dtype autocast has where the model computes.

Floor 5.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ._tensors import spread


class Probe:
    """Hooks that look once, at the next forward in training, and are gone then."""

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None
        self._handles: list[RemovableHandle] = []

    def arm(self, models: list[nn.Module]) -> None:
        """Look at the next forward: at the model's door, and at a few layers, for autocast may begin inside."""
        self.disarm()
        for model in models:
            owners = [m for m in model.modules() if any(p is not None and p.ndim > 1 for p in m._parameters.values())]
            for module in {model: None, **dict.fromkeys(spread(owners, 4))}:
                if not isinstance(module, torch.jit.ScriptModule):
                    self._handles.append(module.register_forward_pre_hook(_Look(self)))

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Look:
    """A forward pre-hook; copies and pickles of the module get one that does nothing."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe: Probe | None = probe

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._probe is None or not (module.training and torch.is_grad_enabled()):
            return
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        if torch.is_autocast_enabled(device):
            self._probe.dtype = torch.get_autocast_dtype(device)
        self._probe = None

    def __reduce__(self) -> Any:
        return _Look, (None,)
