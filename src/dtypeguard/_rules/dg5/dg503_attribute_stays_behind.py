"""DG503 attribute-stays-behind."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG503",
    "attribute-stays-behind",
    Severity.INFO,
    summary="",
    says="{which} of {module}: a plain tensor, which {change} left {stays}{effect}",
    fix="`self.register_buffer({name!r}, ..., persistent=False)` in `__init__`, so that `.to()` reaches it",
    why=(
        "`Module.to`, `.half`, `.cuda` change parameters and buffers; a tensor that is only an attribute "
        "stays where and what it was."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
        "https://github.com/lucidrains/rotary-embedding-torch/issues/9",
    ),
)
