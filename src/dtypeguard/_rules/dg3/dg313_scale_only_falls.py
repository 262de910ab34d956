"""DG313 scale-only-falls."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG313",
    "scale-only-falls",
    Severity.WARNING,
    summary="",
    says=("the scale has fallen from {start:g} to {scale:g}: {steps} were skipped for non-finite gradients{where}"),
    fix=(
        "look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a "
        "scale below 1 cannot help, and models pretrained in bfloat16 often cannot run in float16"
    ),
    why=(
        "The scaler halves the scale at each step whose gradients are not finite, and settles after a few. "
        "If it falls below 1, the gradients are non-finite for another reason; no step is taken any more."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update",),
)
