"""The twin of a model that a dry run calls in the model's place: the same modules, with ghosts for weights.

A model whose weights are few and there is copied with its values, so that what its values decide is decided as they do.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.modules import root_of
from ..._core.base.options import refuse_no_module
from ..._core.contract.anchor import LAZY
from ..._core.doors.guard import unguard
from ..calls import Inputs
from .ghosts import Ghosts
from .mode import SMALL

FEW = 2**22  # elements of all parameters of a model that is copied with its values


class Original:
    """The user's model, of which twins are made; nothing of it is changed."""

    def __init__(self, model: Any) -> None:
        root = root_of(model)
        refuse_no_module("dryrun", root, "write a module that calls it")
        if isinstance(root, torch.jit.ScriptModule):
            raise TypeError(
                f"{type(root).__name__} is a ScriptModule, whose code is no Python: pass the model it is of"
            )
        lazy = [name for name, tensor in root.named_parameters() if isinstance(tensor, LAZY)]
        if lazy:
            raise TypeError(f"parameter {lazy[0]} of {type(root).__name__} has no shape yet: call the model once first")
        self._root = root
        parameters = {id(p): p for p in root.parameters()}.values()
        self._few = sum(p.numel() for p in parameters) <= FEW and not any(p.is_meta for p in parameters)

    def twin(self, ghosts: Ghosts, device: torch.device) -> nn.Module:
        """A model that shares nothing with the user's, without a guard, and in the user's dtypes."""
        memo: dict[int, Any] = {}
        for tensor in _all_tensors(self._root):
            if type(tensor) in (nn.Parameter, Tensor, nn.Buffer):
                memo[id(tensor)] = self._copied(ghosts, tensor, device)
        try:
            model: nn.Module = copy.deepcopy(self._root, memo)
        except Exception as error:
            told = f"{type(self._root).__name__} cannot be copied, so it cannot be run dry: {error}"
            raise TypeError(told) from error
        return unguard(model)

    def _copied(self, ghosts: Ghosts, tensor: Tensor, device: torch.device) -> Tensor:
        """The values of a tensor where they are few and there, else a ghost; of parameters all are copied, or none."""
        parameter = type(tensor) is nn.Parameter
        few = (self._few and tensor.numel() <= FEW) or (not parameter and tensor.numel() <= SMALL)
        if few and not tensor.is_meta:
            data = tensor.detach().clone()
        else:
            data = ghosts.of(tensor.detach(), device=device if tensor.is_meta else tensor.device)
        if parameter:
            data = nn.Parameter(data, tensor.requires_grad)
            vars(data).update(vars(tensor))
        return data


def _all_tensors(root: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and tensors that are plain attributes."""
    for module in root.modules():
        for table in (module._parameters, module._buffers, vars(module)):
            yield from (value for value in table.values() if isinstance(value, Tensor))


def attributes_of(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are plain attributes, which `.to()` does not reach, with their paths."""
    for path, module in root.named_modules():
        yield from (
            (f"{path}.{name}".lstrip("."), value) for name, value in vars(module).items() if isinstance(value, Tensor)
        )


def inputs_of(given: Inputs, dtype: torch.dtype | None, ghosts: Ghosts, device: torch.device) -> Inputs:
    """The example in a dtype: its values where they are few and there, else ghosts."""

    def change(_: str, tensor: Tensor) -> Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.layout is torch.strided and (tensor.is_meta or tensor.numel() > SMALL):
            made = ghosts.of(tensor.detach(), wanted, device)
        else:
            made = tensor.detach().to(device=device, dtype=wanted, copy=True)
        return made.requires_grad_(tensor.requires_grad)

    return given.map(change)
