"""DG303 scaler-with-bfloat16."""

import torch

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG303",
    "scaler-with-bfloat16",
    Severity.WARNING,
    summary="A GradScaler is used for bfloat16, which needs no scaling.",
    says="a GradScaler is enabled, but the forward ran in bfloat16",
    fix=(
        "drop the scaler (`GradScaler(enabled=False)`), or run the forward under "
        "`torch.autocast({device!r}, dtype=torch.float16)`; on the CPU autocast's default is bfloat16"
    ),
    why=(
        "bfloat16 has the exponents of float32, so its gradients do not underflow and need no scaling. The "
        "scaler only adds an inf check and a copy, and skips steps that a bfloat16 program would take."
    ),
    safe=("no_scaler",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("computed", RULE)
def in_bfloat16(dtypes: set[torch.dtype], scaling: Scaling) -> None:
    if torch.bfloat16 in dtypes and torch.float16 not in dtypes:
        scaling.find(RULE, "GradScaler.scale", {}, from_dtype=torch.bfloat16)
