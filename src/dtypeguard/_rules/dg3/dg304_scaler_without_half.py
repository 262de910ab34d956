"""DG304 scaler-without-half."""

import torch

from ..._core.base.dtypes import HALF
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG304",
    "scaler-without-half",
    Severity.INFO,
    summary="A GradScaler is enabled, but nothing computes in float16.",
    says="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
    fix="run the forward under `torch.autocast({device!r}, dtype=torch.float16)`, or drop the scaler",
    why=(
        "Scaling float32 gradients does no harm, but gains nothing either: often the autocast region was "
        "forgotten, or does not reach the model."
    ),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("computed", RULE)
def nothing_in_half(dtypes: set[torch.dtype], scaling: Scaling) -> None:
    if not dtypes & HALF:
        scaling.find(RULE, "GradScaler.scale", {})
