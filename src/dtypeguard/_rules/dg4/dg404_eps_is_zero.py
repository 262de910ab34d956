"""DG404 eps-is-zero."""

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import Group
from ._vanishes import find

RULE = Rule(
    "DG404",
    "eps-is-zero",
    Severity.ERROR,
    summary="An optimizer's eps is zero in the parameters' dtype.",
    says="{key}={value:g} is 0 in {found}, the dtype of {names}",
    fix=("keep the parameters in float32 (autocast instead of `.half()`), or use a larger eps: 1e-4 in float16"),
    why=(
        "Adam divides by `sqrt(v) + eps`. In float16 1e-8 is 0, and squares of gradients below 2e-4 are 0 "
        "too: the first step divides by zero, and weights become inf or NaN."
    ),
    at_birth=True,
    unsafe=("float32_parameters", "larger_eps"),
    sampled=True,
    sources=("https://github.com/pytorch/pytorch/issues/8860",),
)


@on("look", RULE)
def look(group: Group) -> None:
    find(RULE, "eps", group)
