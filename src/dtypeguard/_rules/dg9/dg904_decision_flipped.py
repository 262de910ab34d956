"""DG904 decision-flipped."""

from ..._values.rows import Row
from ..._watch.events import on
from ..._watch.recorder import Recorder
from ..._watch.rule import Program, Rule, Severity
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


BAD = [
    Program(
        """\
import torch

bias = torch.tensor([8.001, 8.0125, 8.010]).bfloat16()
scores = torch.zeros(1, 3)
expert = (scores + bias.float()).argmax(-1)
print(expert.tolist())
""",
        at=5,
        prints=(
            "`(scores + bias.float()).argmax(-1)`: 1 of 1 come out otherwise than in float64: 0 instead of 1; rounded"
            " in bfloat16: torch.tensor([8.001, 8.0125, 8.010]).bfloat16() at program.py:3, in <module>"
        ),
        fix="compute what is compared in float64",
    ),
    Program(
        """\
import torch

lengths = torch.tensor([0.8745, 0.8777]).bfloat16()
frames = (lengths * 2500).long()
print(frames.tolist())
""",
        at=4,
        prints=(
            "`(lengths * 2500).long()`: 2 of 2 come out otherwise than in float32: 2192 instead of 2186; rounded in "
            "bfloat16: torch.tensor([0.8745, 0.8777]).bfloat16() at program.py:3, in <module>"
        ),
    ),
    Program(
        """\
import torch

ids = torch.tensor([16777217, 16777219, 33554435])
kept = ids.float().long()
print(kept.tolist())
""",
        at=4,
        prints=(
            "`ids.float().long()`: 3 of 3 come out otherwise than in float64: 16777216 instead of 16777217; rounded "
            "in float32: ids.float() at program.py:4, in <module>"
        ),
    ),
]
GOOD = [
    Program(
        """\
import torch

bias = torch.tensor([8.001, 8.0125, 8.010])
expert = (torch.zeros(1, 3) + bias).argmax(-1)
print(expert.tolist())
""",
    ),
    Program(
        """\
import torch

torch.manual_seed(0)
logits = torch.randn(64, 10) @ torch.randn(10, 10)
print(logits.bfloat16().argmax(-1).tolist())
""",
    ),
    Program(
        """\
import torch

x = torch.linspace(-3, 3, 1000).bfloat16()
print((x * 1.1 > 0.5).sum().item(), (x * 20).round().to(torch.int8).sum().item())
""",
    ),
]
