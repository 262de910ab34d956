"""Which dtypes an argument may have: the reference checker is asked with a tensor of each."""

import contextlib
import dataclasses
import inspect
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import nn

from ..base.dtypes import AUTOCAST, FLOATING, TABLE, Kind
from ..base.errors import DtypeError
from ..base.quiet import quiet
from ..contract.model import Contract, Param
from ..contract.spec import Spec, TensorSpec, walk
from .reference import collect

_ORDINARY = frozenset(dtype for dtype, info in TABLE.items() if info.kind is not Kind.STORAGE)


def arrays(spec: Spec | None) -> list[TensorSpec]:
    """The arrays that an annotation names, each once."""
    return list(dict.fromkeys(part for part in walk(spec) if isinstance(part, TensorSpec)))


def accepted(
    contract: Contract, module: nn.Module, param: Param, spec: TensorSpec | None, device: torch.device | None
) -> tuple[tuple[torch.dtype, ...], tuple[torch.dtype, ...]]:
    """The dtypes that one array of an argument may have in a call without other tensors, and those within autocast.

    Args:
        contract: of the module's forward.
        module: the module that is called.
        param: the argument.
        spec: of one array in its annotation; None for an argument without one, of which floating dtypes are asked.
        device: where a tensor must be; None for anywhere.
    """
    place = device or torch.device("cpu")
    if spec is not None and not spec.torch_only:  # of a NumPy array the annotation says it all
        dtypes = tuple(dtype for dtype in TABLE if spec.dtypes is None or dtype in spec.dtypes)
        return dtypes, dtypes
    asked = FLOATING if spec is None else AUTOCAST | (_ORDINARY if spec.dtypes is None else spec.dtypes)
    fresh = dataclasses.replace(param, spec=spec)
    params = tuple(fresh if one is param else one for one in contract.params)
    alone = dataclasses.replace(contract, params=params, plans=[])
    probes = [(dtype, _values(alone, module, fresh, probe)) for dtype, probe in _probes(asked, place)]
    outside, within = (
        tuple(dtype for dtype, values in probes if _right(alone, values, place, region)) for region in (False, True)
    )
    return outside, within


def _probes(dtypes: Container[torch.dtype], device: torch.device) -> Iterator[tuple[torch.dtype, torch.Tensor]]:
    for dtype in (dtype for dtype in TABLE if dtype in dtypes):
        # Some devices have no such tensors, and of complex32 PyTorch warns.
        with contextlib.suppress(RuntimeError, TypeError), quiet():
            yield dtype, torch.empty(1, dtype=dtype, device=device)


def _values(contract: Contract, module: nn.Module, param: Param, probe: Any) -> tuple[Any, ...]:
    """The values of a call that passes nothing else."""
    if param.kind is inspect.Parameter.VAR_POSITIONAL:
        probe = (probe,)
    elif param.kind is inspect.Parameter.VAR_KEYWORD:
        probe = {"": probe}
    empty: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    return (module, *(probe if one is param else empty.get(one.kind, one.default) for one in contract.params[1:]))


def _right(contract: Contract, values: tuple[Any, ...], device: torch.device, region: bool) -> bool:
    """Whether the checker finds nothing wrong with the dtype, within autocast or not; sizes are not asked."""
    around: Any = contextlib.nullcontext()
    with contextlib.suppress(RuntimeError):  # a device that autocast does not know, such as meta
        around = torch.autocast(device.type, enabled=region)
    with around:
        call = collect(contract, values)  # another argument may bind its axes
    return all(violation.error is not DtypeError for violation in call.violations)
