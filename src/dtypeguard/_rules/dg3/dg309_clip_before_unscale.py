"""DG309 clip-before-unscale."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG309",
    "clip-before-unscale",
    Severity.ERROR,
    summary="",
    says=(
        "gradients of {names} were clipped {how} while still multiplied by the scale {scale:g}: after "
        "unscaling the bound is {bound:.3g}"
    ),
    fix="`scaler.unscale_(optimizer)` before `clip_grad_norm_` or `clip_grad_value_`",
    why=(
        "After `scaler.scale(loss).backward()` gradients are tens of thousands of times too large. "
        "Clipping them then nearly always clips, and unscaling makes the step that many times too small: "
        "with SGD training stands still. Adam scales most of it away again, but every gradient has the "
        "norm of the bound then, and comes close to eps."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    ),
)
