"""DG314 scaled-after-unscale."""

from torch.amp.grad_scaler import OptState

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG314",
    "scaled-after-unscale",
    Severity.ERROR,
    summary="Scaled gradients are added to unscaled ones.",
    says=(
        "a scaled loss was added to the gradients of {optimizer} after `unscale_`: they mix parts that are "
        "divided by the scale {scale:g} and parts that are not"
    ),
    fix="call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss",
    why=(
        "`unscale_` divides the gradients that are there. A backward of a scaled loss after it adds "
        "gradients that are tens of thousands of times too large, and `step` does not divide again: "
        "PyTorch applies them as they are."
    ),
    safe=("unscale_once",),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)


@on("step", RULE)
def mixed(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if driven.late:
        scaling.find(RULE, "GradScaler.step", {"optimizer": driven.watched.title, "scale": scaling.scale})
