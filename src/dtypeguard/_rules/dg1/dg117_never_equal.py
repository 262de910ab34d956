"""DG117 never-equal."""

from torch import Tensor

from ..._engine.watch.text import operand
from .._kit import Op, Recorder, Rule, Severity, name_of, on, some

RULE = Rule(
    "DG117",
    "never-equal",
    Severity.WARNING,
    summary="Values with fractions are compared with integers for equality.",
    says="`{what}` compares {floats} with {integers}: {count} of {of} values have a fraction, which no integer equals",
    fix="make a decision first: {advice}; of floats that should be equal ask `torch.isclose`",
    why=(
        "A probability, a score or a logit equals no class. PyTorch compares them all the same, promoted, and an "
        "accuracy, a mask or a count of matches comes out too small, or 0, without a word. Often a branch that should "
        "have made labels of them was not taken, as it asks for one dtype only."
    ),
    unsafe=("decision",),
    sampled=True,
    sources=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/4840",
        "https://docs.pytorch.org/docs/stable/generated/torch.eq.html",
    ),
)

_FEW = 8  # values, of which some have fractions by chance
_NEAR = 16  # lines, in which the integers may have been made of the values: `x == x.long()` asks for fractions


@on("after", RULE, ops=["eq", "ne"])
def compared(event: Op, audit: Recorder) -> None:
    values = next((tensor for tensor in event.inputs if tensor.is_floating_point()), None)
    integers = next((tensor for tensor in event.inputs if tensor.dtype in audit.integers and tensor.ndim), None)
    if values is None or integers is None or event.backward or values.numel() < _FEW:
        return
    if not event.readable or not audit.due("DG117", event.site) or _made_of(integers, values, audit):
        return
    looked = some(values)
    count = int((looked != looked.trunc()).sum())
    if count >= looked.numel() / 2:
        advice = "`.argmax(-1)`, or `.round()`"
        if bool(looked.min() >= 0) and bool(looked.max() <= 1):
            codes = event.site.operands("eq", 2) if event.direct else []
            code = next((code for one, code in zip(event.inputs, codes, strict=False) if one is values), "scores")
            advice = f"`{operand(code)} >= 0.5`"
        facts = {"floats": name_of(values.dtype), "integers": name_of(integers.dtype), "advice": advice}
        audit.suspect(RULE, event, values, **facts, count=count, of=looked.numel()).find(audit)


def _made_of(integers: Tensor, values: Tensor, audit: Recorder) -> bool:
    node, other = audit.lineage.get(integers), audit.lineage.get(values)
    return node is not None and other is not None and other in node.ancestors(_NEAR)
