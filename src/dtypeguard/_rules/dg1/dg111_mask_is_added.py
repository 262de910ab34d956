"""DG111 mask-is-added."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG111",
    "mask-is-added",
    Severity.WARNING,
    summary="",
    says=("{argument} of {function} is {dtype} and holds only 0 and 1: it is added to the scores, and masks nothing"),
    fix="give a bool mask: `{code}.bool()`{caution}",
    why=(
        "Attention takes two kinds of masks. A bool mask hides, a float mask is added to the scores: a 1 "
        "in it makes a position a little more likely."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/92554",),
)
