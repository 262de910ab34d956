"""DG109 integer-wraps."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG109",
    "integer-wraps",
    Severity.WARNING,
    summary="",
    says="`{what}`: {detail}",
    fix="take a wider dtype, a bool mask or a clamp: {advice}",
    why=(
        "Integer arithmetic is modulo the range of the dtype: 3 - 5 in uint8 is 254, 300 * 300 in int16 "
        "24464. Hashes and random numbers want that: large odd factors, and what goes on to operations on "
        "bits, are no finding. `~` on an integer mask flips bits: 1 becomes -2, or 254 in uint8, which "
        "counts as true like -1 and 255. A float outside of an integer dtype becomes any number in it."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/24180",),
)
