"""DG408 non-finite-gradients."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..._core.base.dtypes import FLOATING
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import PERIOD, WatchedOptimizer
from ...amp._tensors import finite, local

RULE = Rule(
    "DG408",
    "non-finite-gradients",
    Severity.ERROR,
    summary="An optimizer gets gradients that are infinite or NaN.",
    says="gradients of {names} ({share} with a gradient) are not finite",
    fix=(
        'mend the line that DG901 names in an audit with `values="range"`; under float16 autocast a GradScaler skips '
        "such steps"
    ),
    why="One step with a NaN or infinite gradient makes the parameter NaN, and every later result with it.",
    follows=("DG901", "DG404"),
    sources=("https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",),
)


_PARTS = 8  # looks until all gradients were asked whether they are finite


@on("stepping", RULE)
def before(watched: WatchedOptimizer) -> None:
    if not watched.late:
        _look_at_gradients(watched)


@on("stepped", RULE)
def after(watched: WatchedOptimizer) -> None:
    if watched.late:
        _look_at_gradients(watched, stepped=True)


def _look_at_gradients(watched: WatchedOptimizer, stepped: bool = False) -> None:
    """One element at each step on the CPU, and an eighth of all tensors now and then.

    One is enough sooner or later: a parameter that took a NaN makes every gradient NaN.
    """
    optimizer = watched.optimizer
    if optimizer is None or watched.past or getattr(optimizer, "grad_scale", None) is not None:
        return  # past a scaler, which DG312 tells; or a fused step, which unscales and checks by itself
    if watched.now:
        looks = watched.kept[RULE.id] = watched.kept.get(RULE.id, 0) + 1
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        parts = 1 if watched.steps < PERIOD else max(min(_PARTS, len(parameters)), 1)
        parameters = parameters[looks % parts :: parts]
        fine = all(finite(gradients) for gradients in _together(parameters))
    else:
        last = [parameter for group in optimizer.param_groups[-1:] for parameter in group["params"][-1:]]
        gradient = last[0].grad if last else None
        fine = gradient is None or not _on_cpu(gradient) or math.isfinite(gradient[(0,) * gradient.ndim].item())
    if fine or bool(getattr(optimizer, "found_inf", False)):  # a fused step skips by itself
        return
    pairs = watched.gradients()
    wrong = [parameter for parameter, gradient in pairs if not torch.isfinite(local(gradient)).all()]
    if stepped:  # the step may have left them out
        wrong = [parameter for parameter in wrong if not torch.isfinite(local(parameter)).all()]
    if wrong:
        facts = {"share": f"{len(wrong)} of {len(pairs)} parameters"}
        watched.add(RULE, facts, wrong, from_dtype=wrong[0].dtype)


def _on_cpu(gradient: Tensor) -> bool:
    """Whether one element can be read for next to nothing."""
    return type(gradient) is Tensor and gradient.is_cpu and gradient.dtype in FLOATING and gradient.numel() > 0


def _together(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Their floating and complex gradients, by device and dtype."""
    groups: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.is_meta:
            continue
        if gradient.dtype in FLOATING or gradient.is_complex():
            groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    yield from groups.values()
