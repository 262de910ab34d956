"""DG307 no-inf-checks."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG307",
    "no-inf-checks",
    Severity.ERROR,
    summary="",
    says="{what}, so the scaler has no gradients to check",
    fix=(
        "call `scaler.scale(loss).backward()` on a loss that depends on this optimizer's parameters: no "
        "`.detach()`, `.item()` or `torch.no_grad()` on its way"
    ),
    why=(
        "`scaler.step` divides and checks the gradients of the optimizer's parameters. If none has one, "
        'PyTorch raises "No inf checks were recorded for this optimizer", which does not say that the loss '
        "was detached, or that the optimizer holds other parameters than those that the loss depends on."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers",
    ),
)
