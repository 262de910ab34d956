"""DG405 decay-is-zero."""

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import Group
from ._vanishes import find

RULE = Rule(
    "DG405",
    "decay-is-zero",
    Severity.WARNING,
    summary="A weight decay is zero in the parameters' dtype.",
    says="{key}={value:g} is 0 in {found}, the dtype of {names}",
    fix="keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay",
    why="What is zero in the parameter's dtype decays nothing.",
    at_birth=True,
    unsafe=("float32_parameters",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/optim.html",),
)


@on("look", RULE)
def look(group: Group) -> None:
    find(RULE, "weight_decay", group)
