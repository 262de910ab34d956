"""A model in a low dtype of which some modules stay in float32: guards cast at the borders between both."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn

from ..._core.base.config import Autocast, Mode, Verify
from ..._core.base.dtypes import FLOATING, name_of
from ..._core.base.errors import CompareError
from ..._core.doors.choose import owners, refuses_wider
from ..._core.doors.forward import Options
from ..._core.doors.guard import border
from .subject import widest

_OPTIONS = Options(
    mode=Mode.LENIENT, casting=None, depth="boundary", dtype=None, device=None, autocast=None, skip_args=frozenset(),
    move_args=frozenset(), verify=Verify.NEVER, non_blocking=False, output_dtype=None, border=True,
)  # fmt: skip


def keep_wide(
    model: nn.Module, names: Iterable[str], narrow: Iterable[str], dtype: torch.dtype | None, cast: Iterable[str] = ()
) -> None:
    """Convert a model in place, but for the modules of these names, and have guards cast what goes into them.

    The results of `narrow` are cast to the low dtype, and the inputs of `cast`, besides those of PyTorch's modules that
    refuse wider ones. For autocast there is no dtype, and the model stays as it is.
    """
    kept, narrow, cast = [*names], frozenset(narrow), frozenset(cast)
    inside = {id(part) for name in kept for part in model.get_submodule(name).modules()}
    held = {
        id(tensor)
        for module in model.modules()
        if id(module) in inside
        for tensor in (*module._parameters.values(), *module._buffers.values())
    }
    if dtype is not None:
        convert(model, dtype, held)
    for module in model.modules() if kept else ():
        if isinstance(module, nn.TransformerEncoderLayer | nn.MultiheadAttention):
            module.register_forward_pre_hook(_no_fast_path)
    for name in kept:
        output = None if name not in narrow else dtype
        autocast = Autocast.DISABLE if dtype is None else None
        options = dataclasses.replace(_OPTIONS, output_dtype=output, autocast=autocast)
        border(model.get_submodule(name), name, options, _parent(model, name))
    if dtype is not None:
        for name, module in model.named_modules():
            if name in cast and id(module) not in inside:
                border(module, name, _OPTIONS, _parent(model, name))
        for name, module in owners(model):
            if id(module) not in inside and refuses_wider(module):
                border(module, name, _OPTIONS, _parent(model, name))


def _no_fast_path(module: nn.Module, args: tuple[Any, ...]) -> None:
    """PyTorch's fast path computes past the modules that are kept; where there is a hook, it is off."""


def _parent(model: nn.Module, name: str) -> nn.Module | None:
    return model.get_submodule(name.rpartition(".")[0]) if name else None


def convert(model: nn.Module, dtype: torch.dtype, held: Collection[int] = ()) -> None:
    """What `model.to(dtype)` does to floating tensors, but for those that are held."""
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in held and parameter.dtype in FLOATING:
                parameter.data = parameter.data.to(dtype)
                if parameter.grad is not None:
                    parameter.grad.data = parameter.grad.data.to(dtype)
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in held and buffer.dtype in FLOATING:
                module._buffers[name] = buffer.to(dtype)


def modules_of(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """The modules of a model; raises CompareError if it lacks one of these names."""
    modules = dict(model.named_modules())
    missing = [name for name in names if name not in modules]
    if missing:
        raise CompareError(
            f"{type(model).__name__} has no module {missing[0]!r}: apply what `keep` returns to the model that was "
            "compared, or to one that is built alike"
        )
    return modules


def check_fits(
    model: nn.Module, names: Iterable[str], dtype: torch.dtype | None, wide: torch.dtype, others: Iterable[str] = ()
) -> None:
    """Raises CompareError for a model that lacks one of the modules, or whose weights are rounded already.

    `others` are modules that are not kept, and have casts at their borders.
    """
    modules = modules_of(model, (*names, *others))
    own = widest(model)
    lost = f"already, so its digits are lost: apply what `keep` returns to the model in {name_of(wide)}"
    if torch.finfo(own).eps > torch.finfo(wide).eps:
        raise CompareError(f"{type(model).__name__} has {name_of(own)} parameters {lost}")
    for name in names:
        for key, parameter in modules[name].named_parameters():
            if dtype is not None and torch.finfo(parameter.dtype).eps >= torch.finfo(dtype).eps:
                raise CompareError(f"parameter {f'{name}.{key}' if name else key} is {name_of(parameter.dtype)} {lost}")
