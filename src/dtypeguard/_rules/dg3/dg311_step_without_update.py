"""DG311 step-without-update."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG311",
    "step-without-update",
    Severity.ERROR,
    summary="",
    says="`{call}` is called on {optimizer} again, and `scaler.update()` was not called since its last step",
    fix="`scaler.update()` once at the end of each iteration, after all optimizers have stepped",
    why=(
        "`update` moves the scale and forgets which optimizers were unscaled. Without it the next "
        "`unscale_` or `step` raises, and the scale never falls after an overflow."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler",),
)
