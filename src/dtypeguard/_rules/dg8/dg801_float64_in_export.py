"""DG801 float64-in-export."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG801",
    "float64-in-export",
    Severity.WARNING,
    summary="",
    says=(
        "{nodes} of the exported graph {are} float64, the parameters are {expected}: {source} (exported at {called})"
    ),
    fix="{advice}",
    why=(
        "A float64 constant makes all that it meets float64. Runtimes that have only float32 kernels "
        "reject the graph, or run it slowly."
    ),
    sources=("https://github.com/Megvii-BaseDetection/YOLOX/issues/1674",),
)
