"""DG314 scaled-after-unscale."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG314",
    "scaled-after-unscale",
    Severity.ERROR,
    summary="",
    says=(
        "a scaled loss was added to the gradients of {optimizer} after `unscale_`: they mix parts that are "
        "divided by the scale {scale:g} and parts that are not"
    ),
    fix="call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss",
    why=(
        "`unscale_` divides the gradients that are there. A backward of a scaled loss after it adds "
        "gradients that are tens of thousands of times too large, and `step` does not divide again: "
        "PyTorch applies them as they are."
    ),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)
