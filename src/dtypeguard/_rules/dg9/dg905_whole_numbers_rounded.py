"""DG905 whole-numbers-rounded."""

from ..._engine.values.engine import Harm
from ..._engine.values.rows import Cause
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._harm import enter, would_be

RULE = Rule(
    "DG905",
    "whole-numbers-rounded",
    Severity.WARNING,
    summary="Different whole numbers become equal after rounding.",
    says=(
        "`{what}`: {wrong} of {of} whole numbers become others in {dtype}, {before} different ones become {after}: "
        "{example}{reached}"
    ),
    fix="keep positions, counts and ids in integers, or in {wide}",
    why=(
        "bfloat16 has every whole number up to 256, float16 up to 2048, float32 up to 16,777,216. Above, neighbours "
        "become equal: positions, coordinates, token ids and time stamps are others then. An audit with `values=True` "
        "compares with a wider dtype, so it does not matter how the numbers came to be."
    ),
    unsafe=(
        "only_floats", "integers_stay", "retype_inside", "called_in_wider", "widen_sum", "widen_origins",
        "made_of_integers",
    ),
    converts=False,
    sources=("https://github.com/huggingface/transformers/issues/28685",),
)  # fmt: skip


@on("harmed", RULE)
def collided(harm: Harm, audit: Recorder) -> None:
    row = harm.row
    if harm.cause is Cause.COLLIDED and row.wrong is not None and row.distinct is not None:
        facts = {
            "wrong": row.wrong[0], "of": row.wrong[1], "before": row.distinct[0], "after": row.distinct[1],
            "example": would_be(row),
        }  # fmt: skip
        enter(RULE, audit, row, facts, harm)
