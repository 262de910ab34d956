"""DG205 autocast-not-everywhere."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG205",
    "autocast-not-everywhere",
    Severity.ERROR,
    summary="",
    says="`{what}` under autocast got {dtype}: {reason}",
    fix=(
        "cast what it takes yourself: `.to(torch.get_autocast_dtype({device!r}))`, or annotate it and use "
        "`dtypeguard.enforce`"
    ),
    why=(
        "Inside a region most tensors still are float32: autocast casts for the operations on its lists "
        "only, never for a kernel of an extension."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "https://github.com/meteofrance/py4cast/issues/38",
    ),
)
