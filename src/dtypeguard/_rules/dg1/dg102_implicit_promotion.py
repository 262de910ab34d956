"""DG102 implicit-promotion."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG102",
    "implicit-promotion",
    Severity.WARNING,
    summary="",
    says="`{what}` mixes {pair}: the result is {wide}{size}",
    fix="cast one side where it is made: {advice}",
    why=(
        "Operands of several dtypes are promoted without a word. A float32 table or constant turns half "
        "activations into float32, and so all that follows; between integers and floats it is usually "
        "meant."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/lucidrains/rotary-embedding-torch/issues/9",
    ),
)
