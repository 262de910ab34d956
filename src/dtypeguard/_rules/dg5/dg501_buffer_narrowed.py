"""DG501 buffer-narrowed."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG501",
    "buffer-narrowed",
    Severity.INFO,
    summary="",
    says="{which} of {module}: converted from {was} to {dtype}{effect}",
    fix=("keep it in float32: compute it in forward, or restore it after `.to()`; cast only what is made from it"),
    why=(
        "`Module.to(dtype)` converts every floating buffer. Frequencies, statistics and tables are small, "
        "and need the digits."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
        "https://github.com/huggingface/transformers/issues/25681",
    ),
)
