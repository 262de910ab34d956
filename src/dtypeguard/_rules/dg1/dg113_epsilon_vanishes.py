"""DG113 epsilon-vanishes."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG113",
    "epsilon-vanishes",
    Severity.WARNING,
    summary="",
    says="`{what}`: {value:g} is 0 in float16, and `{use}` gives {count} infinite or NaN values",
    fix="an eps that float16 has, 1e-4 and up, or compute it in float32",
    why=(
        "The smallest float16 is 6e-8, so the 1e-8 or 1e-12 that keeps a division or a logarithm from zero "
        "is zero itself."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/8860",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html",
    ),
)
