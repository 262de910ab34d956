"""DG310 unscale-twice."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG310",
    "unscale-twice",
    Severity.ERROR,
    summary="",
    says="`unscale_` is called a second time on {optimizer} {since}",
    fix=("with gradient accumulation call `unscale_`, clip, `step` and `update` once, after the last micro-batch"),
    why=(
        "Gradients that are accumulated after `unscale_` are scaled and those before are not. PyTorch "
        "refuses the second call; leaving it out would mix both."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
        "https://github.com/huggingface/transformers/issues/23935",
    ),
)
