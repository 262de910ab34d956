"""DG6: state that is loaded, and the default dtype."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._base.dtypes import name_of
from .._watch.events import on
from .._watch.ledger import listed
from .._watch.lineage import Cause, Node
from .._watch.looks import LARGEST
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site
from .._watch.text import human, size_of


@on("start", "DG601", "DG603")
def replace_loading(audit: Recorder) -> None:
    audit.patches.replace(nn.Module, "load_state_dict", functools.partial(_loading, audit))


def _loading(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        assign = kwargs.get("assign", args[1] if len(args) > 1 else False)
        if audit.live and not audit.local.loading and not assign and isinstance(state_dict, Mapping):
            audit.guarded(_compare, audit, self, state_dict, audit.user())
        audit.local.loading += 1
        try:
            return original(self, state_dict, *args, **kwargs)
        finally:
            audit.local.loading -= 1

    return load_state_dict


def _compare(audit: Recorder, model: nn.Module, state: Mapping[str, Any], site: Site) -> None:
    """What loading will convert; it copies into the tensors that the model has."""
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    groups: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for name, target in own.items():
        source = state.get(name)
        if isinstance(source, Tensor) and source.dtype is not target.dtype and target.dtype is not torch.bool:
            groups.setdefault((source.dtype, target.dtype), []).append(name)
    path = audit.path_of(model)
    for (was, dtype), names in groups.items():
        facts: dict[str, Any] = {"names": listed(names), "module": path, "was": name_of(was), "dtype": name_of(dtype)}
        fields: dict[str, Any] = {
            "module": path, "op": "Module.load_state_dict", "from_dtype": was, "to_dtype": dtype,
            "bytes": sum(size_of(own[name]) for name in names), "parameters": names,
        }  # fmt: skip
        if was.is_floating_point and not dtype.is_floating_point and not dtype.is_complex:
            broken = [name for name in names if bool((state[name] != state[name].trunc()).any())]
            if broken:
                value = state[broken[0]]
                facts |= {
                    "names": listed(broken),
                    "value": f"{float(value[value != value.trunc()].flatten()[0]):g}, ...",
                }
                audit.find("DG603", site, facts=facts, **fields)
            continue
        facts["share"] = f"{len(names)} of {len(own)} entries"
        if not was.is_floating_point or not dtype.is_floating_point:
            continue
        grown = sum(size_of(own[name]) - size_of(state[name]) for name in names)
        if grown > 0:
            facts |= {
                "effect": f"; {human(grown)} more than the file holds",
                "advice": f"`model.to(torch.{name_of(was)})` before loading, or `load_state_dict(..., assign=True)`",
            }
            audit.find("DG601", site, facts=facts, **fields)
        else:
            fates = {name: _fate(state[name], dtype) for name in names}
            burst, lost = [name for name in names if fates[name].burst], any(fate.lost for fate in fates.values())
            effect = (
                f"; {listed(burst)} overflow" if burst else "; digits are lost" if lost else "; no value is changed"
            )
            advice = f"load into a {name_of(was)} model and convert it then, or load with `assign=True`"
            severity = Severity.ERROR if burst else None
            audit.find("DG601", site, facts={**facts, "effect": effect, "advice": advice}, severity=severity, **fields)


class Fate(NamedTuple):
    """What narrowing does to a tensor."""

    burst: bool  # finite values become infinite
    lost: bool  # values change


def _fate(source: Tensor, dtype: torch.dtype) -> Fate:
    """A checkpoint may fill the memory: of the copies to compare, one small part is alive at a time."""
    burst = lost = False
    for part in torch.split(source.detach().reshape(-1), LARGEST) if source.layout is torch.strided else (source,):
        after = part.to(dtype).to(part.dtype)
        burst = burst or bool((~after.isfinite() & part.isfinite()).any())
        lost = burst or lost or not torch.equal(after.nan_to_num(), part.nan_to_num())
    return Fate(burst, lost)


@on("start", "DG601")
def replace_optimizers(audit: Recorder) -> None:
    audit.patches.replace(Optimizer, "load_state_dict", functools.partial(_loading_state, audit))


def _loading_state(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: Optimizer, state_dict: Any) -> Any:
        if audit.live:
            audit.guarded(_compare_states, audit, self, state_dict, audit.user())
        return original(self, state_dict)

    return load_state_dict


def _compare_states(audit: Recorder, optimizer: Optimizer, state_dict: Any, site: Site) -> None:
    """An optimizer casts its state to the dtype of its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    lost: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for parameter, number in zip(parameters, numbers, strict=False):
        for key, value in state_dict["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.ndim and value.dtype.is_floating_point:
                dtype = parameter.dtype
                if value.dtype.itemsize > dtype.itemsize and _fate(value, dtype).lost:
                    lost.setdefault((value.dtype, dtype), []).append(f"{key} of parameter {number}")
    title = type(optimizer).__name__
    for (was, dtype), names in lost.items():
        facts = {
            "names": listed(names), "module": title, "was": name_of(was), "dtype": name_of(dtype),
            "share": f"{len(names)} tensors of state", "effect": "; digits are lost for good",
            "advice": "resume with parameters of the dtype that the run had, and convert nothing between",
        }  # fmt: skip
        audit.find(
            "DG601", site, facts=facts, op=f"{title}.load_state_dict",
            from_dtype=was, to_dtype=dtype, parameters=names,
        )  # fmt: skip


# ---------------------------------------------------------------- DG602


@dataclass(eq=False)
class Leak(Cause):
    """The default dtype was changed here."""

    site: Site
    was: torch.dtype
    dtype: torch.dtype
    said: bool = False
    met: bool = False  # something of it met other dtypes, while it lasted

    def blame(self, audit: Recorder, effect: str) -> None:
        if not self.said and (self.met or audit.leak is self):  # a loader that sets it back is no leak
            self.said = True
            facts = {"dtype": name_of(self.dtype), "was": name_of(self.was), "effect": effect}
            audit.find(
                "DG602", self.site, op="torch.set_default_dtype", facts=facts, from_dtype=self.was, to_dtype=self.dtype
            )


@on("start", "DG602")
def replace_default(audit: Recorder) -> None:
    for name in ("set_default_dtype", "set_default_tensor_type"):
        audit.patches.replace(torch, name, functools.partial(_default, audit))
    audit.patches.replace(nn.Module, "register_parameter", functools.partial(_registration, audit))


def _registration(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Parameters are made past the dispatcher."""

    @functools.wraps(original)
    def register_parameter(self: nn.Module, name: str, param: Any) -> None:
        original(self, name, param)
        if audit.live and audit.leak is not None and isinstance(param, Tensor) and param.dtype is audit.leaked_dtype:
            title = f"parameter {type(self).__name__}.{name}"
            node = audit.guarded(lambda: Node(title, audit.here(), param.dtype, cause=audit.leak, named=True))
            audit.guarded(audit.lineage.hold, self, name, param, node)

    return register_parameter


def _default(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_default(*args: Any, **kwargs: Any) -> Any:
        was = torch.get_default_dtype()
        result = original(*args, **kwargs)
        dtype = torch.get_default_dtype()
        first: Leak | None = audit.leak
        if audit.live and dtype is not was:
            if first is not None and dtype is first.was:  # set back
                audit.leak = audit.leaked_dtype = None
            else:
                audit.leak, audit.leaked_dtype = Leak(audit.here(), first.was if first else was, dtype), dtype
        return result

    return set_default
