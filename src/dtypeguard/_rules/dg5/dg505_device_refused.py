"""DG505 device-refused."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG505",
    "device-refused",
    Severity.ERROR,
    summary="",
    says="`{what}` was refused: {reason}{operands}",
    fix="move one of them: {advice}",
    why=(
        "Tensors of one operation are on one device. A state that is built in the loop, or an attribute "
        "that `.to()` does not reach, stays on the CPU."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/10658",),
)
