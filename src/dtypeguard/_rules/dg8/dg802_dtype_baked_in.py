"""DG802 dtype-baked-in."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG802",
    "dtype-baked-in",
    Severity.INFO,
    summary="",
    says="the trace holds {baked} as {dtype}{effect}",
    fix=(
        "trace the model in the dtype in which it will run, or derive dtypes in the graph: "
        "`torch.zeros_like`, `.type_as`"
    ),
    why=(
        "Tracing records the dtypes that it sees as constants. A traced module that is converted "
        "afterwards still casts to them."
    ),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html",),
)
