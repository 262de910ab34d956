"""DG501 to DG504, DG506: what a module has besides parameters, when it is converted and in forward."""

import functools
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from .._base.dtypes import name_of
from .._watch.events import Call, on
from .._watch.ledger import listed
from .._watch.lineage import Cause, Node
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site
from .._watch.text import size_of, tensors_of, walk

_C: Any = torch._C  # which torch leaves untyped
_HALF = frozenset([torch.float16, torch.bfloat16])
_CONVERT = "to half bfloat16 float double cuda cpu".split()
_MANY = 1000  # plain attributes of one module
_MOST = 4  # times as many parameters as there are others tell the dtype of a model


@dataclass(eq=False)
class Stays(Cause):
    """A fact of one tensor of a module, which harms only where it is used."""

    rule: str
    site: Site
    module: str
    name: str  # in the module
    facts: dict[str, Any]
    fields: dict[str, Any]
    said: bool = False

    def blame(self, audit: Recorder, effect: str) -> None:
        if not self.said:
            self.said = True
            enter(audit, [self], self.module, [self.name], f": {effect}", Severity.WARNING)


def enter(
    audit: Recorder,
    group: list[Stays],
    module: str,
    names: list[str],
    effect: str = "",
    severity: Severity | None = None,
) -> None:
    """One finding for tensors to which the same happened."""
    first = group[0]
    kind = {"DG503": "attribute"}.get(first.rule, "buffer") + ("s" if len(names) > 1 else "")
    facts = {
        **first.facts,
        "which": f"{kind} {listed(names)}",
        "name": re.sub(r"\W+", "_", first.name).strip("_"),
        "module": module,
        "effect": effect,
    }
    size = sum(stays.fields["bytes"] for stays in group)
    fields = {**first.fields, "bytes": size, "parameters": names}
    about = f"{first.module}.{first.name}" if len(group) == 1 else None
    worse = severity is not None
    audit.find(
        first.rule, first.site, module=module, facts=facts, severity=severity, about=about, again=worse, **fields
    )


# ---------------------------------------------------------------- DG501, DG503: conversion


@dataclass
class Depth:
    converting: int = 0


@dataclass(eq=False)
class Converted(Cause):
    """A parameter has its dtype since a module was converted: a whole model, or a part of one by itself."""

    module: weakref.ref[nn.Module]

    def blame(self, audit: Recorder, effect: str) -> None:
        """It is no fault by itself."""


@on("start", "DG101", "DG102", "DG110", "DG501", "DG503", "DG506")
def replace(audit: Recorder) -> None:
    for name in _CONVERT:
        audit.patches.replace(nn.Module, name, functools.partial(_conversion, audit))


def _conversion(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        depth = audit.state(Depth)
        if not audit.live or audit.local.paused or depth.converting:
            return original(self, *args, **kwargs)
        before = audit.guarded(_floating, self) or {}
        depth.converting += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            depth.converting -= 1
        audit.guarded(_converted, audit, self, original.__name__, args, kwargs, before, audit.user())
        return result

    return convert


def _floating(model: nn.Module) -> dict[tuple[str, str], torch.dtype]:
    return {
        (path, name): tensor.dtype
        for path, module in walk(model)
        for _, name, tensor in tensors_of(module)
        if tensor.dtype.is_floating_point
    }


def _converted(
    audit: Recorder, model: nn.Module, name: str, args: Any, kwargs: Any, before: dict[tuple[str, str], torch.dtype],
    site: Site,
) -> None:  # fmt: skip
    device, dtype = _target(name, args, kwargs)
    root = audit.path_of(model)
    groups: dict[tuple[Any, ...], list[tuple[str, Stays]]] = {}
    for path, module in walk(model):
        full = f"{root}.{path}" if path else root
        found = [
            *_narrowed(module, path, full, before, name, site),
            *_left_behind(module, full, device, dtype, name, site),
        ]
        for part, own, parameter in tensors_of(module):
            changed = before.get((path, own), parameter.dtype) is not parameter.dtype
            if part == "parameter" and changed and not isinstance(module, ScriptModule):
                title, since = f"parameter {full}.{own}", Node(f"Module.{name}", site, parameter.dtype)
                node = Node(title, site, parameter.dtype, (since,), cause=Converted(weakref.ref(model)), named=True)
                audit.lineage.hold(module, own, parameter, node)
        for tensor, stays in found:
            kind = "attribute" if stays.rule == "DG503" else "buffer"
            known = audit.lineage.get(tensor)
            parents = () if known is None else (known,)
            node = Node(f"{kind} {full}.{stays.name}", site, tensor.dtype, parents, cause=stays, named=True)
            audit.lineage.set(tensor, node)
            key = stays.rule, stays.fields["from_dtype"], stays.fields["to_dtype"], tuple(stays.facts.values())
            groups.setdefault(key, []).append((f"{path}.{stays.name}" if path else stays.name, stays))
    for group in groups.values():
        first = group[0][1]
        if len(group) == 1:
            enter(audit, [first], first.module, [first.name])
        else:
            enter(audit, [stays for _, stays in group], root, [name for name, _ in group])


def _narrowed(
    module: nn.Module, path: str, full: str, before: dict[tuple[str, str], torch.dtype], name: str, site: Site
) -> Iterator[tuple[Tensor, Stays]]:
    for kind, key, buffer in tensors_of(module):
        was = before.get((path, key)) if kind == "buffer" else None
        if was is not None and was.itemsize > buffer.dtype.itemsize:
            facts = {"was": name_of(was), "dtype": name_of(buffer.dtype)}
            fields = {"from_dtype": was, "to_dtype": buffer.dtype, "bytes": size_of(buffer), "op": f"Module.{name}"}
            yield buffer, Stays("DG501", site, full, key, facts, fields)


def _target(name: str, args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    if name == "to":
        parsed = _C._nn._parse_to(*args, **kwargs)
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
    module: nn.Module, full: str, device: torch.device | None, dtype: torch.dtype | None, name: str, site: Site
) -> Iterator[tuple[Tensor, Stays]]:
    for key, tensor in _plain(module):
        stays = []
        if dtype is not None and tensor.dtype.is_floating_point and tensor.dtype is not dtype:
            stays.append(name_of(tensor.dtype))
        if device is not None and tensor.device.type != device.type:
            stays.append(f"on {tensor.device}")
        if stays:
            target = ", ".join(str(part) for part in (device, dtype) if part is not None and name == "to")
            facts = {"change": f"`.{name}({target})`", "stays": " ".join(stays)}
            fields = {"from_dtype": tensor.dtype, "to_dtype": dtype, "bytes": size_of(tensor), "op": f"Module.{name}"}
            yield tensor, Stays("DG503", site, full, key, facts, fields)


# ---------------------------------------------------------------- DG502


@on("entered", "DG502")
def running_statistics(call: Call, audit: Recorder) -> None:
    module = call.module
    if not isinstance(module, _NormBase) or not module.training or not module.track_running_stats:
        return
    for key in ("running_mean", "running_var"):
        buffer = module._buffers.get(key)
        if buffer is not None and buffer.dtype in _HALF:
            batches = module._buffers.get("num_batches_tracked")
            momentum = module.momentum
            if momentum is None:  # the average of all
                momentum = 1 / (1 if batches is None else int(batches) + 1)
            if not momentum:
                return
            facts = {"buffer": key, "module": call.path, "dtype": name_of(buffer.dtype), "momentum": momentum}
            audit.find(
                "DG502", audit.here(), module=call.path, op=type(module).__name__, facts=facts,
                from_dtype=buffer.dtype, to_dtype=torch.float32, bytes=size_of(buffer),
            )  # fmt: skip
            return


# ---------------------------------------------------------------- DG504


@on("start", "DG504")
def replace_setattr(audit: Recorder) -> None:
    audit.patches.replace(nn.Module, "__setattr__", functools.partial(_setattr, audit))


def _setattr(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    local = audit.local

    @functools.wraps(original)
    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        if audit.live and local.modules and isinstance(value, Tensor):
            old = (vars(self).get("_buffers") or {}).get(name)
            if old is not None and old.dtype is not value.dtype:
                audit.guarded(_replaced, audit, self, name, old.dtype, value)
        original(self, name, value)

    return set_attribute


def _replaced(audit: Recorder, module: nn.Module, name: str, was: torch.dtype, buffer: Tensor) -> None:
    if not was.is_floating_point:
        return
    site, path, node = audit.here(), audit.path_of(module), audit.lineage.get(buffer)
    facts = {"was": name_of(was), "dtype": name_of(buffer.dtype)}
    fields = {"from_dtype": was, "to_dtype": buffer.dtype, "bytes": size_of(buffer), "op": "forward"}
    cause = Stays("DG504", site, path, name, facts, fields)
    enter(audit, [cause], path, [name])
    parents = () if node is None else (node,)
    audit.lineage.set(buffer, Node(f"buffer {path}.{name}", site, buffer.dtype, parents, cause=cause, named=True))


# ---------------------------------------------------------------- DG506


@dataclass
class Seen:
    roots: set[int] = field(default_factory=set)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)  # by path, for when the model is gone


@on("entered", "DG101", "DG110", "DG506")
def parameters_agree(call: Call, audit: Recorder) -> None:
    """Once for each outermost module: whether its parameters have one dtype."""
    known = audit.state(Seen)
    seen = known.roots
    if audit.local.modules or id(call.module) in seen:
        return
    seen.add(id(call.module))
    parameters = [
        (f"{path}.{name}" if path else name, tensor)
        for path, module in walk(call.module)
        for kind, name, tensor in tensors_of(module)
        if kind == "parameter" and tensor.dtype.is_floating_point
    ]
    if any(is_lazy(parameter) for _, parameter in parameters):
        seen.discard(id(call.module))  # it has no dtypes yet
        return
    if not parameters:
        return
    usual = known.dtypes[call.path] = _usual([parameter for _, parameter in parameters], call.module, audit)
    odd = [(name, parameter) for name, parameter in parameters if parameter.dtype is not usual]
    if not odd:
        return
    facts = {
        "names": listed(name for name, _ in odd), "found": " and ".join(sorted({name_of(p.dtype) for _, p in odd})),
        "module": call.path, "expected": name_of(usual), "effect": "",
    }  # fmt: skip
    audit.find(
        "DG506", audit.here(), module=call.path, op="forward", facts=facts, parameters=[name for name, _ in odd],
        from_dtype=odd[0][1].dtype, to_dtype=usual, bytes=sum(size_of(p) for _, p in odd),
    )  # fmt: skip


def dtype_of(path: str | None, audit: Recorder) -> torch.dtype | None:
    """The dtype of the model that a module, or a parameter, is in; none that came with a changed default dtype."""
    title = path.partition(".")[0] if path else ""
    root = next((module for known, module in audit.modules() if known == title), None)
    tensors = () if root is None else (tensor for _, module in walk(root) for _, _, tensor in tensors_of(module))
    parameters = [t for t in tensors if isinstance(t, nn.Parameter) and t.dtype.is_floating_point and not is_lazy(t)]
    dtype = _usual(parameters, root, audit) if parameters else None  # in a functional call there are none
    dtype = audit.state(Seen).dtypes.get(title) if root is None else dtype
    return None if audit.leak is not None and dtype is audit.leaked_dtype else dtype


def _usual(parameters: Sequence[Tensor], root: nn.Module | None, audit: Recorder) -> torch.dtype:
    """That of by far the most parameters; else of those that were not converted apart, in doubt the default dtype."""
    every = _sizes(parameters)
    for sizes in (every, _sizes(p for p in parameters if not _is_apart(p, root, audit))):
        if sizes and sum(sizes.values()) < (1 + 1 / _MOST) * max(sizes.values()):
            return max(sizes, key=lambda dtype: sizes[dtype])
    default = torch.get_default_dtype()
    return default if default in every else max(every, key=lambda dtype: every[dtype])


def _sizes(parameters: Iterable[Tensor]) -> dict[torch.dtype, int]:
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return sizes


def _is_apart(parameter: Tensor, root: nn.Module | None, audit: Recorder) -> bool:
    node = audit.lineage.get(parameter)
    return node is not None and isinstance(node.cause, Converted) and node.cause.module() is not root
