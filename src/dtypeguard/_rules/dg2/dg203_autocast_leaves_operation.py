"""DG203 autocast-leaves-operation."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG203",
    "autocast-leaves-operation",
    Severity.ERROR,
    summary="",
    says="`{what}` under autocast was refused: {reason}",
    fix="cast one side: {advice}",
    why=(
        "Autocast casts the operands of the operations on its lists. Writing by index, scattering and most "
        "factories are on none: a float32 canvas does not take half predictions."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "https://github.com/open-mmlab/mmdetection3d/issues/1842",
    ),
)
