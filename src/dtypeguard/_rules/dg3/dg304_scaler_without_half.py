"""DG304 scaler-without-half."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG304",
    "scaler-without-half",
    Severity.INFO,
    summary="",
    says="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
    fix="run the forward under `torch.autocast({device!r}, dtype=torch.float16)`, or drop the scaler",
    why=(
        "Scaling float32 gradients does no harm, but gains nothing either: often the autocast region was "
        "forgotten, or does not reach the model."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)
