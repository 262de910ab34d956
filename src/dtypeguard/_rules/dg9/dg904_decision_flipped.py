"""DG904 decision-flipped."""

from ..._engine.values.rows import Row
from ..._engine.watch.events import on
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ._harm import enter, number

RULE = Rule(
    "DG904",
    "decision-flipped",
    Severity.WARNING,
    summary="Choices come out otherwise than in a wider dtype: an index, an order, a comparison, a whole number.",
    says=(
        "`{what}`: {flipped} of {decided} come out otherwise than in {wide}: {was} instead of {is_}{rounded}"
    ),
    fix="compute what is compared in {wide}",
    why=(
        "An `argmax`, a `topk`, a comparison or a cast to integers makes a whole difference of a rounding error: "
        "another expert, another token, a frame more or less. A few choices that are nearly a draw come out otherwise "
        "in every half dtype; this rule reports a line where that is every fifth one or more, or where a number that "
        "is whole in the wider dtype becomes another integer. It needs an audit with `values=True`."
    ),
    sources=("https://github.com/NVIDIA/TensorRT-LLM/issues/3847",),
)  # fmt: skip

_MANY = 0.2  # of all choices


@on("decided", RULE)
def flipped(row: Row, audit: Recorder) -> None:
    if row.changed is None or (row.flipped < _MANY * row.decided and row.wrong is None):
        return
    was, is_ = map(number, row.changed)
    facts = {"flipped": row.flipped, "decided": row.decided, "was": was, "is_": is_}
    enter(RULE, audit, row, facts, None)
