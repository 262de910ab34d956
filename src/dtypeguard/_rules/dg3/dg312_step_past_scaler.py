"""DG312 step-past-scaler."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG312",
    "step-past-scaler",
    Severity.ERROR,
    summary="",
    says="{optimizer}.step() was called directly {stage}",
    fix="`scaler.step(optimizer)` in place of `optimizer.step()`",
    why=(
        "Between `scaler.scale(loss).backward()` and `scaler.step` gradients are multiplied by the scale. "
        "Stepping without the scaler applies them so, or, after `unscale_`, without looking for inf and "
        "NaN."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)
