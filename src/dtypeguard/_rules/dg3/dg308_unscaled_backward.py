"""DG308 unscaled-backward."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG308",
    "unscaled-backward",
    Severity.ERROR,
    summary="",
    says=(
        "{optimizer} gets gradients of {names} from a backward without `scaler.scale`; unscaling divides "
        "them by {scale:g}"
    ),
    fix="`scaler.scale(loss).backward()` for every loss whose gradients this scaler unscales",
    why=(
        "The scaler divides whatever it finds in `.grad` by the scale. A loss that was not multiplied by "
        "it arrives tens of thousands of times too small, without an error."
    ),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)
