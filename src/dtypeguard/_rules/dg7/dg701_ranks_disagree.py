"""DG701 ranks-disagree."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG701",
    "ranks-disagree",
    Severity.ERROR,
    summary="",
    says="{op}: {ranks}",
    fix=(
        "give every rank the same dtype and shape: `.to(...)` before the collective, `dtype=` where the tensor is made"
    ),
    why=(
        "Collectives send bytes. Where ranks hold different dtypes of one size they compute nonsense "
        "without an error; where sizes differ they hang or abort."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/150248",
        "https://github.com/modelscope/ms-swift/issues/9550",
    ),
)
