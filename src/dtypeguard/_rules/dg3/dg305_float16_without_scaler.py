"""DG305 float16-without-scaler."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG305",
    "float16-without-scaler",
    Severity.WARNING,
    summary="",
    says="the model ran under float16 autocast, and {optimizer} stepped without a GradScaler",
    fix=(
        "scale the loss: `scaler = torch.amp.GradScaler({device!r})`, `scaler.scale(loss).backward()`, "
        "`scaler.step(optimizer)`, `scaler.update()`; or use bfloat16; for a loss scale of your own, "
        "ignore this rule"
    ),
    why=(
        "Gradients below 6e-8 are zero in float16, and activations' gradients often are that small. "
        "Without a scale those parts of the model silently stop learning."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)
