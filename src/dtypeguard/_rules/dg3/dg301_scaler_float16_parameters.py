"""DG301 scaler-float16-parameters."""

from typing import Any

import torch
from torch.amp import GradScaler

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG301",
    "scaler-float16-parameters",
    Severity.ERROR,
    summary="A GradScaler is used with float16 parameters.",
    says="{names} ({share} trainable parameters) are float16, and a GradScaler refuses float16 gradients",
    fix=(
        "keep the parameters in float32 (`model.float()` before the optimizer is built) and run the "
        "forward under `torch.autocast({device!r}, dtype=torch.float16)`"
    ),
    why=(
        "A GradScaler divides gradients by the scale in place, and float16 gradients have lost what the "
        'scale was to save: `unscale_` refuses them with "Attempting to unscale FP16 gradients", after the '
        "first backward. Mixed precision keeps float32 master weights, and lets autocast cast them for "
        "each operation."
    ),
    unsafe=("float32_parameters",),
    converts=False,
    sampled=True,
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
        "https://github.com/haotian-liu/LLaVA/issues/363",
    ),
)


@on("driven", RULE)
def half_parameters(driven: Driven, scaling: Scaling) -> None:
    parameters = list(driven.watched.parameters())
    half = [parameter for parameter in parameters if parameter.dtype is torch.float16]
    if half and scaling.enabled and not _takes_float16(scaling.scaler):
        facts = {"device": scaling.device, "share": f"{len(half)} of {len(parameters)}"}
        driven.watched.add(RULE, facts, half, from_dtype=torch.float16, to_dtype=torch.float32)


def _takes_float16(scaler: Any) -> bool:
    """Whether somebody taught the scaler to unscale float16 gradients (FSDP's does, and some training scripts)."""
    owners = (vars(owner) for owner in (scaler, *type(scaler).__mro__))
    return next(own["_unscale_grads_"] for own in owners if "_unscale_grads_" in own) is not GradScaler._unscale_grads_
