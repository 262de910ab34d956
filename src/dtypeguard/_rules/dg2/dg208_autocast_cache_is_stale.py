"""DG208 autocast-cache-is-stale."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._kit import Call, Op, Recorder, Rule, Severity, Site, Step, around, name_of, on, readable

RULE = Rule(
    "DG208",
    "autocast-cache-is-stale",
    Severity.ERROR,
    summary="Weights change inside autocast, which uses its cached old copies.",
    says="`{parameter}` of {module} has changed since autocast made its {dtype} copy, and the copy is used",
    at_birth=True,
    fix="enter a region for each forward, or call `torch.clear_autocast_cache()` when the weights have changed",
    why=(
        "Autocast casts a weight that needs a gradient once in a region, and keeps the copy until the outermost region "
        "ends. A step of an optimizer, an average or other weights that are swapped in between are not seen by it."
    ),
    safe=("fresh_cache",),
    unsafe=("region_per_call",),
    sampled=True,
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#torch.autocast",
        "https://github.com/X-GenGroup/Flow-Factory/issues/186",
    ),
)


class Copy:
    """A copy of a weight that autocast has made. Only its memory is followed: the tensor is not kept alive."""

    def __init__(self, weight: Tensor, copy: Tensor) -> None:
        self.dtype, self._size, self._stride = copy.dtype, copy.size(), copy.stride()
        self._of, self._at = weakref.ref(weight.untyped_storage()), weakref.ref(copy.untyped_storage())

    def of(self, weight: Tensor) -> Tensor | None:
        """Its values, if it is still there, and of this weight."""
        storage = self._at()
        if storage is None or self._of() is not weight.untyped_storage() or self._size != weight.shape:
            return None
        return torch.empty(0, dtype=self.dtype, device=weight.device).set_(storage, 0, self._size, self._stride)


@dataclass
class Copies:
    """What autocast has cast in the outermost region, by the address of a weight's storage, and where that began."""

    of: dict[int, Copy] = field(default_factory=dict)
    began: Site | None = None


@around(torch.autocast, "__enter__", rule=RULE)
def _enters(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    if not audit.autocast():
        audit.state(Copies).began = audit.guarded(audit.here)
    return original(self)


@on("cast", RULE)
def cached(event: Op, audit: Recorder) -> None:
    source = event.inputs[0]
    if event.kind == "autocast" and source.is_leaf and source.requires_grad and torch.is_autocast_cache_enabled():
        audit.state(Copies).of[source.untyped_storage()._cdata] = Copy(source, event.out)


@around(torch, "clear_autocast_cache", rule=RULE)
def _clear(audit: Recorder, original: Callable[..., Any]) -> Any:
    audit.state(Copies).of.clear()
    return original()


@on("entered", RULE)
def used_again(call: Call, audit: Recorder) -> None:
    copies = audit.state(Copies).of
    if not copies or not audit.autocast():
        return
    for name, parameter in call.module._parameters.items():
        if parameter is None or not readable(parameter):
            continue
        copied = copies.get(parameter.untyped_storage()._cdata)
        copy = None if copied is None else copied.of(parameter)
        if copy is None:
            continue
        if audit.due("DG208", call.path) and not torch.equal(parameter.detach().to(copy.dtype), copy):
            facts = {"parameter": name, "module": call.path, "dtype": name_of(copy.dtype)}
            began = audit.state(Copies).began
            origin = () if began is None else (Step(f"autocast at {began}", began, "the region begins here"),)
            audit.find(RULE, audit.here(), module=call.path, op="autocast", facts=facts, origin=origin)
            return
