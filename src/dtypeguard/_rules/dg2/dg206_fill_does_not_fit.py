"""DG206 fill-does-not-fit."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG206",
    "fill-does-not-fit",
    Severity.ERROR,
    summary="",
    says="`{what}` was refused: {reason}",
    fix='`torch.finfo(x.dtype).min` in place of a constant, or `float("-inf")`',
    why=(
        "-1e9 and finfo(float32).min are no float16. In float32 the line works, under autocast or after "
        "`.half()` it does not."
    ),
    sources=("https://github.com/huggingface/transformers/issues/17306",),
)
