"""DG108 positions-collide."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG108",
    "positions-collide",
    Severity.WARNING,
    summary="",
    says="`{what}`: {detail}{effect}",
    fix="compute positions and angles in float32 (or as integers), and cast only the result",
    why=(
        "bfloat16 has 8 bits of significand, float16 has 11: integers above 256 and 2048 are rounded, so "
        "neighbouring positions become equal, and the sine of a large angle is noise."
    ),
    sources=("https://github.com/huggingface/transformers/issues/25681",),
)
