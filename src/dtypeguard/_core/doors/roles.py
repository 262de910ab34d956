"""Which arguments `anchor` and `mutates` may name."""

import inspect
from collections.abc import Collection
from typing import get_args, get_origin

import torch
from torch import nn

from ..base.pyproject import near
from ..contract.hints import UNIONS
from ..contract.model import Contract, Param
from ..contract.spec import FieldsSpec, OtherSpec, Spec, TensorSpec, UnionSpec, ValidatedSpec

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FIXED = (int, float, complex, bool, str, bytes, type(None))  # nothing writes to one


def check_roles(contract: Contract, mutates: Collection[str], unknown: Collection[str]) -> None:
    """Check what the user's `anchor` and `mutates` name, but for annotations that are `unknown` yet.

    Raises:
        ValueError: the function has no such parameter, or its annotation says that it cannot be one.
    """
    params = {param.name: param for param in contract.params}
    name, anchor = contract.function, contract.anchor if contract.named else None
    for stranger in sorted({*mutates, *filter(None, [anchor])} - set(params)):
        option = "anchor" if stranger == anchor else "mutates"
        told = f"{option}={stranger!r}: {name} has no such parameter{near(stranger, params)}"
        raise ValueError(f"{told}: its parameters are {', '.join(params)}")
    if anchor is not None and anchor not in unknown and not _anchors(params[anchor]):
        fit = [repr(param.name) for param in contract.params if param.name in unknown or _anchors(param)]
        others = f"use {' or '.join(fit)}" if fit else "no argument of it is one"
        kind = f"is {_shown(params[anchor])}, and only a tensor or an nn.Module has a dtype and a device to follow"
        raise ValueError(f"{name} cannot follow anchor={anchor!r}: it {kind}; {others}")
    for one in sorted(set(mutates) - set(unknown)):
        if _types(params[one].spec) and all(cls in _FIXED for cls in _types(params[one].spec)):
            raise ValueError(f"{name} cannot write to {one!r}: it is {_shown(params[one])}, which nothing can change")


def _shown(param: Param) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(param.kind, "")
    return f"`{star}{param.name}`" if star else f"annotated as {param.spec.hint if param.spec is not None else 'Any'}"


def _anchors(param: Param) -> bool:
    return param.kind not in _SEVERAL and _may_anchor(param.spec)


def _may_anchor(spec: Spec | None) -> bool:
    """Whether a value that fits may be a tensor or a module; a class of the user's may be the base of a module."""
    if isinstance(spec, UnionSpec):
        return any(map(_may_anchor, spec.options))
    if isinstance(spec, ValidatedSpec):
        return _may_anchor(spec.spec)
    if isinstance(spec, TensorSpec):
        return not isinstance(spec.array_type, type) or issubclass(torch.Tensor, spec.array_type) or spec.torch_only
    if isinstance(spec, FieldsSpec):
        return issubclass(spec.origin, nn.Module)
    if isinstance(spec, OtherSpec):
        classes = _types(spec)
        return not classes or not all(cls.__module__ == "builtins" and cls is not object for cls in classes)
    return spec is None


def _types(spec: Spec | None) -> tuple[type, ...]:
    """The classes of which a value must be; none where a hint asks something else."""
    if not isinstance(spec, OtherSpec):
        return ()
    hint = spec.annotation
    options = [get_origin(one) or one for one in (get_args(hint) if get_origin(hint) in UNIONS else (hint,))]
    return tuple(options) if all(isinstance(one, type) for one in options) else ()
