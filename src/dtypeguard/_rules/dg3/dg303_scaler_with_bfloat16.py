"""DG303 scaler-with-bfloat16."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG303",
    "scaler-with-bfloat16",
    Severity.WARNING,
    summary="",
    says="a GradScaler is enabled, but the forward ran in bfloat16",
    fix=(
        "drop the scaler (`GradScaler(enabled=False)`), or run the forward under "
        "`torch.autocast({device!r}, dtype=torch.float16)`; on the CPU autocast's default is bfloat16"
    ),
    why=(
        "bfloat16 has the exponents of float32, so its gradients do not underflow and need no scaling. The "
        "scaler only adds an inf check and a copy, and skips steps that a bfloat16 program would take."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)
