"""DG506 adapter-differs."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG506",
    "adapter-differs",
    Severity.INFO,
    summary="",
    says="{names} are {found}, the other parameters of {module} {expected}{effect}",
    fix="convert the adapter like the model: `adapter.to(model.dtype)`, or cast what passes between them",
    why="A layer that is added to a converted model (an adapter, a head, a cache) has the default dtype.",
    sources=("https://github.com/huggingface/accelerate/issues/3620",),
)
