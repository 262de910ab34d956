"""DG501 to DG504, DG506: what a module has besides parameters, when it is converted and in forward."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .._dtypes import name_of
from .._ledger import listed
from .._rules import Severity
from ._events import Call, on
from ._lineage import Cause, Node
from ._recorder import Recorder
from ._sites import Site

_HALF = frozenset([torch.float16, torch.bfloat16])
_CONVERT = "to half bfloat16 float double cuda cpu".split()
_MANY = 1000  # plain attributes of one module


@dataclass(eq=False)
class Stays(Cause):
    """A fact of a module that harms only where it is used."""

    rule: str
    site: Site
    module: str | None
    facts: dict[str, Any]
    fields: dict[str, Any]
    said: bool = False

    def enter(self, audit: Recorder) -> None:
        audit.find(self.rule, self.site, module=self.module, facts={**self.facts, "effect": ""}, **self.fields)

    def blame(self, audit: Recorder, effect: str) -> None:
        if not self.said:
            self.said = True
            facts = {**self.facts, "effect": f": {effect}"}
            audit.find(self.rule, self.site, module=self.module, facts=facts, severity=Severity.WARNING, **self.fields)


# ---------------------------------------------------------------- DG501, DG503: conversion


@dataclass
class Depth:
    converting: int = 0


@on("start", "DG501", "DG503")
def replace(audit: Recorder) -> None:
    for name in _CONVERT:
        audit.patches.replace(nn.Module, name, functools.partial(_conversion, audit))


def _conversion(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        depth = audit.state(Depth)
        if not audit.live or audit.local.paused or depth.converting:
            return original(self, *args, **kwargs)
        before = audit.guarded(_buffers, self) or {}
        depth.converting += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            depth.converting -= 1
        audit.guarded(_converted, audit, self, original.__name__, args, kwargs, before, audit.user())
        return result

    return convert


def _buffers(model: nn.Module) -> dict[tuple[str, str], torch.dtype]:
    return {
        (path, name): buffer.dtype
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.dtype.is_floating_point
    }


def _converted(
    audit: Recorder, model: nn.Module, name: str, args: Any, kwargs: Any, before: dict[tuple[str, str], torch.dtype],
    site: Site,
) -> None:  # fmt: skip
    device, dtype = _target(name, args, kwargs)
    root = audit.path_of(model)
    for path, module in model.named_modules():
        full = f"{root}.{path}" if path else root
        for key, buffer in module._buffers.items():
            was = before.get((path, key))
            if buffer is not None and was is not None and was.itemsize > buffer.dtype.itemsize:
                facts = {"buffer": key, "module": full, "was": name_of(was), "dtype": name_of(buffer.dtype)}
                fields = {"from_dtype": was, "to_dtype": buffer.dtype, "bytes": buffer.nbytes, "op": f"Module.{name}"}
                cause = Stays("DG501", site, full, facts, fields)
                audit.lineage.set(buffer, Node(f"buffer {full}.{key}", site, buffer.dtype, cause=cause, named=True))
                cause.enter(audit)
        for key, tensor in _plain(module):
            _left_behind(audit, full, key, tensor, device, dtype, name, site)


def _target(name: str, args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    if name == "to":
        parsed = torch._C._nn._parse_to(*args, **kwargs)
        return parsed[0], parsed[1]
    if name in ("cuda", "cpu"):
        device = args[0] if args else kwargs.get("device")
        device = f"cuda:{device}" if isinstance(device, int) else device
        return torch.device(device or name), None
    dtypes = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
    return None, dtypes[name]


def _plain(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are attributes, by themselves or in a list or dict, and neither parameters nor buffers."""
    registered = {"_parameters", "_buffers", "_modules"}
    for key, value in list(vars(module).items())[:_MANY]:
        if isinstance(value, Tensor):
            yield key, value
        elif key not in registered and type(value) in (list, tuple, dict):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for place, part in list(parts)[:_MANY]:
                if isinstance(part, Tensor):
                    yield f"{key}[{place!r}]", part


def _left_behind(
    audit: Recorder, path: str, key: str, tensor: Tensor, device: torch.device | None, dtype: torch.dtype | None,
    name: str, site: Site,
) -> None:  # fmt: skip
    stays = []
    if dtype is not None and tensor.dtype.is_floating_point and tensor.dtype is not dtype:
        stays.append(name_of(tensor.dtype))
    if device is not None and tensor.device.type != device.type:
        stays.append(f"on {tensor.device}")
    if not stays:
        return
    change = f"`.{name}()`" if name != "to" else f"`.to({', '.join(str(part) for part in (device, dtype) if part)})`"
    facts = {"attribute": key, "module": path, "change": change, "stays": " ".join(stays)}
    fields = {"from_dtype": tensor.dtype, "to_dtype": dtype, "bytes": tensor.nbytes, "op": f"Module.{name}"}
    cause = Stays("DG503", site, path, facts, fields)
    known = audit.lineage.get(tensor)
    parents = () if known is None else (known,)
    audit.lineage.set(tensor, Node(f"attribute {path}.{key}", site, tensor.dtype, parents, cause=cause, named=True))
    cause.enter(audit)


# ---------------------------------------------------------------- DG502


@on("entered", "DG502")
def running_statistics(call: Call, audit: Recorder) -> None:
    module = call.module
    if not isinstance(module, _NormBase) or not module.training or not module.track_running_stats:
        return
    for key in ("running_mean", "running_var"):
        buffer = module._buffers.get(key)
        if buffer is not None and buffer.dtype in _HALF:
            momentum = 0.0 if module.momentum is None else module.momentum
            facts = {"buffer": key, "module": call.path, "dtype": name_of(buffer.dtype), "momentum": momentum}
            audit.find(
                "DG502", audit.here(), module=call.path, op=type(module).__name__, facts=facts,
                from_dtype=buffer.dtype, to_dtype=torch.float32, bytes=buffer.nbytes,
            )  # fmt: skip
            return


# ---------------------------------------------------------------- DG504


@on("entered", "DG504")
def remember_buffers(call: Call, audit: Recorder) -> None:
    if call.module._buffers:
        call.kept["DG504"] = {key: b.dtype for key, b in call.module._buffers.items() if b is not None}


@on("left", "DG504")
def compare_buffers(call: Call, audit: Recorder) -> None:
    for key, was in call.kept.get("DG504", {}).items():
        buffer = call.module._buffers.get(key)
        if buffer is None or buffer.dtype is was or not was.is_floating_point:
            continue
        node = audit.lineage.get(buffer)
        site = audit.here() if node is None else node.site
        facts = {"buffer": key, "module": call.path, "was": name_of(was), "dtype": name_of(buffer.dtype)}
        fields = {"from_dtype": was, "to_dtype": buffer.dtype, "bytes": buffer.nbytes, "op": "forward"}
        cause = Stays("DG504", site, call.path, facts, fields)
        cause.enter(audit)
        if node is not None:
            node.cause = cause


# ---------------------------------------------------------------- DG506


@dataclass
class Seen:
    roots: set[int] = field(default_factory=set)


@on("entered", "DG506")
def parameters_agree(call: Call, audit: Recorder) -> None:
    """Once for each outermost module: whether its parameters have one dtype."""
    seen = audit.state(Seen).roots
    if audit.local.modules or id(call.module) in seen:
        return
    seen.add(id(call.module))
    parameters = [(name, p) for name, p in call.module.named_parameters() if p.dtype.is_floating_point]
    sizes: dict[torch.dtype, int] = {}
    for _, parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if len(sizes) < 2:
        return
    usual = max(sizes, key=lambda dtype: sizes[dtype])
    odd = [(name, parameter) for name, parameter in parameters if parameter.dtype is not usual]
    facts = {
        "names": listed(name for name, _ in odd), "found": " and ".join(sorted({name_of(p.dtype) for _, p in odd})),
        "module": call.path, "expected": name_of(usual), "effect": "",
    }  # fmt: skip
    audit.find(
        "DG506", audit.here(), module=call.path, op="forward", facts=facts, parameters=[name for name, _ in odd],
        from_dtype=odd[0][1].dtype, to_dtype=usual, bytes=sum(p.nbytes for _, p in odd),
    )  # fmt: skip
