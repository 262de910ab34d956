"""DG402 missing-parameters."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG402",
    "missing-parameters",
    Severity.WARNING,
    summary="",
    says="{names} ({share} trainable parameters) get gradients, and no watched optimizer holds them",
    fix=(
        "add them (`optimizer.add_param_group`), freeze them (`requires_grad_(False)`), or give every "
        "optimizer to `watch`"
    ),
    why=(
        "Parameters that no optimizer holds never move; their gradients are never zeroed by "
        "`optimizer.zero_grad()` either, so they grow, and `clip_grad_norm_(model.parameters())` clips by "
        "them."
    ),
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)
