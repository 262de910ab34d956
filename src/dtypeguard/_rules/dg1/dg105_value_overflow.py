"""DG105 value-overflow."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG105",
    "value-overflow",
    Severity.WARNING,
    summary="",
    says=("`{what}` makes {count} of {total} finite values infinite in {dtype}, whose largest value is {largest:g}"),
    fix="compute it in a wider dtype, or clamp it first: {advice}",
    why=(
        "float16 ends at 65504. A sum, a product, or the cast of a mask of `finfo(float32).min` leaves it, "
        "and softmax or a mean make NaN of infinity some lines later."
    ),
    sources=(
        "https://github.com/huggingface/transformers/issues/25938",
        "https://github.com/huggingface/transformers/issues/17306",
    ),
)
