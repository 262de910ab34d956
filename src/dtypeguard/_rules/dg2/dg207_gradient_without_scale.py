"""DG207 gradient-without-scale."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..._core.base.modes import Mode
from ..._engine.operands import operands
from ..._engine.watch.sites import returning
from .._kit import Recorder, Rule, Severity, Site, around, readable
from ..scalers import Scalers

RULE = Rule(
    "DG207",
    "gradient-without-scale",
    Severity.ERROR,
    summary="A custom backward ignores the incoming gradient and its scale.",
    says=(
        "the gradient that `{name}.backward` returns does not depend on the one that comes in, which is multiplied by "
        "the scale {scale:g}"
    ),
    fix="multiply by the gradient that comes in: `return gradient * grad_output`",
    why=(
        "`scaler.scale(loss).backward()` begins with the scale instead of 1, and each backward hands that on. A "
        "backward that returns a gradient of its own drops the scale. `scaler.step` divides by it all the same, so "
        "this loss moves the parameters by a 65536th of what it should. Other losses move them as they should."
    ),
    safe=("gradient_times_incoming",),
    sampled=True,
    sources=("https://github.com/ashawkey/stable-dreamfusion/issues/158",),
)


@around(BackwardCFunction, "apply", rule=RULE)
def _backward(audit: Recorder, original: Callable[..., Any], self: Any, /, *gradients: Any) -> Any:
    scale = audit.guarded(_scale_of, audit, self)
    if scale is None:
        return original(self, *gradients)
    with Reached(gradients).on() as reached:
        results = original(self, *gradients)
    audit.guarded(_report_unscaled, audit, self, scale, reached, results)
    return results


def _scale_of(audit: Recorder, function: Any) -> float | None:
    """The factor that gradients carry; None if there is none, or this Function was looked at often enough."""
    cls = getattr(function, "_forward_cls", None)
    if cls is None or cls.__module__.partition(".")[0] == "torch":
        return None
    scalers = [scaled.scaler for scaled in audit.state(Scalers) if scaled.graphs]
    if not scalers or scalers[0] is None or not audit.due("DG207", cls):
        return None
    scale: Any = scalers[0]._scale
    return float(scale) if isinstance(scale, Tensor) and readable(scale) and float(scale) != 1 else None


def _report_unscaled(audit: Recorder, function: Any, scale: float, reached: "Reached", results: Any) -> None:
    returned = [one for one in (results if isinstance(results, tuple) else (results,)) if isinstance(one, Tensor)]
    cls = function._forward_cls
    for gradient in returned:
        if readable(gradient) and not reached.has(gradient) and bool(gradient.any()):
            facts = {"name": cls.__name__, "scale": scale}
            audit.find(RULE, _returns(cls) or audit.here(), op=f"{cls.__name__}.backward", facts=facts)
            return


def _returns(cls: Any) -> Site | None:
    """The last `return` of its backward."""
    code = getattr(inspect.unwrap(cls.backward), "__code__", None)
    return None if code is None else returning(code)


class Reached(Mode):
    """Which tensors are computed from some."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        super().__init__()
        self._kept = [tensor for tensor in tensors if isinstance(tensor, Tensor)]  # no address is used again meanwhile
        self._storages = {tensor.untyped_storage()._cdata for tensor in self._kept if _has_storage(tensor)}
        self._all = not self._storages

    def has(self, tensor: Tensor) -> bool:
        return self._all or not _has_storage(tensor) or tensor.untyped_storage()._cdata in self._storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if any(map(self.has, operands(args, kwargs))):
            made = operands((out,), {})
            self._all = self._all or not made  # a number of Python, which may go anywhere
            written = [args[0]] if args and isinstance(args[0], Tensor) and func._schema.is_mutable else []
            self._kept += [*made, *written]
            self._storages |= {one.untyped_storage()._cdata for one in (*made, *written) if _has_storage(one)}
        return out


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, torch.nn.Parameter)
