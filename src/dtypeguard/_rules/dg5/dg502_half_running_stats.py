"""DG502 half-running-stats."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG502",
    "half-running-stats",
    Severity.WARNING,
    summary="",
    says="`{buffer}` of {module} is {dtype}, and training updates it by {momentum:g} of the difference",
    fix=(
        "keep norms in float32: `module.float()` on them after the model was converted (a float32 norm "
        "takes half inputs)"
    ),
    why=(
        "A running average moves by a tenth of the difference or less; in half most of that is rounded "
        "away, so evaluation uses statistics that stand still."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/102922",),
)
