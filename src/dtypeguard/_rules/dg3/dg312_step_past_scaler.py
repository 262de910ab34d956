"""DG312 step-past-scaler."""

from torch.amp.grad_scaler import OptState

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG312",
    "step-past-scaler",
    Severity.ERROR,
    summary="`optimizer.step()` is called directly, past the GradScaler.",
    says="{optimizer}.step() was called directly {stage}",
    fix="`{scaler_code}.step({optimizer_code})` in place of `{optimizer_code}.step()`",
    why=(
        "Between `scaler.scale(loss).backward()` and `scaler.step` gradients are multiplied by the scale. "
        "Stepping without the scaler applies them so, or, after `unscale_`, without looking for inf and "
        "NaN."
    ),
    safe=("step_by_scaler",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("past", RULE)
def past(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    driven.watched.past = True
    title, how = driven.watched.title, "after `unscale_`, past the scaler's check for inf and NaN"
    if stage is OptState.READY:
        how = f"on gradients that are still multiplied by the scale {scaling.scale:g}"
    scaling.find(RULE, f"{title}.step", {"optimizer": title, "held": driven.watched.optimizer, "stage": how})
