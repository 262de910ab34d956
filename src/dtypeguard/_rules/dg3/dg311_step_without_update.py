"""DG311 step-without-update."""

from torch.amp.grad_scaler import OptState

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG311",
    "step-without-update",
    Severity.ERROR,
    summary="An optimizer steps again without `scaler.update()` in between.",
    says="`{call}` is called on {optimizer} again, and `scaler.update()` was not called since its last step",
    fix="`{scaler_code}.update()` once at the end of each iteration, after all optimizers have stepped",
    why=(
        "`update` moves the scale and forgets which optimizers were unscaled. Without it the next "
        "`unscale_` or `step` raises, and the scale never falls after an overflow."
    ),
    safe=("update_at_end",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler",),
)


@on("unscale", RULE)
def unscaled(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    _report_second_step("unscale_", driven, stage, scaling)


@on("step", RULE)
def stepped(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    _report_second_step("step", driven, stage, scaling)


def _report_second_step(method: str, driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if stage is OptState.STEPPED:
        facts = {"optimizer": driven.watched.title, "call": f"scaler.{method}"}
        scaling.find(RULE, f"GradScaler.{method}", facts)
