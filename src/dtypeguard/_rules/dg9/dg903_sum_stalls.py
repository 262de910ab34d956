"""DG903 sum-stalls."""

from ..._core.base.dtypes import name_of
from ..._engine.values.engine import Harm
from ..._engine.values.rows import Cause
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._harm import converted, enter, found_at, made_wide, wide_of, would_be

RULE = Rule(
    "DG903",
    "sum-stalls",
    Severity.WARNING,
    summary="A small addend is rounded away, so the total stalls.",
    says="`{what}`{back}: {harm}{reached}",
    fix="{advice}",
    at_birth=True,
    explains=("DG107",),
    why=(
        "In bfloat16 256 + 1 is 256: what is less than half of the distance to the next number is rounded away, each "
        "time anew. Every single addition is right to the last bit, so no check of one operation sees it. An audit "
        "with `values=True` follows the total in a wider dtype. Counts, metrics, moving averages, rates that decay and "
        "gradients that are accumulated over batches do this. One change is enough where it is smaller than half of "
        "the spacing of most values: an adapter that is merged into bfloat16 weights, `1 + weight` with a small weight."
    ),
    unsafe=("whole_count", "widen_origins", "retype_inside", "called_in_wider", "widen_operands"),
    converts=False,
    sources=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        "https://github.com/huggingface/peft/issues/1388",
        "https://github.com/vllm-project/vllm/issues/29810",
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",
    ),
)  # fmt: skip


_TOTALS = ("add", "sub", "index_add", "scatter_add", "_foreach_add")


@on("harmed", RULE)
def stalled(harm: Harm, audit: Recorder) -> None:
    if harm.cause is Cause.STALLED and "DG407" not in found_at(harm.row, audit):  # which knows what an average needs
        row, wide = harm.row, wide_of(harm.row)
        itself = row.stays or row.absorbed or any(row.trained.values())  # the change is made at that line
        says, total = f"a total stands still: {would_be(row, total=True)}", converted(row)
        made = made_wide(row)
        advice = f"keep the total in {wide}, whatever is added{made and f': `{made}`'}"
        if total is not None:
            advice += f": {total} is narrowed with its module"
        if row.stays:
            known = would_be(row) if row.factor is None else f"{row.factor:.9g} is 1 in {name_of(row.dtype)}"
            says = f"{row.unmoved[0]} of {row.unmoved[1]} values stay as they were: {known}"
            what = "add to" if row.factor is None else "multiply"
            advice = f"{what} a copy in {wide}, and keep that: a cast back rounds the change away again"
        elif row.absorbed:
            says = f"{row.absorbed[0]} of {row.absorbed[1]} values of the parameter are lost: {would_be(row)}"
            advice = f"add and multiply in {wide}, and cast the product"
        elif still := sum(row.trained.values()):
            says = f"{still} of the {len(row.trained)} parameters that it updates stand still: {would_be(row)}"
            advice = f"keep a {wide} copy of the parameters between steps, and update that"
        elif not row.name.startswith(_TOTALS):
            since = f" since write {row.stuck}" if row.stuck else ""
            says = f"it stands still{since}, though it is computed anew each time: {would_be(row)}"
            advice = f"keep it in {wide}{made and f': `{made}`'}"
        enter(RULE, audit, row, {"harm": says, "advice": advice}, harm, earlier=not itself)
