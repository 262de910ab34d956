"""DG408 non-finite-gradients."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG408",
    "non-finite-gradients",
    Severity.ERROR,
    summary="",
    says="gradients of {names} ({share} with a gradient) are not finite",
    fix=(
        "find the operation with `torch.autograd.set_detect_anomaly(True)`; under float16 autocast a "
        "GradScaler skips such steps"
    ),
    why="One step with a NaN or infinite gradient makes the parameter NaN, and every later result with it.",
    sources=("https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",),
)
