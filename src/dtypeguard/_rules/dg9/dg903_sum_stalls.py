"""DG903 sum-stalls."""

from ..._engine.values.engine import Harm
from ..._engine.values.rows import Cause
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._harm import enter, would_be

RULE = Rule(
    "DG903",
    "sum-stalls",
    Severity.WARNING,
    summary="A running total stands still, because what is added is rounded away.",
    says="`{what}`{back}: a total stands still: {example}{reached}",
    fix="keep the total in {wide}, whatever is added",
    why=(
        "In bfloat16 256 + 1 is 256: what is less than half of the distance to the next number is rounded away, each "
        "time anew. Every single addition is right to the last bit, so no check of one operation sees it. An audit "
        "with `values=True` follows the total in a wider dtype. Counts, metrics, moving averages and gradients that "
        "are accumulated over batches do this."
    ),
    sources=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",
    ),
)  # fmt: skip


@on("harmed", RULE)
def stalled(harm: Harm, audit: Recorder) -> None:
    if harm.cause is Cause.STALLED:
        enter(RULE, audit, harm.row, {"example": would_be(harm.row)}, harm)
