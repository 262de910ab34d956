"""DG120 scaled-penalty."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ..._engine.watch.lineage import Debt
from ...amp._scaler import scale_of
from .._kit import Node, Op, Recorder, Rule, Severity, Site, around, on

RULE = Rule(
    "DG120",
    "scaled-penalty",
    Severity.WARNING,
    summary="A loss is computed from gradients that are still scaled.",
    says="`{what}` gives gradients times the scale, {scale:g}, and the loss has them as they are",
    fix="divide the gradients by `{scaler}.get_scale()` before anything is computed from them",
    why=(
        "`torch.autograd.grad` of what `scaler.scale` gives computes scaled gradients. A penalty on their norm holds "
        "the scaled norm near 1, and so the true one near 0. PyTorch's recipe for gradient penalties divides them by "
        "the scale first."
    ),
    unsafe=("divided_by_scale",),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty",),
)

_FACTORS = "mul mul_ div div_ _foreach_mul _foreach_mul_ _foreach_div _foreach_div_".split()
_SAME = 1e-6
_SCALER = re.compile(r"([\w.]+)\.scale\(")


@dataclass(eq=False)
class Scaled(Debt):
    """What a GradScaler has scaled, and by how much."""

    scale: float


@dataclass(eq=False)
class Taken(Debt):
    """Gradients of a scaled output: settled where they are divided by the scale."""

    site: Site
    module: str | None
    scale: float


class Penalties:
    open = False  # gradients were taken


@around(GradScaler, "scale", rule=RULE)
def _scale(audit: Recorder, original: Callable[..., Any], self: GradScaler, outputs: Any) -> Any:
    audit.guarded(_judge, audit, outputs)
    scaled = original(self, outputs)
    if self.is_enabled():
        audit.guarded(_mark, audit, scaled, self)
    return scaled


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in ([values] if isinstance(values, Tensor) else list(values)) if isinstance(one, Tensor)]


def _judge(audit: Recorder, losses: Any) -> None:
    for node in map(audit.lineage.get, _tensors(losses) if audit.state(Penalties).open else ()):
        for debt in () if node is None else node.debts:
            if isinstance(debt, Taken) and not debt.settled:
                debt.settled = True
                code = debt.site.expression or "torch.autograd.grad"
                scaler = match[1] if (match := _SCALER.search(code)) else "scaler"
                facts = {"what": code, "scale": debt.scale, "scaler": scaler}
                audit.find(RULE, debt.site, facts=facts, module=debt.module, op="grad")


def _mark(audit: Recorder, scaled: Any, scaler: GradScaler) -> None:
    for node in map(audit.lineage.get, _tensors(scaled)):
        if node is not None:
            node.owes((Scaled(scale_of(scaler)),))


@around(torch.autograd, "grad", rule=RULE)
def _grad(audit: Recorder, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
    gradients = original(outputs, *args, **kwargs)
    audit.guarded(_take, audit, outputs, gradients)
    return gradients


def _take(audit: Recorder, outputs: Any, gradients: Any) -> None:
    nodes = [node for node in map(audit.lineage.get, _tensors(outputs)) if node is not None]
    scale = next((debt.scale for node in nodes for debt in node.debts if isinstance(debt, Scaled)), 1.0)
    site, module = audit.here(), audit.module()
    taken = Taken(site, module, scale)
    for gradient in _tensors(gradients) if scale != 1 else ():
        if gradient.requires_grad:  # else no loss is computed from it
            node = Node("grad", site, gradient.dtype, (), module)
            node.owes((taken,))
            audit.lineage.set(gradient, node)
            audit.state(Penalties).open = True


@on("after", RULE, ops=_FACTORS)
def divided(event: Op, audit: Recorder) -> None:
    if not audit.state(Penalties).open:
        return
    for node in map(audit.lineage.get, event.inputs):
        for debt in () if node is None else node.debts:
            if isinstance(debt, Taken) and not debt.settled:
                debt.settled = any(_is_scale(value, debt.scale) for value in event.args[1:])


def _is_scale(value: Any, scale: float) -> bool:
    """Whether a factor is the scale, or its inverse."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else 0
    near = (scale, 1 / scale)
    return isinstance(value, (int, float)) and any(math.isclose(value, one, rel_tol=_SAME) for one in near)
