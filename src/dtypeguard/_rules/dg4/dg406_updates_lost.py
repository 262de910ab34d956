"""DG406 updates-lost."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG406",
    "updates-lost",
    Severity.WARNING,
    summary="",
    says=(
        "{share:.0%} of the elements of {found} parameters with a non-zero gradient did not move in a step "
        "of {optimizer} (lr={lr:g}): {names}"
    ),
    fix=(
        "keep float32 parameters and use autocast, or an optimizer with float32 master weights or stochastic rounding"
    ),
    why=(
        "bfloat16 has 8 bits of significand: an update smaller than 1/512 of the weight is rounded away, "
        "each step anew, and the loss stops falling for no visible reason."
    ),
    sources=(
        "https://arxiv.org/abs/2010.06192",
        "https://github.com/pytorch/torchtitan/issues/2881",
        "https://github.com/pytorch/pytorch/issues/191763",
    ),
)
