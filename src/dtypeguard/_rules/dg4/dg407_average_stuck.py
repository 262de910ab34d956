"""DG407 average-stuck."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG407",
    "average-stuck",
    Severity.WARNING,
    summary="",
    says=(
        "the average of {names} is {found} and does not move: {share:.0%} of the elements that differ from "
        "the model stayed as they were in {steps} steps"
    ),
    fix="keep the average in float32, whatever the model's dtype",
    why=(
        "An average with decay 0.999 moves by a thousandth of the difference. That is less than the "
        "spacing of bfloat16 (1/256) and float16 (1/1024) around most weights, so it stays at its first "
        "value for ever."
    ),
    sources=("https://github.com/d8ahazard/sd_dreambooth_extension/issues/1417",),
)
