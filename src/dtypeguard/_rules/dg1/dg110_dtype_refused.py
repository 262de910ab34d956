"""DG110 dtype-refused."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG110",
    "dtype-refused",
    Severity.ERROR,
    summary="",
    says="`{what}` was refused: {reason}{operands}",
    fix="cast the operand that is odd: {advice}",
    why="PyTorch's message names neither the argument nor where its dtype comes from.",
    sources=(
        "https://github.com/pytorch/pytorch/issues/105243",
        "https://github.com/pytorch/pytorch/issues/102922",
    ),
)
