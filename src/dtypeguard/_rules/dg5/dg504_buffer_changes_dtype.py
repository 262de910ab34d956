"""DG504 buffer-changes-dtype."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG504",
    "buffer-changes-dtype",
    Severity.INFO,
    summary="",
    says="{which} of {module} was {was} and became {dtype} in forward{effect}",
    fix="build it in the dtype that it replaces: `.to(self.{name})` or `dtype=self.{name}.dtype`",
    why=("A table that is grown in forward is built anew in the default dtype, whatever the model was converted to."),
    sources=("https://github.com/huggingface/transformers/issues/13665",),
)
