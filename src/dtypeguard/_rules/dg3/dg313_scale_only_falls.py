"""DG313 scale-only-falls."""

import math

import torch

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity, listed
from ...amp._optimizer import PERIOD
from ...amp._scaling import Scaling, unscales_itself
from ...amp._tensors import local

RULE = Rule(
    "DG313",
    "scale-only-falls",
    Severity.WARNING,
    summary="The scale keeps falling, because no step has finite gradients.",
    says=("the scale has fallen from {start:g} to {scale:g}: {steps} were skipped for non-finite gradients{where}"),
    fix="{advice}",
    why=(
        "The scaler halves the scale at each step whose gradients are not finite, and settles after a few. "
        "If it falls below 1, the gradients are non-finite for another reason; no step is taken any more."
    ),
    follows=("DG901",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update",),
)


_DATA = (
    "look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a scale below 1 "
    "cannot help, and models pretrained in bfloat16 often cannot run in float16"
)
_SPOILT = "go back to a checkpoint in which {} is finite, and look for what has written to it: no step brings it back"
_SKIPS = 8  # in a row
_SMALLEST = 2.0**-149  # float32 above 0


@on("update", RULE)
def only_falls(scaling: Scaling) -> None:
    worst = max(scaling.driven, key=lambda driven: driven.skips)
    if worst.skips < _SKIPS and scaling.updates % PERIOD:
        return
    start, last, scale = scaling.start, scaling.last, scaling.scale
    scaling.last = scale
    falls = worst.skips >= _SKIPS or (unscales_itself(worst.watched.optimizer) and scale < last / 2**_SKIPS)
    if falls and scale < min(1.0, start):
        pairs = worst.watched.gradients()
        wrong = [parameter for parameter, gradient in pairs if not torch.isfinite(local(gradient)).all()]
        names = worst.watched.names_of(wrong)
        lost = worst.watched.names_of([one for one, _ in pairs if not torch.isfinite(local(one.detach())).all()])
        skipped = worst.skipped or round(math.log2(start / max(scale, _SMALLEST)))  # fused ones are silent
        where = f", the last time in {listed(names)}" if names else ""
        if lost:
            where += f"; {listed(lost)} holds NaN or infinity itself"
        advice = _SPOILT.format(listed(lost)) if lost else _DATA
        steps = f"{skipped} of {worst.iterations} steps"
        facts = {"start": start, "scale": scale, "steps": steps, "where": where, "advice": advice}
        scaling.find(RULE, "GradScaler.update", facts, parameters=names)
