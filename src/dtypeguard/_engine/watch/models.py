"""Models: how they are converted, what is loaded into them, and which dtype they have."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from ..._core.base import private
from ..._core.base.modules import tensors_below
from .events import Conversion, Loading
from .lineage import CONVERTED, COPIED, Cause, Node
from .patches import around
from .recorder import Recorder
from .sites import Site
from .spots import asked_for

_DTYPES = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
_KEPT = 2**12  # elements
_MOST = 4  # times as many parameters as there are others tell the dtype of a model


# ---------------------------------------------------------------- conversion


@dataclass(eq=False)
class Converted(Cause):
    """A parameter has its dtype since a module was converted: a whole model, or a part of one by itself."""

    module: weakref.ref[nn.Module]

    def blame(self, audit: Recorder, effect: str) -> None:
        """It is no fault by itself."""


@around(nn.Module, "to", "cuda", "cpu", "_apply", *_DTYPES)
def _at_conversion(audit: Recorder, original: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    local = audit.local
    if local.converting:
        return original(self, *args, **kwargs)
    before = audit.guarded(_floating, self) or {}
    values = audit.guarded(_small, self) or {}
    local.converting = True
    try:
        result = original(self, *args, **kwargs)
    finally:
        local.converting = False
    audit.guarded(_report_conversion, audit, self, original.__name__, args, kwargs, before, values, audit.user())
    return result


def _small(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    """Buffers whose values cost nothing to keep until the model has been converted."""
    return {
        (path, name): tensor
        for path, _, kind, name, tensor in tensors_below(model)
        if kind == "buffer" and tensor.dtype.is_floating_point and tensor.numel() <= _KEPT
    }


def _floating(model: nn.Module) -> dict[tuple[str, str], torch.dtype]:
    return {
        (path, name): tensor.dtype
        for path, _, _, name, tensor in tensors_below(model)
        if tensor.dtype.is_floating_point
    }


def _report_conversion(
    audit: Recorder, model: nn.Module, name: str, args: Any, kwargs: Any, before: dict[tuple[str, str], torch.dtype],
    values: dict[tuple[str, str], Tensor], site: Site,
) -> None:  # fmt: skip
    event = Conversion(model, audit.path_of(model), name, *_target(name, args, kwargs), before, values, site)
    named = next((step.site for step in asked_for(site, "") if step.site is not None), site)
    for path, module, kind, own, tensor in tensors_below(model):
        changed = before.get((path, own), tensor.dtype) is not tensor.dtype
        node = audit.lineage.get(tensor) if kind == "buffer" and changed else None
        hidden = node is not None and node.site.file != site.file  # a library's own `.to` was called at the line
        if changed and (kind == "parameter" or hidden) and not isinstance(module, ScriptModule):
            full = f"{kind} {event.inside(path)}.{own}"
            _since(audit, full, name, named, module, own, tensor, Converted(weakref.ref(model)))
    audit.emit("converted", event)


def _since(
    audit: Recorder, path: str, name: str, site: Site, module: nn.Module, own: str, tensor: Tensor,
    cause: Cause | None = None, before: tuple[Node, ...] = (),
) -> None:  # fmt: skip
    """A parameter or a buffer has its dtype since this line; `before` are the lines that its tensor had by itself."""
    node = Node(CONVERTED + name, site, tensor.dtype, before)
    node = Node(path, site, tensor.dtype, (node,), cause=cause, named=True)
    audit.lineage.hold(module, own, tensor, node)


@around(nn.Module, "register_parameter")
def _parameter_replaced(audit: Recorder, original: Callable[..., Any], self: nn.Module, name: str, param: Any) -> Any:
    """`module.weight = nn.Parameter(...)`, and what `load_state_dict(assign=True)` makes of a parameter."""
    before = (vars(self).get("_parameters") or {}).get(name)
    result = original(self, name, param)
    if isinstance(before, Tensor) and isinstance(param, Tensor) and before.dtype is not param.dtype:
        path = f"parameter {audit.path_of(self)}.{name}"
        cause = Converted(weakref.ref(self))  # a part of the model, by itself
        audit.guarded(_since, audit, path, "register_parameter", audit.user(), self, name, param, cause)
    return result


@around(nn.Parameter, "__deepcopy__")
def _parameter_copied(audit: Recorder, original: Callable[..., Any], self: nn.Parameter, memo: Any) -> Any:
    """`copy.deepcopy(model)`: the copy takes its dtype from the model, at this line."""
    known = id(self) in memo
    result = original(self, memo)
    if not known:
        audit.guarded(_copied, audit, self, result, audit.here())
    return result


def _copied(audit: Recorder, parameter: Tensor, copied: Tensor, site: Site) -> None:
    node = audit.lineage.get(parameter)
    known = () if node is None else (node,)
    audit.lineage.set(copied, Node(COPIED, site, copied.dtype, known, audit.module()))


def _target(name: str, args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    if name == "to":
        parsed = private.parse_to(*args, **kwargs)
        return parsed[0], parsed[1]
    if name in _DTYPES or name == "_apply":
        return None, _DTYPES.get(name)
    device = args[0] if args else kwargs.get("device")
    device = f"cuda:{device}" if isinstance(device, int) else device
    return torch.device(device or name), None


# ---------------------------------------------------------------- loading


@around(nn.Module, "load_state_dict")
def _at_loading(
    audit: Recorder, original: Callable[..., Any], self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any
) -> Any:
    assign = kwargs.get("assign", args[1] if len(args) > 1 else False)
    if audit.on["loading"] and not audit.local.loading and not assign and isinstance(state_dict, Mapping):
        audit.guarded(_compare_state, audit, self, state_dict, audit.user())
    before = audit.guarded(_floating, self) if assign else None
    audit.local.loading += 1
    try:
        result = original(self, state_dict, *args, **kwargs)
    finally:
        audit.local.loading -= 1
    if before is not None:
        audit.guarded(_buffers_replaced, audit, self, before, audit.user())
    return result


def _buffers_replaced(
    audit: Recorder, model: nn.Module, before: dict[tuple[str, str], torch.dtype], site: Site
) -> None:
    """What `load_state_dict(assign=True)` makes of buffers: the tensors of the state, as they are."""
    path = audit.path_of(model)
    for inside, module, kind, own, tensor in tensors_below(model):
        if kind == "buffer" and before.get((inside, own), tensor.dtype) is not tensor.dtype:
            full = f"buffer {path}.{inside}.{own}" if inside else f"buffer {path}.{own}"
            node = audit.lineage.get(tensor)
            known = () if node is None else (node,)
            _since(audit, full, "load_state_dict", site, module, own, tensor, before=known)


def _compare_state(audit: Recorder, model: nn.Module, state: Mapping[str, Any], site: Site) -> None:
    """What loading will convert; it copies into the tensors that the model has."""
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    groups: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for name, target in own.items():
        source = state.get(name)
        if isinstance(source, Tensor) and source.dtype is not target.dtype and target.dtype is not torch.bool:
            groups.setdefault((source.dtype, target.dtype), []).append(name)
    path = audit.path_of(model)
    for (was, dtype), names in groups.items():
        audit.emit("loading", Loading(path, own, state, was, dtype, names, site))


# ---------------------------------------------------------------- dtypes


@dataclass
class Dtypes:
    """Of models that are gone, by path: as they were when they were first called."""

    of: dict[str, torch.dtype] = field(default_factory=dict)


def dtype_of(path: str | None, audit: Recorder) -> torch.dtype | None:
    """The dtype of the model that a module, or a parameter, is in; none that came with a changed default dtype."""
    title = path.partition(".")[0] if path else ""
    root = next((module for known, module in audit.modules() if known == title), None)
    tensors = () if root is None else (tensor for *_, tensor in tensors_below(root))
    parameters = [t for t in tensors if isinstance(t, nn.Parameter) and t.dtype.is_floating_point and not is_lazy(t)]
    dtype = usual(parameters, root, audit) if parameters else None  # in a functional call there are none
    dtype = audit.state(Dtypes).of.get(title) if root is None else dtype
    return None if dtype in audit.births else dtype


def usual(parameters: Sequence[Tensor], root: nn.Module | None, audit: Recorder) -> torch.dtype:
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
