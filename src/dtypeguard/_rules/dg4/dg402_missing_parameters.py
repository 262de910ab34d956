"""DG402 missing-parameters."""

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import Holdings

RULE = Rule(
    "DG402",
    "missing-parameters",
    Severity.WARNING,
    summary="Trained parameters are missing from every optimizer.",
    says="gradients of {names} ({share} trainable parameters) go to no watched optimizer",
    fix=(
        "add them (`{optimizer_code}.add_param_group`), freeze them (`requires_grad_(False)`), or, if another "
        "optimizer has them, give that to `watch` or to the trainer too"
    ),
    why=(
        "Parameters that no optimizer holds never move; their gradients are never zeroed by "
        "`optimizer.zero_grad()` either, so they grow, and `clip_grad_norm_(model.parameters())` clips by "
        "them."
    ),
    unsafe=("optimizer_last", "freeze_the_rest"),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)


@on("held", RULE)
def missing(held: Holdings) -> None:
    lost = [parameter for parameter in held.missing if parameter.grad is not None]
    if held.stepping and lost and not held.stale:
        facts = {"share": f"{len(lost)} of {len(held.trainable)}"}
        held.claim(RULE, held.optimizers[0], facts, lost, lost)
