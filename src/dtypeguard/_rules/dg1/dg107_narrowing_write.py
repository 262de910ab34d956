"""DG107 narrowing-write."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG107",
    "narrowing-write",
    Severity.INFO,
    summary="",
    says="`{what}` writes {source} into a {dtype} tensor{loss}",
    fix="allocate the target in the dtype of what is written to it: {advice}",
    why=(
        "A tensor that is written to keeps its dtype, and what is written is cast to it: complex values "
        "lose their imaginary part (PyTorch warns once in a process), wide floats their digits."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/MagriLab/KolSol/issues/30",
    ),
)
