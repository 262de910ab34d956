"""DG106 fraction-lost."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG106",
    "fraction-lost",
    Severity.WARNING,
    summary="",
    says="`{what}` writes {source} values into {dtype}: {count} of {total} lose their fraction",
    fix="allocate the target with a floating dtype, or round where it is meant: `.round().to({dtype_code})`",
    why="Writing into an integer tensor truncates towards zero, without a word.",
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)
