"""DG902 error-amplified."""

from ..._engine.values.engine import Harm
from ..._engine.values.rows import Cause, Row
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._forms import instead
from ._harm import compute, enter, keep, share, wide_of, would_be

RULE = Rule(
    "DG902",
    "error-amplified",
    Severity.WARNING,
    summary="Rounding errors grow until results are wrong.",
    says="`{what}`{back}: an error of {came} comes in, {error} goes out: {example}{reached}{rounded}",
    fix="{advice}",
    at_birth=True,
    why=(
        "Some operations make the relative error of their input larger: a difference of nearly equal numbers, the sine "
        "of a large angle, the logarithm of a probability that has become 1, a quotient by what is nearly zero. Values "
        "with 8 or 11 bits have a large error to begin with. An audit with `values=True` runs each operation once more "
        "in a wider dtype, and compares. It reports a line where the error became at least 8 times as large, if the "
        "results of the program are wrong for that reason."
    ),
    unsafe=(
        "stable_form", "narrow_behind_difference", "float64_inside", "called_in_wider", "widen_rounding",
        "retype_inside", "widen_behind", "widen_origins", "widen_operands", "totals_in_float64",
    ),
    converts=False,
    sources=("https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",),
)  # fmt: skip

_INSTEAD = {  # functions of probabilities, which cannot be near enough to 1
    "binary_cross_entropy": "give the logits to `F.binary_cross_entropy_with_logits`, without the sigmoid before it"
}


def _offset(row: Row) -> str | None:
    """What to do where digits were lost beside a number that is subtracted again."""
    lost = row.taken
    if lost is None:
        return None
    if lost.stalled:
        return f"keep the total in {wide_of(lost)}: each addend is less than a unit of it; or add up what changes alone"
    return f"add in {wide_of(lost)}: `{lost.site.expression or lost.name}`; or subtract the offset before"


@on("harmed", RULE)
def amplified(harm: Harm, audit: Recorder) -> None:
    if harm.cause is Cause.AMPLIFIED:
        row = harm.row
        better, before = instead(row) or _INSTEAD.get(row.name), _offset(row) or keep(row)
        facts = {
            "came": share(max(row.incoming, row.half_ulp)),
            "error": share(row.error),
            "example": would_be(row),
            "advice": better
            or before
            or (
                f"keep it in {wide_of(row)}: what each round of a loop rounds away builds up" if row.builds_up else None
            )
            or compute(row),
        }
        enter(RULE, audit, row, facts, harm, earlier=not better and (before is not None or row.builds_up))
