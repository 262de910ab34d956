"""DG101 float64-creep."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG101",
    "float64-creep",
    Severity.WARNING,
    summary="",
    says="`{what}` {how} float64 and {other}{size}",
    fix="convert where the float64 is born: {where}`.to({like})`",
    why=(
        "NumPy and Python compute in float64, models in float32 or less. One float64 operand makes every "
        "result float64: twice the memory and a fraction of the speed on a GPU, nothing at all on MPS; a "
        "layer refuses it."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/pytorch/pytorch/issues/36553",
        "https://github.com/sgl-project/sglang/issues/29011",
    ),
)
