"""DG405 decay-is-zero."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG405",
    "decay-is-zero",
    Severity.WARNING,
    summary="",
    says="{key}={value:g} is 0 in {found}, the dtype of {names}",
    fix="keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay",
    why="What is zero in the parameter's dtype decays nothing.",
    sources=("https://docs.pytorch.org/docs/stable/optim.html",),
)
