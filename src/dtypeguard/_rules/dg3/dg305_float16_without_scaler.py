"""DG305 float16-without-scaler."""

import torch

from ..._engine.watch.called import called
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import WatchedOptimizer

RULE = Rule(
    "DG305",
    "float16-without-scaler",
    Severity.WARNING,
    summary="A model trains under float16 autocast without a GradScaler.",
    says="the model ran under float16 autocast, and {optimizer} stepped {how}",
    fix="{advice}; or use bfloat16; for a loss scale of your own, ignore this rule",
    why=(
        "Gradients below 6e-8 are zero in float16, and activations' gradients often are that small. "
        "Without a scale those parts of the model silently stop learning."
    ),
    unsafe=("scaler_on",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("alone", RULE)
def without_scaler(watched: WatchedOptimizer, dtype: torch.dtype, device: str, disabled: bool) -> None:
    """An optimizer steps, and no scaler is enabled; one may be `disabled`."""
    if dtype is not torch.float16:
        return
    if disabled:
        how, advice = "with a GradScaler that is disabled", "write `enabled=True` where the GradScaler is made"
    else:
        how, (optimizer,) = "without a GradScaler", called("{optimizer_code}", watched.optimizer).values()
        advice = (
            f"scale the loss: `scaler = torch.amp.GradScaler({device!r})`, `scaler.scale(loss).backward()`, "
            f"`scaler.step({optimizer})`, `scaler.update()`"
        )
    watched.add(RULE, {"how": how, "advice": advice}, (), from_dtype=dtype)
