"""DG308 unscaled-backward."""

from typing import Any

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG308",
    "unscaled-backward",
    Severity.ERROR,
    summary="`backward` runs on an unscaled loss while a GradScaler steps.",
    says=(
        "{optimizer} gets gradients of {names} from a backward without `scaler.scale`; unscaling divides "
        "them by {scale:g}"
    ),
    fix="`{scaler_code}.scale(loss).backward()` for every loss whose gradients this scaler unscales",
    why=(
        "The scaler divides whatever it finds in `.grad` by the scale. A loss that was not multiplied by "
        "it arrives tens of thousands of times too small, without an error."
    ),
    safe=("scale_losses",),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)


@on("gradients", RULE)
def not_scaled(driven: Driven, written: Any, op: str, scaling: Scaling) -> None:
    foreign = [reached.parameter for reached in driven.reached if reached.alien]
    alien = [parameter for parameter in foreign if parameter is not None and not scaling.blind]
    if (alien and driven.losses) or not (driven.losses or driven.by_hand):
        parameters = alien or [parameter for parameter, _ in driven.watched.gradients()]
        driven.watched.add(RULE, {"scale": scaling.scale}, parameters, op=op)
