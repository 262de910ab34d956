"""DG306 half-loss."""

from torch import Tensor

from ..._core.base.dtypes import HALF
from ..._core.base.errors import plain
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG306",
    "half-loss",
    Severity.WARNING,
    summary="The loss is half precision when the GradScaler scales it.",
    says="the loss given to `scaler.scale` is {found}",
    fix="compute the loss in float32: `criterion(output.float(), target)`",
    why=(
        "The scaled loss and the first gradient are computed in the loss's own dtype. In float16 a scale "
        "of 65536 is infinite already, and in bfloat16 a loss has three digits."
    ),
    safe=("float32_loss",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",),
)


@on("scaled", RULE)
def in_half(losses: list[Tensor], detached: bool, scaling: Scaling) -> None:
    half = next((loss.dtype for loss in losses if loss.dtype in HALF), None)
    if half is not None:
        scaling.find(RULE, "GradScaler.scale", {"found": plain(half)}, from_dtype=half)
