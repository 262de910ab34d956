"""DG306 half-loss."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG306",
    "half-loss",
    Severity.WARNING,
    summary="",
    says="the loss given to `scaler.scale` is {found}",
    fix="compute the loss in float32: `criterion(output.float(), target)`",
    why=(
        "The scaled loss and the first gradient are computed in the loss's own dtype. In float16 a scale "
        "of 65536 is infinite already, and in bfloat16 a loss has three digits."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",),
)
